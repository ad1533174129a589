//! `evenkeel demo`: the product in one minute, on a scratch tree, for anybody who may write to the
//! temporary folder.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use evenkeel_api::machine_config::{File, MachineConfig, Owner, Unit};
use evenkeel_host::linux::kill_when;
use evenkeel_host::observe;
use evenkeel_host::watch::{Event, Monitor};

use crate::Ending;
use crate::arguments::{Arguments, Place};
use crate::machine::{Machine, Wanted, explain};
use crate::output::{self, Paint};

const CHRONY: &str = "/etc/chrony.conf";
const REGISTRIES: &str = "/etc/containers/registries.conf";
const POLICY: &str = "/etc/containers/policy.json";
/// So many that an apply takes long enough to be killed in the middle.
const MANY: usize = 1500;
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn run() -> Result<Ending> {
    let folder = tempfile::Builder::new()
        .prefix("evenkeel-demo-")
        .tempdir()
        .context("cannot make a folder for the demo in the temporary folder")?;
    let demo = Demo {
        folder: folder.path().to_owned(),
        paint: Paint::for_stdout(),
    };
    std::fs::create_dir(demo.root()).context("cannot make the demo's tree")?;
    demo.play()?;
    Ok(Ending::Well)
}

struct Demo {
    folder: PathBuf,
    paint: Paint,
}

impl Demo {
    fn play(&self) -> Result<()> {
        self.say("A tree stands in for a machine. worker.yaml says what should be on it. What would change?")?;
        let mut config = worker();
        self.give("worker.yaml", &config)?;
        self.run("plan", "worker.yaml")?;

        self.say("Bring it there. The plan is journaled first; every step can be undone.")?;
        self.run("apply", "worker.yaml")?;
        self.say("Again: nothing is left to do, and nothing is touched.")?;
        self.run("apply", "worker.yaml")?;

        self.say("Now somebody edits a file by hand while `evenkeel watch --heal` looks on.")?;
        self.heal()?;

        self.say("Three updates, before anything is touched. One more search registry: reload.")?;
        let registries = |list: &str| format!("unqualified-search-registries = [{list}]\n");
        self.plan_with(
            "reload.yaml",
            REGISTRIES,
            &registries("\"quay.io\", \"docker.io\""),
        )?;
        self.say(
            "A search registry replaced: pods could lose an image source, so they leave first.",
        )?;
        self.plan_with(
            "drain.yaml",
            REGISTRIES,
            &registries("\"registry.example.com\""),
        )?;
        self.say("Another time server: nothing running is known to pick that up, so it reboots.")?;
        self.plan_with(
            "reboot.yaml",
            CHRONY,
            "server time.example.com iburst\nmakestep 1.0 3\n",
        )?;

        self.say(&format!("Last: {MANY} new files, and the apply is killed in the middle (SIGKILL, no chance to clean up)."))?;
        for number in 0..MANY {
            put(
                &mut config,
                &format!("/etc/many/{number:04}.conf"),
                &format!("number = {number}\n"),
            );
        }
        self.give("many.yaml", &config)?;
        self.kill_in_the_middle()?;
        self.say(
            "The next start finds the journal and finishes it. Then everything is as declared.",
        )?;
        self.resume()?;
        self.run("verify", "many.yaml")
    }

    /// Plans an update of one file.
    fn plan_with(&self, name: &str, path: &str, text: &str) -> Result<()> {
        let mut config = worker();
        put(&mut config, path, text);
        self.give(name, &config)?;
        self.run("plan", name)
    }

    fn root(&self) -> PathBuf {
        self.folder.join("tree")
    }

    fn say(&self, sentence: &str) -> Result<()> {
        output::print(format!("\n{}\n", self.paint.bold(&format!("# {sentence}"))).as_bytes())
    }

    fn give(&self, name: &str, config: &MachineConfig) -> Result<()> {
        std::fs::write(self.folder.join(name), config.to_yaml())
            .with_context(|| format!("cannot write {name}"))
    }

    /// Runs a command as if it had been typed.
    fn run(&self, command: &str, file: &str) -> Result<()> {
        tell(
            &self
                .paint
                .dim(&format!("$ evenkeel {command} -f {file} --root tree")),
        )?;
        let (path, root) = (self.folder.join(file), self.root());
        let words: [&OsStr; 6] = [
            "evenkeel".as_ref(),
            command.as_ref(),
            "-f".as_ref(),
            path.as_ref(),
            "--root".as_ref(),
            root.as_ref(),
        ];
        let arguments = Arguments::try_parse_from(words).context("the demo typed nonsense")?;
        crate::dispatch(arguments.command).map(|_| ())
    }

