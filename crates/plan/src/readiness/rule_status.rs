//! What the status of a rule says of it: whether it can be followed, whether a storm is held back, and whether it
//! is suspended.

use evenkeel_api::fleet::machine_config_pool::Condition;
use evenkeel_api::readiness::condition;

use super::snapshot::Feed;
use super::view::RuleView;
use crate::fleet::rollout::told;

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
        (Err(why), _) => (false, "InvalidConfig", why.to_owned()),
        (Ok(_), Some((feed, why))) => {
            let message = format!("cannot watch {}: {why}", feed.describe());
            (true, "CannotWatch", message)
        }
        (Ok(_), None) if !view.unclear.is_empty() => (true, "CannotTell", view.unclear.clone()),
        (Ok(warnings), None) => (true, "Followed", warnings.join("; ")),
    };
    let is_suspended = !view.suspended.is_empty();
    let suspended = if is_suspended { "Suspended" } else { "Acting" };
    let is_guarded = !view.guarded.is_empty();
    let guarded = if is_guarded { "Storm" } else { "Calm" };
    let short = |message: &str| message.chars().take(MESSAGE).collect::<String>();
    vec![
        told(condition::VALID, is_valid, reason, short(&message)),
        told(
            condition::GUARDED,
            is_guarded,
            guarded,
            short(&view.guarded),
        ),
        told(
            condition::SUSPENDED,
            is_suspended,
            suspended,
            short(&view.suspended),
        ),
    ]
}
