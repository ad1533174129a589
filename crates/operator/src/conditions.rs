//! Conditions of an object, with what only those before know: since when, and what others have said.

use evenkeel_api::fleet::machine_config_pool::Condition;
use jiff::Timestamp;

/// The conditions `new`, each with the time since when it is so, and those of `before` that are not `ours`.
pub(crate) fn dated(new: Vec<Condition>, before: &[Condition], ours: &[&str]) -> Vec<Condition> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let of = |kind: &str| before.iter().find(|it| it.kind == kind);
    let mut all = new;
    for condition in &mut all {
        let same = of(&condition.kind)
            .filter(|it| it.status == condition.status)
            .and_then(|it| it.last_transition_time.clone());
        condition.last_transition_time = Some(same.unwrap_or_else(|| now.clone()));
    }
    for other in before.iter().filter(|it| !ours.contains(&it.kind.as_str())) {
        if !all.iter().any(|it| it.kind == other.kind) {
            all.push(other.clone());
        }
    }
    all
}
