//! The payload on its way to one instance: only what differs, as the agent there says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_api::names::windows;
use evenkeel_daemon::Severity;
use evenkeel_plan::instances::Problem;

use super::reach::Reached;
use super::{Job, problem};
use crate::instances::supply::Supply;
use crate::ssh::{Error, Local};

/// How long a sum over the whole payload may take.
const SUMS: Duration = Duration::from_mins(5);
/// The longest line that Windows' own shell takes is 8191 characters.
const LINE: usize = 6000;
/// How often the progress of a copy is told.
const PROGRESS: Duration = Duration::from_secs(2);

impl Job {
    /// Copies what the instance does not have, and makes the folders that it needs.
    pub(super) async fn supply(&self, reached: &Reached, supply: &Supply) -> Result<(), Problem> {
        self.copy_agent(reached, supply).await?;
        self.copy(reached, &supply.files).await?;
        make_folders(reached, supply).await
    }

    /// Copies the agent, which then tells what else is to be copied.
    pub(super) async fn copy_agent(
        &self,
        reached: &Reached,
        supply: &Supply,
    ) -> Result<(), Problem> {
        let agent = supply.agent()?;
        let is_there = reached
            .files
            .exists(windows::AGENT)
            .await
            .map_err(|error| problem(&error))?;
        // One that does not even start is copied again, too.
        if is_there
            && let Ok(sums) = self.sums(reached, std::slice::from_ref(agent)).await
            && sums.get(&agent.place) == Some(&Some(agent.checksum.clone()))
        {
            return Ok(());
        }
        self.step("copying its agent");
        self.put(reached, agent).await
    }

    /// Copies one file, if there is room.
    pub(super) async fn put(&self, reached: &Reached, file: &Local) -> Result<(), Problem> {
        let files = &reached.files;
        let room = files.must_have_room(file.size).await;
        room.map_err(|error| problem(&error))?;
        let put = files.put(file, &Arc::default()).await;
        put.map_err(|error| problem(&error))?;
        self.fleet.metrics.copied(file.size);
        Ok(())
    }

    /// Copies those of `files` that differ, and says how many.
    pub(super) async fn copy(&self, reached: &Reached, files: &[Local]) -> Result<usize, Problem> {
        let differing = self.differing(reached, files).await?;
        if differing.is_empty() {
            return Ok(0);
        }
        let total: u64 = differing.iter().map(|it| it.size).sum();
        // The agent keeps a second copy of each.
        reached
            .files
            .must_have_room(2 * total)
            .await
            .map_err(|error| problem(&error))?;
        let (count, size) = (differing.len(), megabytes(total));
        let note = format!(
            "{}: copying {count} files of its payload, {size}",
            self.name
        );
        self.fleet
            .tell(&self.name, Severity::Normal, "CopyingPayload", note);
        let start = Instant::now();
        let arrived: Arc<AtomicU64> = Arc::default();
        let told = async {
            loop {
                let bytes = arrived.load(Ordering::Relaxed);
                self.step(&format!(
                    "copying its payload: {} of {size}",
                    megabytes(bytes)
                ));
                tokio::time::sleep(PROGRESS).await;
            }
        };
        let copied = async {
            for file in &differing {
                reached.files.put(file, &arrived).await?;
                self.fleet.metrics.copied(file.size);
            }
            Ok(())
        };
        tokio::select! {
            () = told => {}
            copied = copied => copied.map_err(|error| problem(&error))?,
        }
        let wrong = self.differing(reached, &differing).await?;
        if let Some(wrong) = wrong.first() {
            reached
                .files
                .remove(&wrong.place)
                .await
                .map_err(|error| problem(&error))?;
            return Err(problem(&Error::File {
                path: wrong.place.clone(),
                why: "is not what was copied there: it is copied again".to_owned(),
            }));
        }
        let took = start.elapsed();
        let note = format!(
            "{}: copied {count} files of its payload, {size} in {:.1}s",
            self.name,
            took.as_secs_f64()
        );
        self.fleet
            .tell(&self.name, Severity::Normal, "PayloadCopied", note);
        Ok(count)
    }

    /// Those that are not on the instance as they should be.
    pub(super) async fn differing(
        &self,
        reached: &Reached,
        files: &[Local],
    ) -> Result<Vec<Local>, Problem> {
        let sums = self.sums(reached, files).await?;
        let is_there = |file: &&Local| sums.get(&file.place) == Some(&Some(file.checksum.clone()));
        Ok(files.iter().filter(|it| !is_there(it)).cloned().collect())
    }

    /// What the agent says of files, in as many questions as it takes.
    pub(super) async fn sums(
        &self,
        reached: &Reached,
        files: &[Local],
    ) -> Result<BTreeMap<String, Option<String>>, Problem> {
        let mut sums = BTreeMap::new();
        let mut line = String::new();
        for (at, file) in files.iter().enumerate() {
            if line.is_empty() {
                line.push_str("checksums");
            }
            line.extend([" \"", &file.place, "\""]);
            if line.len() > LINE || at + 1 == files.len() {
                let said: BTreeMap<String, Option<String>> = self
                    .agent(reached, &std::mem::take(&mut line), SUMS)
                    .await?;
                sums.extend(said);
            }
        }
        Ok(sums)
    }
}

/// Makes the folders that services need.
pub(super) async fn make_folders(reached: &Reached, supply: &Supply) -> Result<(), Problem> {
    for folder in &supply.folders {
        let made = reached.files.make_folder(folder).await;
        made.map_err(|error| problem(&error))?;
    }
    Ok(())
}

fn megabytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1024 * 1024))
}
