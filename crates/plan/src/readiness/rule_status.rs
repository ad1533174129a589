//! What the status of a rule says of it: whether it can be followed, and whether a storm is held back.

use evenkeel_api::fleet::machine_config_pool::Condition;
use evenkeel_api::readiness::condition;

use super::snapshot::Feed;
use super::view::RuleView;

/// How long a message of a condition may be.
const MESSAGE: usize = 400;

/// The conditions of a rule without their times. `read` is what was wrong with reading it, or its warnings; `failing` is
/// a watch that it goes by and that does not work, with why.
pub fn rule_conditions(
    read: Result<&[String], &str>,
    failing: Option<(&Feed, &str)>,
    view: &RuleView,
) -> Vec<Condition> {
    let (is_valid, reason, message) = match (read, failing) {
        (Err(why), _) => ("False", "InvalidConfig", why.to_owned()),
        (Ok(_), Some((feed, why))) => {
            let message = format!("cannot watch {}: {why}", feed.describe());
            ("True", "CannotWatch", message)
        }
        (Ok(_), None) if !view.unclear.is_empty() => ("True", "CannotTell", view.unclear.clone()),
        (Ok(warnings), None) => ("True", "Followed", warnings.join("; ")),
    };
    let guarded = match view.guarded.as_str() {
        "" => ("False", "Calm"),
        _ => ("True", "Storm"),
    };
    vec![
        condition(condition::VALID, is_valid, reason, &message),
        condition(condition::GUARDED, guarded.0, guarded.1, &view.guarded),
    ]
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        last_transition_time: None,
        reason: reason.to_owned(),
        message: message.chars().take(MESSAGE).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_comes_before_what_cannot_be_watched_and_that_before_warnings() {
        let feed = Feed::Leases {
            namespace: "extensions".to_owned(),
        };
        let warnings = ["odd".to_owned(), "old".to_owned()];
        let clear = RuleView::default();
        let unclear = RuleView {
            unclear: "nobody knows".to_owned(),
            guarded: "half of zone a".to_owned(),
            ..RuleView::default()
        };
        let failing = Some((&feed, "forbidden"));
        let shown = |read, failing, view: &RuleView| {
            let all = rule_conditions(read, failing, view);
            let all = all.iter().map(|it| {
                let text = format!("{}={} {}: {}", it.kind, it.status, it.reason, it.message);
                text.trim_end_matches(": ").to_owned()
            });
            all.collect::<Vec<_>>()
        };
        assert_eq!(
            shown(Err("no selector"), failing, &unclear),
            [
                "Valid=False InvalidConfig: no selector",
                "Guarded=True Storm: half of zone a"
            ]
        );
        assert_eq!(
            shown(Ok(&warnings), failing, &unclear)[0],
            "Valid=True CannotWatch: cannot watch Leases in extensions: forbidden"
        );
        assert_eq!(
            shown(Ok(&warnings), None, &unclear)[0],
            "Valid=True CannotTell: nobody knows"
        );
        assert_eq!(
            shown(Ok(&warnings), None, &clear),
            ["Valid=True Followed: odd; old", "Guarded=False Calm"]
        );
        let long = "x".repeat(500);
        assert_eq!(
            rule_conditions(Err(&long), None, &clear)[0].message.len(),
            MESSAGE
        );
    }
}
