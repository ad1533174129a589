//! What a services ConfigMap asks of a Windows machine, as the same targets that a Linux machine
//! has: one plan function, one report, whatever the system.

use std::collections::BTreeMap;

use evenkeel_api::names::windows::{CONTAINERD_PIPE, CONTAINERD_SERVICE, MANAGED_TAG};
use evenkeel_api::windows::services::{Service, Services};

use crate::machine::entry::{Activity, Entry, Ids, ServiceEntry, Start};
use crate::machine::place;
use crate::machine::record::Record;
use crate::machine::resource::Resource;
use crate::machine::targets::{Part, Target, Targets};

/// How a command names a pipe that it connects to.
const PIPE_URL: &str = "npipe://";
/// Who every service of ours runs as.
pub const ACCOUNT: &str = "LocalSystem";

/// What must be known of a machine before the targets can be named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceFacts {
    /// The commands of services with every variable in its place, by the service's place. A service
    /// whose command is not known yet stays as it is.
    pub commands: BTreeMap<String, String>,
    /// What watched variables were before we came, by their place.
    pub before: BTreeMap<String, Entry>,
}

/// What must be there for `services` to hold, on no machine in particular: variables of commands are
/// states of their own. For comparing. Only what was checked gets here, so a checksum that is none
/// cannot be.
pub fn targets(services: &Services) -> Targets {
    gather(services, |service| Some(entry(service)))
}

/// What must be there for `services` to hold, on a machine with these `facts` and this `record`.
pub fn targets_on(services: &Services, facts: &ServiceFacts, record: &Record) -> Targets {
    let mut targets = gather(services, |service| {
        let place = place::service(&service.name);
        match facts.commands.get(&place) {
            Some(command) => Some(ServiceEntry {
                command: command.clone(),
                variables: BTreeMap::new(),
                ..entry(service)
            }),
            None => match &record.owned.get(&place)?.entry {
                Entry::Service(owned) => Some(owned.clone()),
                _ => None,
            },
        }
    });
    for name in &services.watched {
        let place = place::variable(name);
        let before = match record.owned.get(&place) {
            Some(owned) => Some(owned.before.clone()),
            None => facts.before.get(&place).cloned(),
        };
        if let (false, Some(before)) = (targets.contains_key(&place), before) {
            targets.insert(place, whole(Resource::Variable(name.clone()), before));
        }
    }
    targets
}

fn gather(services: &Services, entry: impl Fn(&Service) -> Option<ServiceEntry>) -> Targets {
    let mut targets = Targets::new();
    for (order, service) in (0..).zip(services.creation_order()) {
        if let Some(entry) = entry(service) {
            let target = Target {
                resource: Resource::Service(service.name.clone()),
                part: Part::Service(order),
                entry: Entry::Service(entry),
            };
            targets.insert(place::service(&service.name), target);
        }
    }
    for variable in &services.environment {
        let resource = Resource::Variable(variable.name.clone());
        let entry = Entry::Variable {
            value: variable.value.clone(),
            expands: false,
        };
        targets.insert(place::variable(&variable.name), whole(resource, entry));
    }
    for file in &services.files {
        let Ok(hash) = file.checksum.parse() else {
            continue;
        };
        let users = services
            .services
            .iter()
            .filter(|service| runs(service, &file.path));
        let target = Target {
            resource: Resource::File(file.path.clone()),
            part: Part::Payload(users.map(|service| service.name.clone()).collect()),
            entry: Entry::File {
                hash,
                mode: 0,
                owner: Ids::default(),
            },
        };
        targets.insert(place::windows_file(&file.path), target);
    }
    targets
}

/// The description of a service of ours: the tag by which it is known when all else is lost.
pub fn description(name: &str) -> String {
    format!("{MANAGED_TAG} {name}")
}

