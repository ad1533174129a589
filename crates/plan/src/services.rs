//! What a services ConfigMap asks of a Windows machine, as the same targets that a Linux machine
//! has: one plan function, one report, whatever the system.

use evenkeel_api::services::{Service, Services};

use crate::entry::{Entry, Ids, ServiceEntry};
use crate::resource::Resource;
use crate::targets::{Part, Target, Targets};

/// What must be there for `services` to hold. Only what was checked gets here, so a checksum that is
/// none cannot be.
pub fn targets(services: &Services) -> Targets {
    let mut targets = Targets::new();
    for service in &services.services {
        let entry = Entry::Service(entry(service));
        let resource = Resource::Service(service.name.clone());
        targets.insert(place("service", &service.name), whole(resource, entry));
    }
    for variable in &services.environment {
        let value = variable.value.clone();
        // Windows does not tell names apart by their case, and neither do we.
        let place = place("variable", &variable.name.to_uppercase());
        let resource = Resource::Variable(variable.name.clone());
        targets.insert(place, whole(resource, Entry::Variable { value }));
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
        targets.insert(file.path.clone(), target);
    }
    targets
}

/// A place that is no path: no path of Windows has a name before its drive.
fn place(kind: &str, name: &str) -> String {
    format!("{kind}:{name}")
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
    use std::collections::BTreeMap;

    use super::*;
    use crate::desired::{Contents, Desired};
    use crate::machine::{self, Plan, Seen};
    use crate::record::Record;

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
        let seen = Seen::imagined(&old, &nothing);
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
            let (said, around) = told(&there);
            assert_eq!(
                (said, around),
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
}
