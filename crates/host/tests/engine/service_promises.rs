//! What the engine promises of Windows services, variables and payload files, on every machine that
//! has them: the simulated one, and a real Windows.

use std::collections::BTreeMap;

use evenkeel_api::windows::services::Services;
use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::execute::{Claim, State};
use evenkeel_host::{Error, observe, verify};
use evenkeel_plan::machine::desired::{Contents, Desired};
use evenkeel_plan::machine::entry::{Activity, Entry, Hash, Ids, ServiceEntry};
use evenkeel_plan::machine::place;
use evenkeel_plan::machine::record::Record;
use evenkeel_plan::machine::targets::Targets;
use evenkeel_plan::machine::{self, Plan};
use evenkeel_plan::windows::services::{ServiceFacts, targets_on};
use serde_json::json;

pub(crate) const NAMES: [&str; 2] = ["ek-runtime", "ek-node"];
const PROXY: &str = "variable:EK_PROXY";
const WATCHED: &str = "variable:EK_WATCHED";

/// A machine with the folder of its payload, and a program that runs as a service there.
pub(crate) struct Subject<'a, H> {
    pub(crate) host: &'a H,
    /// The folder, with `/`, and there.
    pub(crate) base: &'a str,
    pub(crate) program: &'a str,
}

impl<H: Host> Subject<'_, H> {
    fn state(&self) -> State {
        State::at(&format!("{}/state", self.base)).storing_at(&format!("{}/store", self.base))
    }

    fn tool(&self) -> String {
        format!("{}/tool.txt", self.base)
    }

    fn write_tool(&self, text: &str) {
        let (disk, tool) = (self.host.disk(), self.tool());
        disk.remove(&tool).unwrap();
        disk.create(&tool, text.as_bytes(), 0, Ids::default())
            .unwrap();
    }

    fn look(&self, place: &str) -> Entry {
        self.host.disk().look(place).unwrap()
    }

    fn service(&self, name: &str) -> ServiceEntry {
        match self.look(&place::service(name)) {
            Entry::Service(found) => found,
            other => panic!("{name} is {other:?}"),
        }
    }

    fn services(&self, arguments: &str, proxy: Option<&str>) -> Services {
        let service = |name: &str, arguments: &str, dependencies: &[&str], priority: u32| {
            let command = format!("{} {arguments}", self.program);
            json!({
                "name": name, "command": command.trim(), "dependencies": dependencies,
                "bootstrap": true, "priority": priority,
            })
        };
        let services = json!([
            service(NAMES[0], "", &[], 0),
            service(NAMES[1], arguments, &[NAMES[0]], 1)
        ]);
        let checksum = Hash::of(b"tool").to_string();
        let files = json!([{"path": self.tool().replace('/', r"\"), "checksum": checksum}]);
        let variables = proxy.map(|value| json!({"name": "EK_PROXY", "value": value}));
        let variables: Vec<_> = variables.into_iter().collect();
        let data: BTreeMap<String, String> = [
            ("services", services),
            ("files", files),
            ("environmentVars", json!(variables)),
            ("watchedEnvironmentVars", json!([{"name": "EK_WATCHED"}])),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_string()))
        .into();
        Services::from_data("test", &data).unwrap().0
    }

    fn targets(&self, services: &Services, record: &Record) -> Targets {
        let commands = services.services.iter();
        let commands = commands.map(|it| (place::service(&it.name), it.command.clone()));
        let before = services.watched.iter().map(|name| {
            let place = place::variable(name);
            let entry = self.look(&place);
            (place, entry)
        });
        let facts = ServiceFacts {
            commands: commands.collect(),
            before: before.collect(),
        };
        targets_on(services, &facts, record)
    }

    fn planned(&self, services: Option<&Services>) -> Plan {
        let record = self.state().record(self.host).unwrap();
        let targets = services.map_or_else(Targets::new, |it| self.targets(it, &record));
        let nothing = Contents::default();
        let seen = observe::look(self.host.disk(), &targets, &record, &nothing).unwrap();
        machine::plan(&Desired::default(), &targets, &nothing, &seen, &record).unwrap()
    }

    fn bring(&self, services: Option<&Services>) -> evenkeel_host::Result<Plan> {
        let state = self.state();
        let claim = Claim::take(self.host, &state)?;
        let plan = self.planned(services);
        claim.apply(&plan, &Contents::default(), &mut |_| {})?;
        Ok(plan)
    }

    fn activities(&self) -> [Activity; 2] {
        NAMES.map(|name| self.service(name).activity)
    }
}

fn set(value: &str) -> Entry {
    Entry::Variable {
        value: value.to_owned(),
        expands: false,
    }
}

fn actions(plan: &Plan) -> Vec<String> {
    plan.actions.iter().map(ToString::to_string).collect()
}

/// Brought there, changed, tampered with, and back to what was there before.
pub(crate) fn there_and_back<H: Host>(subject: &Subject<'_, H>) {
    let disk = subject.host.disk();
    subject.write_tool("tool");
    disk.put(WATCHED, &set("theirs")).unwrap();
    let first = subject.services("--v=1", Some("http://proxy"));
    let plan = subject.bring(Some(&first)).unwrap();
    assert_eq!(actions(&plan), ["drain", "reboot"]);
    assert_eq!(subject.activities(), [Activity::Running; 2]);
    assert_eq!(subject.look(PROXY), set("http://proxy"));
    assert!(subject.planned(Some(&first)).steps.is_empty());

    let second = subject.services("--v=2", Some("http://proxy"));
    let plan = subject.bring(Some(&second)).unwrap();
    assert_eq!(actions(&plan), ["restart ek-node"]);
    let command = subject.service("ek-node").command;
    assert_eq!(command, format!("{} --v=2", subject.program));
    assert_eq!(subject.activities(), [Activity::Running; 2]);

    // A payload file comes back from the store, and is left to whoever brought it in the end.
    subject.write_tool("tampered");
    subject.bring(Some(&second)).unwrap();
    assert_eq!(disk.read(&subject.tool()).unwrap().unwrap(), b"tool");

    disk.put(WATCHED, &set("tampered")).unwrap();
    subject.bring(None).unwrap();
    for name in NAMES {
        assert_eq!(subject.look(&place::service(name)), Entry::Absent);
    }
    assert_eq!(subject.look(PROXY), Entry::Absent);
    assert_eq!(subject.look(WATCHED), set("theirs"));
    assert_eq!(disk.read(&subject.tool()).unwrap().unwrap(), b"tool");
    disk.put(WATCHED, &Entry::Absent).unwrap();
}

/// A service that does not start again after everything was written: all of it is undone.
/// `unfit` is a program that cannot run.
pub(crate) fn undone<H: Host>(subject: &Subject<'_, H>, unfit: &str, refuse: impl Fn()) {
    subject.write_tool("tool");
    let mut broken = subject.services("--v=1", Some("http://proxy"));
    subject.bring(Some(&broken)).unwrap();
    let before = subject.state().record(subject.host).unwrap().targets();
    unfit.clone_into(&mut broken.services[1].command);
    refuse();
    let error = subject.bring(Some(&broken)).unwrap_err();
    assert!(matches!(error, Error::Undone { .. }), "{error:?}");
    let said = error.with_causes();
    assert!(said.contains("restart ek-node failed"), "{said}");
    assert_eq!(subject.activities(), [Activity::Running; 2]);
    let record = subject.state().record(subject.host).unwrap();
    assert_eq!(record.targets(), before);
    let nothing = Contents::default();
    assert_eq!(verify::verify(subject.host, &before, &nothing), []);
    subject.bring(None).unwrap();
}

#[cfg(not(windows))]
mod on_a_simulated_machine {
    use evenkeel_host::simulated::SimulatedHost;

    use super::*;

    fn subject(host: &SimulatedHost) -> Subject<'_, SimulatedHost> {
        Subject {
            host,
            base: "/k",
            program: r"C:\k\service.exe",
        }
    }

    fn machine() -> SimulatedHost {
        let host = SimulatedHost::new();
        host.disk()
            .make_folder("/k", 0o755, Ids::default())
            .unwrap();
        host
    }

    #[test]
    fn services_variables_and_files_are_brought_there_and_back() {
        there_and_back(&subject(&machine()));
    }

    #[test]
    fn a_service_that_does_not_start_again_undoes_everything() {
        let host = machine();
        undone(&subject(&host), r"C:\k\unfit.exe", || {
            host.services().refuse("ek-node");
        });
    }

    /// Killed after any change, or without power at any instant: the old services or the new ones.
    #[test]
    fn killed_or_cut_at_any_change_services_are_the_old_or_the_new_ones() {
        let base = machine();
        let before = subject(&base);
        before.write_tool("tool");
        let old = before.services("--v=1", Some("http://old"));
        let new = before.services("--v=2", None);
        before.bring(Some(&old)).unwrap();
        base.settle();
        let outside = |host: &SimulatedHost| {
            let mut tree = host.tree();
            tree.retain(|path, _| !path.starts_with("/k/state") && !path.starts_with("/k/store"));
            tree
        };
        let after = base.snapshot();
        subject(&after).bring(Some(&new)).unwrap();
        let ends = [outside(&base), outside(&after)];
        assert_ne!(ends[0], ends[1]);
        let changes = after.changes();
        let mut random = 7_usize;
        for stop in 0..changes {
            for cut in [false, true] {
                let host = base.snapshot();
                host.stop_after(stop);
                assert!(
                    subject(&host).bring(Some(&new)).is_err(),
                    "stopped after {stop}"
                );
                let next = if cut {
                    host.cut(&mut |ways| {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        (random >> 33) % ways
                    })
                } else {
                    host.reborn()
                };
                Claim::take(&next, &subject(&next).state()).unwrap();
                let found = outside(&next);
                assert!(
                    ends.contains(&found),
                    "stopped after {stop}, cut: {cut}: {found:#?}"
                );
            }
        }
        assert!(changes > 10, "{changes}");
    }
}
