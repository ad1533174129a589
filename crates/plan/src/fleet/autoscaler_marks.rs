//! What stands on a Node for autoscalers, the Cluster Autoscaler and Karpenter, and which of it is ours.

use evenkeel_api::names::autoscaler;

/// What a Node says to autoscalers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AutoscalerMarks {
    /// For each of [`autoscaler::ALL`], what stands there.
    pub found: [Mark; autoscaler::ALL.len()],
    /// Which of them are ours, as written on it.
    pub ours: Option<String>,
}

/// What one of the annotations says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mark {
    /// It is not there.
    #[default]
    Absent,
    /// The node is held.
    Held,
    /// Something else, which only a person writes.
    Other,
}

impl Mark {
    /// What the annotation says with this text.
    pub fn read(text: Option<&str>) -> Self {
        match text {
            None => Self::Absent,
            Some(autoscaler::HELD) => Self::Held,
            Some(_) => Self::Other,
        }
    }
}

impl AutoscalerMarks {
    /// Each annotation, with what stands there.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, Mark)> {
        autoscaler::ALL.into_iter().zip(self.found)
    }

    /// Whether what stands there under this name is ours.
    pub(super) fn has_ours(&self, name: &str) -> bool {
        self.all().any(|it| it == (name, Mark::Held)) && is_listed(self.ours.as_deref(), name)
    }
}

/// Whether the list of those that are ours, as it is written on a Node, has this one.
pub(super) fn is_listed(ours: Option<&str>, name: &str) -> bool {
    ours.is_some_and(|it| it.split(',').any(|it| it == name))
}
