//! The folder of the payload, before anything of ours is run from it: `evenkeel_plan::windows::instances::workflow` says
//! what becomes of it.

use std::time::Duration;

use evenkeel_api::names::windows;
use evenkeel_plan::windows::instances::InstanceFailure;
use evenkeel_plan::windows::instances::workflow::{PayloadFolder, foreign};

use super::reach::Reached;
use crate::windows::ssh::{Error, FileKind};

/// How long a program of Windows may take.
pub(super) const SYSTEM: Duration = Duration::from_secs(30);

/// Only administrators write there: the agent's service is there if it was ever installed.
const ASK_FOR_SERVICE: &str = r"C:\Windows\System32\reg.exe query HKLM\SYSTEM\CurrentControlSet\Services\evenkeel-agent /v ImagePath";
/// Nobody but the system and administrators may do anything in the folder, or own it.
const CLOSE: [&str; 2] = [GRANT, OWN];
pub(super) const GRANT: &str = r#"C:\Windows\System32\icacls.exe C:\k /inheritance:r /grant:r "*S-1-5-18:(OI)(CI)F" "*S-1-5-32-544:(OI)(CI)F""#;
pub(super) const OWN: &str = r#"C:\Windows\System32\icacls.exe C:\k /setowner "*S-1-5-32-544""#;

impl Reached {
    /// What lies where the payload goes.
    pub(super) async fn inspect_folder(&self) -> Result<PayloadFolder, InstanceFailure> {
        let mut found = self.files.kind(folder()).await?;
        if found == FileKind::Folder {
            // One that is empty, as an earlier try may have left it, is not worth keeping.
            self.files.remove_if_empty(folder()).await?;
            found = self.files.kind(folder()).await?;
        }
        Ok(match found {
            FileKind::Nothing => PayloadFolder::Missing,
            FileKind::Link => PayloadFolder::Link,
            FileKind::Folder | FileKind::File if self.has_service().await? => PayloadFolder::Own,
            FileKind::Folder if self.has_wmco().await? => PayloadFolder::Wmcos,
            FileKind::Folder | FileKind::File => PayloadFolder::Foreign,
        })
    }

    /// Whether the agent's service is installed, with its program where we put it.
    async fn has_service(&self) -> Result<bool, InstanceFailure> {
        let said = self.registry(ASK_FOR_SERVICE).await?.unwrap_or_default();
        Ok(said.to_lowercase().contains(&windows::AGENT.to_lowercase()))
    }

    /// What `reg.exe` prints; nothing if there is no such key.
    pub(super) async fn registry(&self, query: &str) -> Result<Option<String>, InstanceFailure> {
        match self.session.run(query, SYSTEM).await {
            Ok(said) => Ok(Some(said)),
            Err(Error::Command { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn put_aside(&self, aside: &str) -> Result<(), InstanceFailure> {
        let moved = self.files.rename(folder(), aside).await;
        moved.map_err(|error| {
            foreign(&format!(
                "existed before Evenkeel and cannot be moved aside ({error}): move or remove it"
            ))
        })
    }

    /// Makes the folder, unless somebody is faster than us and owns it, and closes it. Says whether nothing is in it.
    pub(super) async fn make_folder(&self) -> Result<bool, InstanceFailure> {
        self.files.make_new_folder(folder()).await?;
        for line in CLOSE {
            self.session.run(line, SYSTEM).await?;
        }
        Ok(self.files.is_empty(folder()).await?)
    }
}

pub(super) fn folder() -> &'static str {
    windows::PAYLOAD.trim_end_matches('\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers S04.
    #[test]
    fn only_programs_of_windows_itself_are_run_before_the_folder_is_closed() {
        for line in CLOSE.iter().chain(&[ASK_FOR_SERVICE]) {
            assert!(line.starts_with(r"C:\Windows\System32\"), "{line}");
        }
        for line in CLOSE {
            assert!(line.split(' ').nth(1) == Some(folder()), "{line}");
            // Quoted, so that PowerShell, too, takes it as it is.
            assert!(line.contains("\"*S-1-5-32-544"), "{line}");
        }
        assert!(ASK_FOR_SERVICE.contains(windows::AGENT_SERVICE));
    }
}
