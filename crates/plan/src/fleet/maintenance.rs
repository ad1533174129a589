//! Maintenance windows and freezes: at which moments nodes may begin to be disrupted. Who is on the way is none of its
//! business, and neither is whose calendar it is.

mod schedule;
mod window;

use std::fmt;

use evenkeel_api::field::Field;
use evenkeel_api::fleet::rollout_policy::RolloutPolicySpec;
use jiff::Timestamp;

use crate::fleet::field_problem::FieldProblem;

pub use self::window::{MaintenanceWindow, Span};

/// How many changes in a row are followed until a calendar counts as open, or closed, for good.
const STEPS: usize = 1_000;

/// Windows and freezes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MaintenanceCalendar {
    /// Windows; without any, nodes may begin at any time.
    pub windows: Vec<MaintenanceWindow>,
    /// Freezes.
    pub freezes: Vec<Span>,
}

/// Why nodes of a pool may not begin at this moment, and when they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// No maintenance window is open.
    Window {
        /// When one opens; never, if not in years.
        opens: Option<Timestamp>,
    },
    /// A freeze lasts.
    Freeze {
        /// When a node may begin after it.
        opens: Option<Timestamp>,
    },
    /// The pool's policy does not exist, or makes no sense.
    Policy,
    /// Nobody has read the policies yet.
    Unread,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (why, opens) = match self {
            Self::Policy => return f.write_str("the pool's RolloutPolicy is missing or not valid"),
            Self::Unread => return f.write_str("the RolloutPolicies are not read yet"),
            Self::Window { opens } => ("no maintenance window is open", opens),
            Self::Freeze { opens } => ("a freeze is in force", opens),
        };
        match opens {
            Some(opens) => write!(f, "{why}: the next window opens at {opens}"),
            None => write!(f, "{why}, and none opens later"),
        }
    }
}

impl Closed {
    /// The reason of a pool's condition.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Window { .. } => "OutsideWindow",
            Self::Freeze { .. } => "Frozen",
            Self::Policy => "InvalidPolicy",
            Self::Unread => "PolicyUnread",
        }
    }
}

/// A window at one of the times that it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowOpening<'c> {
    /// The window.
    pub window: &'c MaintenanceWindow,
    /// From when to when.
    pub span: Span,
    /// How much of that freezes take away.
    pub frozen: FrozenPart,
}

/// How much of a time freezes take away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrozenPart {
    /// Nothing.
    None,
    /// A part of it.
    Some,
    /// All of it.
    All,
}

impl MaintenanceCalendar {
    /// Reads the windows and freezes of a policy; what makes no sense is a problem.
    pub(super) fn read(spec: &RolloutPolicySpec, problems: &mut Vec<FieldProblem>) -> Self {
        let windows = each(
            "spec.windows",
            &spec.windows,
            problems,
            MaintenanceWindow::read,
        );
        let freezes = each("spec.freezes", &spec.freezes, problems, window::freeze);
        Self { windows, freezes }
    }

    /// Why nobody may begin at `now`, if so.
    pub fn closed(&self, now: Timestamp) -> Option<Closed> {
        if self.frozen_until(now).is_some() {
            let opens = self.opens(now);
            return Some(Closed::Freeze { opens });
        }
        let opens = || self.opens(now);
        (!self.is_window_open(now)).then(|| Closed::Window { opens: opens() })
    }

    fn is_window_open(&self, now: Timestamp) -> bool {
        self.windows.is_empty() || self.windows.iter().any(|it| it.open_at(now).is_some())
    }

    fn frozen_until(&self, now: Timestamp) -> Option<Timestamp> {
        let lasting = self.freezes.iter().filter(|it| it.has(now));
        lasting.map(|it| it.to).max()
    }

    /// The first moment from `now` on at which nodes may begin.
    fn opens(&self, now: Timestamp) -> Option<Timestamp> {
        let mut at = now;
        for _ in 0..STEPS {
            if let Some(until) = self.frozen_until(at) {
                at = until;
            } else if self.is_window_open(at) {
                return Some(at);
            } else {
                at = self
                    .windows
                    .iter()
                    .filter_map(|it| Some(it.next(at)?.from))
                    .min()?;
            }
        }
        None
    }

    /// The first moment after `now`, at which nodes may begin, from which on they may not.
    fn closes(&self, now: Timestamp) -> Option<Timestamp> {
        let freeze = self
            .freezes
            .iter()
            .map(|it| it.from)
            .filter(|it| *it > now)
            .min();
        let mut at = now;
        for _ in 0..STEPS {
            let open = self.windows.iter().filter_map(|it| it.open_at(at));
            let Some(end) = open.map(|it| it.to).max() else {
                break;
            };
            at = end;
            if freeze.is_some_and(|it| it <= at) || !self.is_window_open(at) {
                return Some(freeze.map_or(at, |it| it.min(at)));
            }
        }
        freeze
    }

    /// When it is another answer than at `now` whether nodes may begin; never, if not in years.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        match self.closed(now) {
            Some(Closed::Window { opens } | Closed::Freeze { opens }) => opens,
            Some(Closed::Policy | Closed::Unread) => None,
            None => self.closes(now),
        }
    }

    /// The windows that are open at `now`, and the next ones, `count` in all, in the order in which they open.
    pub fn openings(&self, now: Timestamp, count: usize) -> Vec<WindowOpening<'_>> {
        let mut next: Vec<(&MaintenanceWindow, Option<Span>)> = self
            .windows
            .iter()
            .map(|it| (it, it.open_at(now).or_else(|| it.next(now))))
            .collect();
        let mut openings = Vec::new();
        while openings.len() < count {
            let coming = next.iter_mut().filter(|(_, span)| span.is_some());
            let Some((window, soonest)) = coming.min_by_key(|(_, span)| *span) else {
                break;
            };
            let Some(span) = *soonest else {
                break;
            };
            *soonest = window.next(span.from);
            openings.push(WindowOpening {
                window,
                span,
                frozen: self.frozen_part(span),
            });
        }
        openings
    }

    fn frozen_part(&self, span: Span) -> FrozenPart {
        let mut at = span.from;
        while let Some(until) = self.frozen_until(at) {
            at = until;
            if at >= span.to {
                return FrozenPart::All;
            }
        }
        let is_some = |it: &Span| it.from < span.to && span.from < it.to;
        if self.freezes.iter().any(is_some) {
            FrozenPart::Some
        } else {
            FrozenPart::None
        }
    }
}

/// Reads every element of a list, and names each by its place.
fn each<S, T>(
    place: &str,
    list: &Field<Vec<Field<S>>>,
    problems: &mut Vec<FieldProblem>,
    read: impl Fn(&str, &S, &mut Vec<FieldProblem>) -> Option<T>,
) -> Vec<T> {
    let elements = match list {
        Field::Absent => return Vec::new(),
        Field::Valid(elements) => elements,
        Field::Invalid { found, .. } => {
            problems.push(FieldProblem {
                field: place.to_owned(),
                message: format!("{found} is not a list: begin each element with \"- \""),
            });
            return Vec::new();
        }
    };
    let mut all = Vec::new();
    for (at, element) in elements.iter().enumerate() {
        let place = format!("{place}[{at}]");
        match element {
            Field::Valid(element) => all.extend(read(&place, element, problems)),
            Field::Absent => problems.push(FieldProblem {
                field: place,
                message: "it is empty: fill it in, or take it away".to_owned(),
            }),
            Field::Invalid { found, .. } => problems.push(FieldProblem {
                field: place,
                message: format!("{found} is not an object with fields"),
            }),
        }
    }
    all
}
