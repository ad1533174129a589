//! The payload on its way to one instance: only what differs, as the agent there says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use evenkeel_api::notice::Notice;
use evenkeel_plan::windows::instances::workflow::MachineFacts;
use serde::Deserialize;

use super::Job;
use super::reach::Reached;
use crate::windows::instances::supply::Supply;
use crate::windows::ssh::{Error, Local, Result};

/// How long a sum over the whole payload may take.
const SUMS: Duration = Duration::from_mins(5);
/// The longest line that Windows' own shell takes is 8191 characters.
const LINE: usize = 6000;
/// How often the progress of a copy is told.
const PROGRESS: Duration = Duration::from_secs(2);

impl Job {
    /// Copies what the instance does not have, makes the folders that it needs, and says what it is. What was copied is
    /// looked at once more by whoever uses it: `bootstrap`, or the agent that is there.
    pub(super) async fn supply(&self, reached: &Reached, supply: &Supply) -> Result<MachineFacts> {
        let script = supply.node_name_script.as_deref();
        let prepare = match script {
            Some(script) => format!("prepare --node-name-script \"{script}\""),
            None => "prepare".to_owned(),
        };
        let mut lines = questions(&prepare, &supply.files).into_iter();
        let first = lines.next().unwrap_or_else(|| prepare.clone());
        let prepared: Prepared = reached.ask(&first, SUMS).await?;
        let mut sums = prepared.checksums;
        for line in lines {
            sums.extend(reached.ask::<Sums>(&line, SUMS).await?);
        }
        let differing = lacking(&supply.files, &sums);
        self.bring(reached, &differing).await?;
        remove_parts(reached, &supply.files).await?;
        make_folders(reached, supply).await?;
        let Some(script) = script else {
            return Ok(prepared.machine);
        };
        // It, or what it asks, was not there before.
        let machine = if differing.is_empty() && prepared.machine.node_name.is_some() {
            prepared.machine
        } else {
            reached.ask::<Prepared>(&prepare, SUMS).await?.machine
        };
        match &machine.node_name_problem {
            // Its kubelet would not have a name either.
            Some(why) => Err(Error::NodeName {
                script: script.to_owned(),
                why: why.clone(),
            }),
            None => Ok(machine),
        }
    }

    /// Copies the agent, which then tells what else is to be copied.
    pub(super) async fn copy_agent(&self, reached: &Reached, supply: &Supply) -> Result<()> {
        let agent = supply.agent()?;
        // As read from here: a program that is asked what it is may say anything.
        if reached.files.is_there(agent).await? {
            return Ok(());
        }
        self.step("copying its agent");
        self.put_whole(reached, agent).await
    }

    /// Copies one file that is run next, if there is room, and reads it once more.
    pub(super) async fn put_whole(&self, reached: &Reached, file: &Local) -> Result<()> {
        let files = &reached.files;
        files.must_have_room(file.size).await?;
        files.put(file, &self.fleet.metrics.progress()).await?;
        if files.is_there(file).await? {
            return Ok(());
        }
        reached.discard(file).await
    }

    /// Copies those of `files` that differ, and says how many.
    pub(super) async fn copy(&self, reached: &Reached, files: &[Local]) -> Result<usize> {
        let differing = lacking(files, &reached.sums(files).await?);
        self.bring(reached, &differing).await?;
        let wrong = lacking(&differing, &reached.sums(&differing).await?);
        if let Some(wrong) = wrong.first() {
            reached.discard(wrong).await?;
        }
        remove_parts(reached, files).await?;
        Ok(differing.len())
    }

    /// Copies these.
    async fn bring(&self, reached: &Reached, differing: &[Local]) -> Result<()> {
        if differing.is_empty() {
            return Ok(());
        }
        let total: u64 = differing.iter().map(|it| it.size).sum();
        // The agent keeps a second copy of each.
        reached.files.must_have_room(2 * total).await?;
        let (count, size) = (differing.len(), megabytes(total));
        let note = format!(
            "instance {}: copying {count} files of its payload, {size}",
            self.name
        );
        self.fleet
            .tell(&self.name, Notice::normal("CopyingPayload", note));
        let start = Instant::now();
        let progress = self.fleet.metrics.progress();
        let told = async {
            loop {
                self.step(&format!(
                    "copying its payload: {} of {size}",
                    megabytes(progress.there())
                ));
                tokio::time::sleep(PROGRESS).await;
            }
        };
        let copied = async {
            for file in differing {
                reached.files.put(file, &progress).await?;
            }
            Ok::<_, Error>(())
        };
        tokio::select! {
            () = told => {}
            copied = copied => copied?,
        }
        let took = start.elapsed();
        let note = format!(
            "instance {}: copied {count} files of its payload, {size} in {:.1}s",
            self.name,
            took.as_secs_f64()
        );
        self.fleet
            .tell(&self.name, Notice::normal("PayloadCopied", note));
        Ok(())
    }
}