/// The pipes that must be served before a service with this command starts: those it names, or else
/// containerd's own if it depends on that.
pub fn pipes_of(command: &str, dependencies: &[String]) -> Vec<String> {
    let named: Vec<String> = command
        .split([' ', '"', '\'', '=', ','])
        .filter_map(|word| word.strip_prefix(PIPE_URL))
        .map(|pipe| pipe.replace('/', r"\"))
        .collect();
    let runs_on_containerd = |it: &String| it.eq_ignore_ascii_case(CONTAINERD_SERVICE);
    if named.is_empty() && dependencies.iter().any(runs_on_containerd) {
        return vec![CONTAINERD_PIPE.to_owned()];
    }
    named
}

fn whole(resource: Resource, entry: Entry) -> Target {
    Target {
        resource,
        part: Part::Whole,
        entry,
    }
}

fn entry(service: &Service) -> ServiceEntry {
    let node = service
        .node_variables
        .iter()
        .map(|it| (it.name.clone(), it.json_path.clone()));
    let scripts = service
        .powershell_variables
        .iter()
        .map(|it| (it.name.clone(), it.path.clone()));
    ServiceEntry {
        command: service.command.clone(),
        dependencies: service.dependencies.clone(),
        variables: node.chain(scripts).collect(),
        start: Start::Automatic,
        description: description(&service.name),
        account: ACCOUNT.to_owned(),
        activity: Activity::Running,
    }
}

/// Whether a service runs the file, or a script of its own is that file.
fn runs(service: &Service, path: &str) -> bool {
    let path = path.to_lowercase();
    let scripts = service
        .powershell_variables
        .iter()
        .map(|variable| &variable.path);
    std::iter::once(&service.command)
        .chain(scripts)
        .any(|text| text.to_lowercase().contains(&path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::desired::{Contents, Desired};
    use crate::machine::record::Record;
    use crate::machine::{self, MachineSnapshot, Plan};

    const KUBELET: &str = r"C:\k\kubelet.exe";

    fn services(command: &str, checksum: char, proxy: Option<&str>) -> Services {
        let service = |name: &str, command: &str, dependencies: &[&str]| {
            serde_json::json!({
                "name": name, "command": command, "dependencies": dependencies,
                "bootstrap": true, "priority": dependencies.len(),
            })
        };
        let list = serde_json::json!([
            service("containerd", r"C:\k\containerd.exe", &[]),
            service("kubelet", command, &["containerd"]),
        ]);
        let file =
            serde_json::json!([{"path": KUBELET, "checksum": checksum.to_string().repeat(64)}]);
        let variables =
            proxy.map(|value| serde_json::json!([{"name": "HTTP_PROXY", "value": value}]));
        let data = [
            ("services", Some(list)),
            ("files", Some(file)),
            ("environmentVars", variables),
        ];
        let data = data
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?.to_string())));
        let (services, _) = Services::from_data("test", &data.collect::<BTreeMap<_, _>>()).unwrap();
        services
    }

    fn plan(old: &Services, new: &Services) -> Plan {
        let (old, new) = (targets(old), targets(new));
        let nothing = Contents::default();
        let seen = MachineSnapshot::imagined(&old, &nothing);
        let record = Record::imagined(&Desired::default(), &old);
        machine::plan(&Desired::default(), &new, &nothing, &seen, &record).unwrap()
    }

    fn told(plan: &Plan) -> (Vec<String>, Vec<String>) {
        let changes = plan.changes.iter().map(|change| {
            format!(
                "{} {}: {} [{}]",
                change.action, change.resource, change.why, change.disruption
            )
        });
        (
            changes.collect(),
            plan.actions.iter().map(ToString::to_string).collect(),
        )
    }

    /// Covers X01.
    #[test]
    fn a_windows_machine_has_the_same_kind_of_plan() {
        let base = services(KUBELET, 'a', None);
        assert_eq!(told(&plan(&base, &base)), (vec![], vec![]));
        let cases = [
            (
                services(&format!("{KUBELET} --v=4"), 'a', None),
                vec!["update service kubelet: command differs [restart]"],
                vec!["restart kubelet"],
            ),
            (
                services(KUBELET, 'b', None),
                vec![r"update file C:\k\kubelet.exe: contents differ [restart]"],
                vec!["restart kubelet"],
            ),
            (
                services(KUBELET, 'b', Some("http://user:secret@proxy:3128")),
                vec![
                    r"update file C:\k\kubelet.exe: contents differ [restart]",
                    "create environment variable HTTP_PROXY: missing [reboot]",
                ],
                vec!["drain", "reboot"],
            ),
        ];
        for (new, changes, actions) in cases {
            let there = plan(&base, &new);
            let (said, context) = told(&there);
            assert_eq!(
                (said, context),
                (
                    changes.iter().map(ToString::to_string).collect(),
                    actions.iter().map(ToString::to_string).collect()
                )
            );
            // Undoing a step is the same with its two sides exchanged, as everywhere.
            let back = plan(&new, &base);
            let exchanged = |plan: &Plan| {
                let mut pairs: Vec<_> = plan
                    .steps
                    .iter()
                    .map(|step| {
                        (
                            step.path.clone(),
                            format!("{:?}", step.before),
                            format!("{:?}", step.after),
                        )
                    })
                    .collect();
                pairs.sort();
                pairs
            };
            let mut turned: Vec<_> = exchanged(&back)
                .into_iter()
                .map(|(path, before, after)| (path, after, before))
                .collect();
            turned.sort();
            assert_eq!(exchanged(&there), turned);
        }
    }

    #[test]
    fn a_service_that_goes_is_not_restarted_and_its_value_is_never_told() {
        let proxied = services(KUBELET, 'a', Some("http://user:secret@proxy:3128"));
        let changed = services(KUBELET, 'a', Some("http://user:other@proxy:3128"));
        let (changes, _) = told(&plan(&proxied, &changed));
        assert_eq!(
            changes,
            ["update environment variable HTTP_PROXY: value differs [reboot]"]
        );
        let mut fewer = services(KUBELET, 'a', None);
        fewer
            .services
            .retain(|service| service.name == "containerd");
        let (changes, actions) = told(&plan(&services(KUBELET, 'a', None), &fewer));
        assert_eq!(
            changes,
            ["delete service kubelet: should not be there [none]"]
        );
        assert_eq!(actions, Vec::<String>::new());
    }

    fn at_home(services: &Services, commands: &[(&str, &str)]) -> ServiceFacts {
        let resolved = commands
            .iter()
            .map(|(name, command)| (place::service(name), (*command).to_owned()));
        let watched = services
            .watched
            .iter()
            .map(|name| (place::variable(name), Entry::Absent));
        ServiceFacts {
            commands: resolved.collect(),
            before: watched.collect(),
        }
    }

    #[test]
    fn services_come_in_their_order_after_all_else_and_go_the_other_way_round() {
        let new = services(KUBELET, 'a', Some("http://proxy:3128"));
        let nothing = Contents::default();
        let empty = Targets::new();
        let come = machine::plan(
            &Desired::default(),
            &targets(&new),
            &nothing,
            &MachineSnapshot::imagined(&empty, &nothing),
            &Record::default(),
        )
        .unwrap();
        let places = |plan: &Plan| -> Vec<String> {
            let steps = plan.steps.iter().filter(|step| step.part != Part::Folder);
            steps.map(|step| step.path.clone()).collect()
        };
        assert_eq!(
            places(&come),
            [
                "c:/k/kubelet.exe",
                "variable:HTTP_PROXY",
                "service:containerd",
                "service:kubelet"
            ]
        );
        let Entry::Service(kubelet) = &come.steps.last().unwrap().after else {
            panic!("{:?}", come.steps)
        };
        assert_eq!(kubelet.dependencies, ["containerd"]);
        assert_eq!(kubelet.description, "OpenShift managed kubelet");
        assert_eq!(
            (kubelet.start, kubelet.activity),
            (Start::Automatic, Activity::Running)
        );
        let seen = MachineSnapshot::imagined(&targets(&new), &nothing);
        let go = machine::plan(&Desired::default(), &empty, &nothing, &seen, &come.record);
        // The payload is taken away by whoever brought it.
        assert_eq!(
            places(&go.unwrap()),
            [
                "service:kubelet",
                "service:containerd",
                "variable:HTTP_PROXY"
            ]
        );
    }

    #[test]
    fn a_command_that_is_not_known_yet_leaves_its_service_as_it_is() {
        let services = services(KUBELET, 'a', None);
        let first = at_home(
            &services,
            &[("containerd", "c.exe"), ("kubelet", "old.exe")],
        );
        let targets = targets_on(&services, &first, &Record::default());
        let record = Record::imagined(&Desired::default(), &targets);
        let later = at_home(&services, &[("containerd", "c.exe")]);
        assert_eq!(targets_on(&services, &later, &record), targets);
        let never = targets_on(&services, &later, &Record::default());
        assert!(!never.contains_key("service:kubelet"), "{never:?}");
    }

    #[test]
    fn a_watched_variable_that_is_not_declared_is_as_it_was_before_we_came() {
        let mut services = services(KUBELET, 'a', None);
        services.watched = vec!["No_Proxy".to_owned()];
        let theirs = Entry::Variable {
            value: "theirs".to_owned(),
            expands: true,
        };
        let mut facts = ServiceFacts::default();
        facts
            .before
            .insert(place::variable("NO_PROXY"), theirs.clone());
        let first = targets_on(&services, &facts, &Record::default());
        assert_eq!(first["variable:NO_PROXY"].entry, theirs);
        let seen = MachineSnapshot::imagined(&first, &Contents::default());
        let plan = |targets: &Targets, record: &Record| {
            let nothing = Contents::default();
            machine::plan(&Desired::default(), targets, &nothing, &seen, record).unwrap()
        };
        let record = plan(&first, &Record::default()).record;
        // Declared, and then no longer: what was there counts, not what we made of it.
        services.environment = vec![evenkeel_api::windows::services::Variable {
            name: "NO_PROXY".to_owned(),
            value: "ours".to_owned(),
        }];
        let declared = targets_on(&services, &facts, &record);
        let record = plan(&declared, &record).record;
        services.environment.clear();
        let again = targets_on(&services, &ServiceFacts::default(), &record);
        assert_eq!(again["variable:NO_PROXY"].entry, theirs);
    }

    #[test]
    fn a_pipe_is_known_by_the_command_or_by_what_it_depends_on() {
        let on_containerd = ["Containerd".to_owned()];
        let other = r#"C:\k\kubelet.exe --endpoint="npipe:////./pipe/other" --v=2"#;
        assert_eq!(pipes_of(other, &on_containerd), [r"\\.\pipe\other"]);
        let plain = r"C:\k\kubelet.exe";
        let own = r"\\.\pipe\containerd-containerd";
        assert_eq!(pipes_of(plain, &on_containerd), [own]);
        assert!(pipes_of(r"C:\k\kube-proxy.exe", &["kubelet".to_owned()]).is_empty());
    }
}
