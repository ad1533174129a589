//! What was said already, so that people hear each thing once.

use std::collections::BTreeMap;

use evenkeel_api::notice::Notice;

/// What was last said of one object, by category.
#[derive(Debug, Default)]
pub(crate) struct Said(BTreeMap<&'static str, String>);

impl Said {
    /// A notice that somebody should look, unless that was said last. Without a message there is nothing to say any more:
    /// it is news again when it comes back.
    pub(crate) fn warning(
        &mut self,
        category: &'static str,
        message: Option<String>,
    ) -> Option<Notice> {
        self.changed(category, message)
            .map(|message| Notice::warning(category, message))
    }

    /// As [`Self::warning`], of what is as it should be.
    pub(crate) fn normal(
        &mut self,
        category: &'static str,
        message: Option<String>,
    ) -> Option<Notice> {
        self.changed(category, message)
            .map(|message| Notice::normal(category, message))
    }

    /// Whether there is nothing that was said.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn changed(&mut self, category: &'static str, message: Option<String>) -> Option<String> {
        let Some(message) = message else {
            self.0.remove(category);
            return None;
        };
        if self.0.get(category) == Some(&message) {
            return None;
        }
        self.0.insert(category, message.clone());
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_until_it_was_over() {
        let mut said = Said::default();
        let mut says = |message: Option<&str>| {
            let notice = said.warning("Leak", message.map(str::to_owned));
            notice.map(|it| it.message)
        };
        assert_eq!(says(Some("one")).as_deref(), Some("one"));
        assert_eq!(says(Some("one")), None);
        assert_eq!(says(Some("two")).as_deref(), Some("two"));
        assert_eq!(says(None), None);
        assert_eq!(says(Some("two")).as_deref(), Some("two"));
        assert!(said.normal("Mended", Some("three".to_owned())).is_some());
    }
}