impl Reached {
    /// Has the agent close its folder to others, and say what the machine is.
    pub(super) async fn prepare(&self) -> Result<MachineFacts> {
        let prepared: Prepared = self.ask("prepare", SUMS).await?;
        Ok(prepared.machine)
    }

    /// What the agent says of files, in as many questions as it takes.
    async fn sums(&self, files: &[Local]) -> Result<Sums> {
        let mut sums = Sums::new();
        for line in questions("checksums", files) {
            sums.extend(self.ask::<Sums>(&line, SUMS).await?);
        }
        Ok(sums)
    }

    /// Removes a file that is not what was copied.
    async fn discard(&self, file: &Local) -> Result<()> {
        self.files.remove(&file.place).await?;
        Err(Error::File {
            path: file.place.clone(),
            why: "differs from what was copied: it will be copied again".to_owned(),
        })
    }
}

/// The checksums of files, by place; none for one that is not there.
type Sums = BTreeMap<String, Option<String>>;

/// What an agent says before anything else is copied.
#[derive(Debug, Deserialize)]
struct Prepared {
    machine: MachineFacts,
    checksums: Sums,
}

/// What to ask for the checksums of all files: `first`, and what is too long for one line in others.
fn questions(first: &str, files: &[Local]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for file in files {
        let begins = match lines.last() {
            None => Some(first),
            Some(line) => (line.len() > LINE).then_some("checksums"),
        };
        lines.extend(begins.map(str::to_owned));
        if let Some(line) = lines.last_mut() {
            line.extend([" \"", &file.place, "\""]);
        }
    }
    lines
}

/// Those that are not on the instance as they should be.
fn lacking(files: &[Local], sums: &Sums) -> Vec<Local> {
    let is_there = |file: &&Local| sums.get(&file.place) == Some(&Some(file.checksum.clone()));
    files.iter().filter(|it| !is_there(it)).cloned().collect()
}

/// All `files` are there: what broke off on the way to their folders is of no use to anybody.
async fn remove_parts(reached: &Reached, files: &[Local]) -> Result<()> {
    let folders = files.iter().filter_map(|it| it.place.rsplit_once('\\'));
    let folders: BTreeSet<&str> = folders.map(|(folder, _)| folder).collect();
    for folder in folders {
        reached.files.remove_parts(folder).await?;
    }
    Ok(())
}

/// Makes the folders that services need.
pub(super) async fn make_folders(reached: &Reached, supply: &Supply) -> Result<()> {
    for folder in &supply.folders {
        reached.files.make_folder(folder).await?;
    }
    Ok(())
}

fn megabytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1024 * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::windows::ssh::Contents;

    #[test]
    fn every_file_is_asked_for_once_and_no_line_is_longer_than_windows_takes() {
        let places: Vec<String> = (0..200)
            .map(|number| format!(r"C:\k\{}\{number}.exe", "x".repeat(90)))
            .collect();
        let file = |place: &String| Local {
            place: place.clone(),
            checksum: String::new(),
            size: 0,
            contents: Contents::Bytes(Vec::new().into()),
        };
        let files: Vec<Local> = places.iter().map(file).collect();
        let lines = questions("prepare", &files);
        assert!(lines.len() > 1 && lines[0].starts_with("prepare \"C:"));
        let mut others = lines.iter().skip(1);
        assert!(others.all(|it| it.starts_with("checksums \"C:")));
        assert!(lines.iter().all(|it| it.len() < 8000));
        let asked: Vec<&str> = lines
            .iter()
            .flat_map(|it| it.split('"').skip(1).step_by(2))
            .collect();
        assert_eq!(asked, places);
        assert_eq!(questions("checksums", &[]), Vec::<String>::new());
    }
}
