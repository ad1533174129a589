//! `evenkeel demo`: the product in one minute, on a temporary directory tree, for anybody who may write to the
//! temporary directory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use evenkeel_api::machine::machine_config::{File, MachineConfig, Owner, Unit};
use evenkeel_host::linux::kill_when;
use evenkeel_host::observe;
use evenkeel_host::watch::{Event, Monitor};

use crate::Ending;
use crate::arguments::{Arguments, RootArguments};
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
        .context("cannot create a directory for the demo in the temporary directory")?;
    let demo = Demo {
        folder: folder.path().to_owned(),
        paint: Paint::for_stdout(),
    };
    std::fs::create_dir(demo.root()).context("cannot create the directory tree of the demo")?;
    demo.play()?;
    Ok(Ending::Well)
}

struct Demo {
    folder: PathBuf,
    paint: Paint,
}

impl Demo {
    fn play(&self) -> Result<()> {
        self.say("A directory tree stands in for a machine, and worker.yaml declares its state. What would change?")?;
        let mut config = worker();
        self.give("worker.yaml", &config)?;
        self.run("plan", "worker.yaml")?;

        self.say("Apply it. The plan is journaled first; every step can be undone.")?;
        self.run("apply", "worker.yaml")?;
        self.say("Apply it again: nothing is left to do, and nothing is written.")?;
        self.run("apply", "worker.yaml")?;

        self.say("Now somebody edits a file by hand while `evenkeel watch --heal` runs.")?;
        self.heal()?;

        self.say("Plan three updates. One more search registry needs a reload.")?;
        let registries = |list: &str| format!("unqualified-search-registries = [{list}]\n");
        self.plan_with(
            "reload.yaml",
            REGISTRIES,
            &registries("\"quay.io\", \"docker.io\""),
        )?;
        self.say("A replaced search registry needs a drain: pods could lose an image source.")?;
        self.plan_with(
            "drain.yaml",
            REGISTRIES,
            &registries("\"registry.example.com\""),
        )?;
        self.say("Another time server needs a reboot: no running service is known to pick it up.")?;
        self.plan_with(
            "reboot.yaml",
            CHRONY,
            "server time.example.com iburst\nmakestep 1.0 3\n",
        )?;

        self.say(&format!(
            "Add {MANY} files, and kill the apply in the middle (SIGKILL, no chance to clean up)."
        ))?;
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
            "The next start finds the journal and finishes the apply. Then everything is as declared.",
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

    /// Shows what a person would type.
    fn types(&self, line: &str) -> Result<()> {
        tell(&self.paint.dim(line))
    }

    fn give(&self, name: &str, config: &MachineConfig) -> Result<()> {
        std::fs::write(self.folder.join(name), config.to_yaml())
            .with_context(|| format!("cannot write {name}"))
    }

    /// Runs a command as if it had been typed.
    fn run(&self, command: &str, file: &str) -> Result<()> {
        self.types(&format!("$ evenkeel {command} -f {file} --root tree"))?;
        let (path, root) = (self.folder.join(file), self.root());
        let words: [&OsStr; 6] = [
            "evenkeel".as_ref(),
            command.as_ref(),
            "-f".as_ref(),
            path.as_ref(),
            "--root".as_ref(),
            root.as_ref(),
        ];
        let arguments = Arguments::try_parse_from(words)
            .context("internal error in demo (please report): its command line is invalid")?;
        crate::dispatch(arguments.command).map(|_| ())
    }

    /// A watch that heals, and somebody who tampers.
    fn heal(&self) -> Result<()> {
        self.types("$ evenkeel watch --heal -f worker.yaml --root tree &")?;
        let machine = Machine::at(&RootArguments {
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
                Err(_) => bail!("internal error in demo (please report): the watch panicked"),
            }
            tampered
        })
    }

    fn tamper(&self, told: &mpsc::Receiver<Event>) -> Result<()> {
        self.types("$ echo 'server evil.example.com' >> tree/etc/chrony.conf")?;
        let path = self.root().join(CHRONY.trim_start_matches('/'));
        let mut text = std::fs::read_to_string(&path).context("cannot read the demo's file")?;
        text.push_str("server evil.example.com\n");
        std::fs::write(&path, text).context("cannot change the demo's file")?;
        loop {
            match told
                .recv_timeout(PATIENCE)
                .context("the watch did not report the drift in time")?
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
        self.types("$ evenkeel apply -f many.yaml --root tree & sleep a little; kill -9 $!")?;
        let program = std::env::current_exe().context("cannot find the path of this program")?;
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
            return tell("(the apply finished before it could be killed)");
        }
        let there = std::fs::read_dir(root.join("etc/many")).map_or(0, Iterator::count);
        tell(&self.paint.red(&format!(
            "Killed, with about {there} of {MANY} files in place."
        )))
    }

    fn resume(&self) -> Result<()> {
        self.types("$ evenkeel apply -f many.yaml --root tree")?;
        let machine = Machine::at(&RootArguments {
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