    /// A watch that heals, and somebody who tampers.
    fn heal(&self) -> Result<()> {
        tell(
            &self
                .paint
                .dim("$ evenkeel watch --heal -f worker.yaml --root tree &"),
        )?;
        let machine = Machine::at(&Place {
            root: Some(self.root()),
        })?;
        let wanted = Wanted::read(&[self.folder.join("worker.yaml")])?;
        let targets =
            observe::targets_of(&machine.host, &machine.state, &wanted.desired).map_err(explain)?;
        let mut watcher = machine
            .host
            .watch(targets.keys().map(String::as_str))
            .map_err(explain)?;
        let stopper = watcher.stopper();
        let (send, told) = mpsc::channel();
        std::thread::scope(|threads| -> Result<()> {
            let watching = threads.spawn(|| {
                let mut monitor = Monitor::healing(&machine.host, &machine.state, targets.clone());
                monitor.run(&mut watcher, &mut |event| _ = send.send(event))
            });
            let tampered = self.tamper(&told);
            stopper.stop();
            match watching.join() {
                Ok(ended) => ended.map_err(explain)?,
                Err(_) => bail!("the watch ended badly"),
            }
            tampered
        })
    }

    fn tamper(&self, told: &mpsc::Receiver<Event>) -> Result<()> {
        tell(
            &self
                .paint
                .dim("$ echo 'server evil.example.com' >> tree/etc/chrony.conf"),
        )?;
        let path = self.root().join(CHRONY.trim_start_matches('/'));
        let mut text = std::fs::read_to_string(&path).context("cannot read the demo's file")?;
        text.push_str("server evil.example.com\n");
        std::fs::write(&path, text).context("cannot tamper with the demo's file")?;
        loop {
            match told
                .recv_timeout(PATIENCE)
                .context("the watch did not notice in time")?
            {
                Event::Drifted { finding, after, .. } => {
                    let found = format!(
                        "! {}: {} (found in {:.1} ms)",
                        finding.resource,
                        finding.why,
                        millis(after)
                    );
                    tell(&self.paint.red(&found))?;
                }
                Event::Healed { finding, took } => {
                    let healed = format!(
                        "= {}: put back (in {:.1} ms)",
                        finding.resource,
                        millis(took)
                    );
                    return tell(&self.paint.green(&healed));
                }
                Event::HealFailed { error, .. } => return Err(explain(error)),
                Event::Recovered { .. } | Event::Fought { .. } => {}
            }
        }
    }

    fn kill_in_the_middle(&self) -> Result<()> {
        tell(
            &self
                .paint
                .dim("$ evenkeel apply -f many.yaml --root tree & sleep a little; kill -9 $!"),
        )?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let (root, file) = (self.root(), self.folder.join("many.yaml"));
        let words: [&OsStr; 5] = [
            "apply".as_ref(),
            "-f".as_ref(),
            file.as_ref(),
            "--root".as_ref(),
            root.as_ref(),
        ];
        let half = root.join(format!("etc/many/{:04}.conf", MANY / 2));
        let killed = kill_when(&program, &words, PATIENCE, || half.exists()).map_err(explain)?;
        if !killed {
            return tell("(this machine is so fast that it was done before it could be killed)");
        }
        let there = std::fs::read_dir(root.join("etc/many")).map_or(0, Iterator::count);
        tell(&self.paint.red(&format!(
            "Killed, with about {there} of {MANY} files in place."
        )))
    }

    fn resume(&self) -> Result<()> {
        tell(&self.paint.dim("$ evenkeel apply -f many.yaml --root tree"))?;
        let machine = Machine::at(&Place {
            root: Some(self.root()),
        })?;
        let claim =
            evenkeel_host::execute::Claim::take(&machine.host, &machine.state).map_err(explain)?;
        match claim.resumed() {
            Some(_) => tell(
                &self
                    .paint
                    .green("An earlier apply was interrupted; it was finished."),
            ),
            None => tell("There was nothing to finish."),
        }
    }
}

fn tell(line: &str) -> Result<()> {
    output::print(format!("{line}\n").as_bytes())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn put(config: &mut MachineConfig, path: &str, text: &str) {
    let file = File {
        contents: text.as_bytes().to_vec(),
        mode: File::DEFAULT_MODE,
        user: Owner::default(),
        group: Owner::default(),
    };
    config.files.insert(path.to_owned(), file);
}

fn worker() -> MachineConfig {
    let unit = Unit {
        contents: Some(
            "[Service]\nExecStart=/usr/bin/node-tuner\n\n[Install]\nWantedBy=multi-user.target\n"
                .to_owned(),
        ),
        enabled: Some(true),
        ..Unit::default()
    };
    let mut config = MachineConfig {
        name: Some("worker".to_owned()),
        units: BTreeMap::from([("node-tuner.service".to_owned(), unit)]),
        ..MachineConfig::default()
    };
    put(
        &mut config,
        CHRONY,
        "server 0.pool.example.com iburst\nmakestep 1.0 3\n",
    );
    put(
        &mut config,
        REGISTRIES,
        "unqualified-search-registries = [\"quay.io\"]\n",
    );
    put(
        &mut config,
        POLICY,
        "{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}\n",
    );
    config
}
