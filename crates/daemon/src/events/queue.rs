//! What waits to be sent, and what was said before. No I/O and no clock: time is an argument.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use jiff::Timestamp;

use super::{Event, EventsOptions};

/// The longest beginning of an Event's name that is taken from the object's.
const NAME: usize = 200;

/// One request that shall be sent now.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Delivery {
    pub(super) key: Event,
    /// Name of the Event.
    pub(super) name: String,
    /// Whether the Event must be made; else only its count goes up.
    pub(super) is_new: bool,
    pub(super) count: u64,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// How a delivery ended.
pub(super) enum Sent {
    /// The API server has it.
    Arrived,
    /// It has forgotten the Event whose count should go up.
    Gone,
    /// It does not want it.
    Refused,
}

#[derive(Debug)]
struct Series {
    name: String,
    first: Timestamp,
    last: Timestamp,
    /// The same as `last`, on the clock that nobody sets.
    touched: Instant,
    count: u64,
    /// How many of `count` the API server knows of.
    known: u64,
    /// Not to be sent before.
    due: Instant,
}

#[derive(Debug)]
pub(super) struct Queue {
    options: EventsOptions,
    series: HashMap<Event, Series>,
    /// Those with something to send, oldest first.
    waiting: VecDeque<Event>,
    stamp: i128,
    hurry: bool,
}

impl Queue {
    pub(super) fn new(options: EventsOptions) -> Self {
        Self {
            options,
            series: HashMap::new(),
            waiting: VecDeque::new(),
            stamp: 0,
            hurry: false,
        }
    }

    /// Adds one; says how many had to be forgotten for it.
    pub(super) fn push(&mut self, key: Event, now: Instant, time: Timestamp) -> u64 {
        self.forget_old(now);
        if let Some(series) = self.series.get_mut(&key) {
            let waits = series.count > series.known;
            series.count += 1;
            series.last = time;
            series.touched = now;
            if !waits {
                self.waiting.push_back(key);
            }
            return 0;
        }
        let dropped = self.make_room();
        let series = Series {
            name: self.name(&key, time),
            first: time,
            last: time,
            touched: now,
            count: 1,
            known: 0,
            due: now,
        };
        self.waiting.push_back(key.clone());
        self.series.insert(key, series);
        dropped
    }

    /// What to send now; or when to ask again, if anything waits at all.
    pub(super) fn next(&self, now: Instant) -> Result<Delivery, Option<Instant>> {
        let mut soonest = None;
        for key in &self.waiting {
            let Some(series) = self.series.get(key) else {
                continue;
            };
            if series.due <= now || self.hurry {
                return Ok(Delivery {
                    key: key.clone(),
                    name: series.name.clone(),
                    is_new: series.known == 0,
                    count: series.count,
                    first: series.first,
                    last: series.last,
                });
            }
            soonest = Some(soonest.map_or(series.due, |soonest: Instant| soonest.min(series.due)));
        }
        Err(soonest)
    }

    /// Takes note of how `delivery` ended.
    pub(super) fn sent(&mut self, delivery: &Delivery, how: &Sent, now: Instant) {
        let Some(series) = self.series.get_mut(&delivery.key) else {
            return;
        };
        match how {
            Sent::Arrived => {
                series.known = delivery.count;
                series.due = now + self.options.series_pause;
                if series.count == series.known {
                    self.waiting.retain(|key| *key != delivery.key);
                }
            }
            Sent::Gone => {
                // What was counted on the old one stays there.
                series.count -= series.known;
                series.known = 0;
                series.first = series.last;
                let last = series.last;
                let name = self.name(&delivery.key, last);
                if let Some(series) = self.series.get_mut(&delivery.key) {
                    series.name = name;
                }
            }
            Sent::Refused => self.remove(&delivery.key),
        }
    }

    /// In a hurry, everything is due.
    pub(super) fn hurry(&mut self, hurry: bool) {
        self.hurry = hurry;
    }

    /// The others go first.
    pub(super) fn put_last(&mut self, key: &Event) {
        if let Some(place) = self.waiting.iter().position(|waiting| waiting == key) {
            self.waiting.remove(place);
            self.waiting.push_back(key.clone());
        }
    }

    /// Pending events: those of which none was sent yet, oldest first.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Event> {
        let is_untold = |key: &&Event| self.series.get(*key).is_some_and(|it| it.known == 0);
        self.waiting.iter().filter(is_untold)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn remove(&mut self, key: &Event) {
        self.series.remove(key);
        self.waiting.retain(|waiting| waiting != key);
    }

