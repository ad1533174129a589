//! The folder of the payload, before anything of ours is run from it. Everybody who may log in to a Windows machine may make
//! folders on C:, and own them: what was there before us is put aside unseen, and ours is closed before anything is in it.

use std::time::Duration;

use evenkeel_api::names::windows;
use evenkeel_api::notice::Notice;
use evenkeel_plan::windows::instances::InstanceFailure;
use jiff::Timestamp;

use super::reach::Reached;
use super::{Job, api, problem};
use crate::windows::ssh::{Error, Kind};

/// How long a program of Windows may take.
const SYSTEM: Duration = Duration::from_secs(30);

/// Only administrators write there: the agent's service is there if it was ever installed.
const ASK_FOR_SERVICE: &str = r"C:\Windows\System32\reg.exe query HKLM\SYSTEM\CurrentControlSet\Services\evenkeel-agent /v ImagePath";
/// Nobody but the system and administrators may do anything in the folder, or own it.
const CLOSE: [&str; 2] = [
    r#"C:\Windows\System32\icacls.exe C:\k /inheritance:r /grant:r "*S-1-5-18:(OI)(CI)F" "*S-1-5-32-544:(OI)(CI)F""#,
    r#"C:\Windows\System32\icacls.exe C:\k /setowner "*S-1-5-32-544""#,
];

impl Job {
    /// Makes sure that the folder is ours and that nobody else can write there.
    pub(super) async fn secure(&self, reached: &Reached) -> Result<(), InstanceFailure> {
        self.touch().await?;
        self.step("checking its folder");
        let files = &reached.files;
        let folder = windows::PAYLOAD.trim_end_matches('\\');
        let mut found = files.kind(folder).await.map_err(|error| problem(&error))?;
        if found == Kind::Folder {
            // One that is empty, as an earlier try may have left it, is not worth keeping.
            let removed = files.remove_if_empty(folder).await;
            removed.map_err(|error| problem(&error))?;
            found = files.kind(folder).await.map_err(|error| problem(&error))?;
        }
        let is_own_folder = match found {
            Kind::Nothing => false,
            Kind::Link => {
                return Err(foreign("is a link that Evenkeel did not create: remove it"));
            }
            Kind::Folder | Kind::File => self.has_agent(reached).await?,
        };
        if !is_own_folder {
            if found != Kind::Nothing {
                self.put_aside(reached, folder).await?;
            }
            // Whoever is faster than us owns it.
            let made = files.make_new_folder(folder).await;
            made.map_err(|error| problem(&error))?;
            for line in CLOSE {
                let closed = reached.session.run(line, SYSTEM).await;
                closed.map_err(|error| problem(&error))?;
            }
            if !files
                .is_empty(folder)
                .await
                .map_err(|error| problem(&error))?
            {
                return Err(foreign(
                    "was changed by somebody else while it was created: check who is logged in there",
                ));
            }
        }
        let records = &self.fleet.records;
        records.change(&self.name, |it| it.is_secured = true);
        let saved = records.save().await;
        saved.map_err(|error| api("cannot write the status of the instance", &error))
    }

    /// Whether the agent's service is installed, with its program where we put it.
    async fn has_agent(&self, reached: &Reached) -> Result<bool, InstanceFailure> {
        match reached.session.run(ASK_FOR_SERVICE, SYSTEM).await {
            Ok(said) => Ok(said.to_lowercase().contains(&windows::AGENT.to_lowercase())),
            // There is no such key.
            Err(Error::Command { .. }) => Ok(false),
            Err(error) => Err(problem(&error)),
        }
    }

    async fn put_aside(&self, reached: &Reached, folder: &str) -> Result<(), InstanceFailure> {
        let stamp = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
        let aside = format!("{folder}-before-evenkeel-{stamp}");
        let moved = reached.files.rename(folder, &aside).await;
        moved.map_err(|error| {
            foreign(&format!(
                "existed before Evenkeel and cannot be moved aside ({error}): move or remove it"
            ))
        })?;
        let note = format!(
            "instance {}: {folder} existed before Evenkeel and was moved to {aside}: nothing in it was run or kept",
            self.name
        );
        self.fleet
            .tell(&self.name, Notice::warning("FolderMovedAside", note));
        Ok(())
    }
}

fn foreign(why: &str) -> InstanceFailure {
    problem(&Error::Foreign(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers S04.
    #[test]
    fn only_programs_of_windows_itself_are_run_before_the_folder_is_closed() {
        let folder = windows::PAYLOAD.trim_end_matches('\\');
        for line in CLOSE.iter().chain(&[ASK_FOR_SERVICE]) {
            assert!(line.starts_with(r"C:\Windows\System32\"), "{line}");
        }
        for line in CLOSE {
            assert!(line.split(' ').nth(1) == Some(folder), "{line}");
            // Quoted, so that PowerShell, too, takes it as it is.
            assert!(line.contains("\"*S-1-5-32-544"), "{line}");
        }
        assert!(ASK_FOR_SERVICE.contains(windows::AGENT_SERVICE));
    }
}
