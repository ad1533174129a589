//! Files of a node on its way to another version, on the machine that it is, and files that go with the node.

use evenkeel_api::names::windows;
use evenkeel_plan::windows::instances::workflow::{is_below, obsolete};

use super::Job;
use super::copy::make_folders;
use super::reach::Reached;
use crate::windows::instances::supply::Supply;
use crate::windows::ssh::{Local, Result};

impl Job {
    /// Brings the new agent next to the one that is there, and asks that one from now on. If it is the same,
    /// there is nothing to bring. Says whether it lies next to it.
    pub(super) async fn bring_new_agent(
        &self,
        reached: &mut Reached,
        supply: &Supply,
    ) -> Result<bool> {
        let agent = supply.agent()?;
        if reached.files.is_there(agent).await? {
            return Ok(false);
        }
        let place = windows::NEW_AGENT.to_owned();
        let new_agent = Local {
            place,
            ..agent.clone()
        };
        reached.program = windows::NEW_AGENT;
        if !reached.files.is_there(&new_agent).await? {
            self.step("copying the new agent next to the old one");
            self.put_whole(reached, &new_agent).await?;
        }
        Ok(true)
    }

    /// Brings all files but the agent, and says how many were copied.
    pub(super) async fn copy_new_files(&self, reached: &Reached, supply: &Supply) -> Result<usize> {
        let agent = supply.agent()?;
        let others = supply.files.iter().filter(|it| it.place != agent.place);
        let others: Vec<Local> = others.cloned().collect();
        let copied = self.copy(reached, &others).await?;
        make_folders(reached, supply).await?;
        Ok(copied)
    }
}

impl Reached {
    pub(super) async fn remove_obsolete(&self, old: &[String], supply: &Supply) -> Result<()> {
        let now = supply.files.iter().map(|it| it.place.as_str());
        for file in obsolete(old, now) {
            self.files.remove(&file).await?;
            self.remove_empty_folders(&file).await?;
        }
        Ok(())
    }

    /// Folders of the payload that have nothing left in them go, too.
    async fn remove_empty_folders(&self, file: &str) -> Result<()> {
        let mut folder = file;
        while let Some((above, _)) = folder.rsplit_once('\\') {
            if !is_below(above, windows::PAYLOAD) {
                return Ok(());
            }
            self.files.remove_if_empty(above).await?;
            folder = above;
        }
        Ok(())
    }

    pub(super) async fn place_new_agent(&mut self) -> Result<()> {
        self.files
            .replace(windows::NEW_AGENT, windows::AGENT)
            .await?;
        self.program = windows::AGENT;
        Ok(())
    }

    pub(super) async fn remove_upgrade(&self) {
        _ = self.files.remove(&format!("{}.old", windows::AGENT)).await;
        _ = self.files.remove_folder(windows::UPGRADE).await;
    }

    pub(super) async fn remove_files(&self, supply: Option<&Supply>) -> Result<()> {
        for folder in [windows::PAYLOAD, windows::LOGS] {
            self.files.remove_folder(folder).await?;
        }
        let made = supply.map(|it| it.folders.as_slice()).unwrap_or_default();
        let made = made.iter().rev().map(String::as_str);
        for folder in made.chain([r"C:\var\log", r"C:\var"]) {
            self.files.remove_if_empty(folder).await?;
        }
        Ok(())
    }
}