    fn forget_old(&mut self, now: Instant) {
        let window = self.options.window;
        self.series.retain(|_, series| {
            series.count > series.known || now.saturating_duration_since(series.touched) < window
        });
    }

    /// Forgets the oldest until there is room for one more; says how many were never sent.
    fn make_room(&mut self) -> u64 {
        let mut dropped = 0;
        while self.series.len() >= self.options.capacity.max(1) {
            let sent = self
                .series
                .iter()
                .filter(|(_, series)| series.count == series.known)
                .min_by_key(|(_, series)| series.touched)
                .map(|(key, _)| key.clone());
            let Some(oldest) = sent.or_else(|| self.waiting.front().cloned()) else {
                break;
            };
            if let Some(series) = self.series.get(&oldest) {
                dropped += series.count - series.known;
            }
            self.remove(&oldest);
        }
        dropped
    }

    /// A name that no other Event has: the object's, and the time, which never repeats here.
    fn name(&mut self, key: &Event, time: Timestamp) -> String {
        self.stamp = time.as_nanosecond().max(self.stamp + 1);
        let name: String = key
            .object
            .name
            .as_deref()
            .unwrap_or_default()
            .chars()
            .take(NAME)
            .map(|character| match character.to_ascii_lowercase() {
                fine @ ('a'..='z' | '0'..='9' | '.' | '-') => fine,
                _ => '-',
            })
            .collect();
        let name = name.trim_matches(['.', '-']);
        let name = if name.is_empty() { "event" } else { name };
        format!("{name}.{:x}", self.stamp)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evenkeel_api::notice::Severity;
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn queue(capacity: usize) -> Queue {
        Queue::new(EventsOptions {
            window: 60 * SECOND,
            series_pause: 10 * SECOND,
            capacity,
        })
    }

    fn key(name: &str, note: &str) -> Event {
        Event {
            object: ObjectReference {
                name: Some(name.to_owned()),
                ..ObjectReference::default()
            },
            severity: Severity::Normal,
            reason: "Reason".to_owned(),
            action: "Action".to_owned(),
            note: note.to_owned(),
        }
    }

    fn push(queue: &mut Queue, name: &str, note: &str, now: Instant) -> u64 {
        queue.push(key(name, note), now, Timestamp::UNIX_EPOCH)
    }

    fn arrive(queue: &mut Queue, now: Instant) -> Delivery {
        let delivery = queue.next(now).unwrap();
        queue.sent(&delivery, &Sent::Arrived, now);
        delivery
    }

    #[test]
    fn the_same_again_is_a_count_after_a_pause_and_not_a_new_event() {
        let (mut queue, start) = (queue(9), Instant::now());
        push(&mut queue, "n1", "a", start);
        let first = arrive(&mut queue, start);
        assert!(first.is_new && first.count == 1 && queue.is_empty());
        assert_eq!(queue.next(start), Err(None));
        for _ in 0..5 {
            push(&mut queue, "n1", "a", start + SECOND);
        }
        assert_eq!(queue.next(start + SECOND), Err(Some(start + 10 * SECOND)));
        let again = arrive(&mut queue, start + 10 * SECOND);
        assert_eq!((again.is_new, again.count), (false, 6));
        assert_eq!(again.name, first.name);
        assert!(queue.is_empty());
    }

    #[test]
    fn what_repeats_while_nothing_can_be_sent_is_one_event_with_its_count() {
        let (mut queue, start) = (queue(9), Instant::now());
        for _ in 0..5 {
            push(&mut queue, "n1", "a", start);
        }
        let delivery = arrive(&mut queue, start);
        assert_eq!((delivery.is_new, delivery.count), (true, 5));
        assert!(queue.is_empty());
    }

    #[test]
    fn untold_is_what_nobody_heard_of_and_not_what_is_only_to_be_counted() {
        let (mut queue, start) = (queue(9), Instant::now());
        push(&mut queue, "n1", "a", start);
        arrive(&mut queue, start);
        for note in ["b", "a", "c"] {
            push(&mut queue, "n1", note, start);
        }
        let pending: Vec<_> = queue.pending().map(|key| key.note.as_str()).collect();
        assert_eq!(pending, ["b", "c"]);
    }

    #[test]
    fn what_comes_in_while_it_is_being_sent_is_not_lost() {
        let (mut queue, start) = (queue(9), Instant::now());
        push(&mut queue, "n1", "a", start);
        let delivery = queue.next(start).unwrap();
        push(&mut queue, "n1", "a", start);
        queue.sent(&delivery, &Sent::Arrived, start);
        assert!(!queue.is_empty());
        let again = arrive(&mut queue, start + 10 * SECOND);
        assert_eq!((again.is_new, again.count), (false, 2));
    }

    #[test]
    fn another_object_or_note_is_another_event_and_so_is_the_same_after_the_window() {
        let (mut queue, start) = (queue(9), Instant::now());
        let mut names = Vec::new();
        for (name, note) in [("n1", "a"), ("n2", "a"), ("n1", "b")] {
            push(&mut queue, name, note, start);
            names.push(arrive(&mut queue, start));
        }
        push(&mut queue, "n1", "a", start + 60 * SECOND);
        names.push(arrive(&mut queue, start + 60 * SECOND));
        assert!(names.iter().all(|delivery| delivery.is_new));
        names.sort_by(|a, b| a.name.cmp(&b.name));
        names.dedup_by(|a, b| a.name == b.name);
        assert_eq!(names.len(), 4);
    }

    #[test]
    fn a_full_queue_forgets_what_was_sent_first_and_then_the_oldest() {
        let (mut queue, start) = (queue(3), Instant::now());
        push(&mut queue, "n1", "sent", start);
        arrive(&mut queue, start);
        for note in ["a", "a", "b"] {
            assert_eq!(push(&mut queue, "n1", note, start), 0);
        }
        assert_eq!(
            push(&mut queue, "n1", "c", start),
            0,
            "what was sent goes first"
        );
        assert_eq!(
            push(&mut queue, "n1", "d", start),
            2,
            "a, which was said twice"
        );
        let notes: Vec<String> =
            std::iter::from_fn(|| (!queue.is_empty()).then(|| arrive(&mut queue, start).key.note))
                .collect();
        assert_eq!(notes, ["b", "c", "d"]);
    }

    #[test]
    fn an_event_that_expired_is_made_anew_with_what_it_did_not_know() {
        let (mut queue, start) = (queue(9), Instant::now());
        push(&mut queue, "n1", "a", start);
        let first = arrive(&mut queue, start);
        push(&mut queue, "n1", "a", start + SECOND);
        let patch = queue.next(start + 10 * SECOND).unwrap();
        queue.sent(&patch, &Sent::Gone, start + 10 * SECOND);
        let anew = arrive(&mut queue, start + 10 * SECOND);
        assert_eq!((anew.is_new, anew.count), (true, 1));
        assert_ne!(anew.name, first.name);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_refused_event_blocks_nobody() {
        let (mut queue, start) = (queue(9), Instant::now());
        push(&mut queue, "n1", "bad", start);
        push(&mut queue, "n1", "good", start);
        let bad = queue.next(start).unwrap();
        queue.sent(&bad, &Sent::Refused, start);
        assert_eq!(arrive(&mut queue, start).key.note, "good");
    }

    #[test]
    fn an_event_that_makes_trouble_lets_the_others_go_first_and_is_not_lost() {
        let (mut queue, start) = (queue(9), Instant::now());
        push(&mut queue, "n1", "trouble", start);
        push(&mut queue, "n1", "fine", start);
        let trouble = queue.next(start).unwrap();
        queue.put_last(&trouble.key);
        assert_eq!(arrive(&mut queue, start).key.note, "fine");
        assert_eq!(arrive(&mut queue, start).key.note, "trouble");
        queue.put_last(&trouble.key);
        assert!(queue.is_empty());
    }

    #[test]
    fn in_a_hurry_counts_do_not_wait_for_their_turn() {
        let (mut queue, start) = (queue(9), Instant::now());
        push(&mut queue, "n1", "a", start);
        arrive(&mut queue, start);
        push(&mut queue, "n1", "a", start);
        queue.hurry(true);
        assert_eq!(arrive(&mut queue, start).count, 2);
    }

    #[test]
    fn a_name_is_valid_whatever_the_object_is_called() {
        let mut queue = queue(9);
        for (object, begin) in [
            ("worker-0", "worker-0."),
            ("system:node:A_b", "system-node-a-b."),
            ("..", "event."),
            ("", "event."),
        ] {
            let name = queue.name(&key(object, ""), Timestamp::UNIX_EPOCH);
            assert!(name.starts_with(begin), "{name}");
        }
        let long = queue.name(&key(&"a".repeat(253), ""), Timestamp::MAX);
        assert!(long.len() <= 253, "{}", long.len());
    }
}
