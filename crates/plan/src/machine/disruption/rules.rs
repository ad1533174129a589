//! What a change needs around it: one table, read from the top, where the first row that matches
//! decides. To spare a file the reboot, add a row.

use evenkeel_api::machine::disruption_policy::{DisruptionPolicy, PolicyAction};

use crate::machine::disruption::registries;
use crate::machine::disruption::{Disruption, UnitAction};
use crate::machine::entry::Entry;
use crate::machine::resource::Resource;
use crate::machine::step::Step;
use crate::machine::targets::Part;

/// The service that reads container registries and signature policies.
const CRIO: &str = "crio.service";

/// A row of the table.
struct Rule {
    /// What changed.
    what: What,
    /// What that needs.
    needs: Needs,
    /// Why that is enough, for whoever wants to add a row.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for the reader of the table, and its test")
    )]
    because: &'static str,
}

enum What {
    /// The SSH keys of a user.
    Keys,
    /// A Windows service.
    Service,
    /// A file of the payload of a Windows machine.
    Payload,
    Path(&'static str),
    Anything,
}

enum Needs {
    Nothing,
    /// The service itself, or those that run the file, are restarted.
    RestartIt,
    Reload(&'static str),
    /// A reload, after a drain unless the change is one of the safe ones.
    ReloadRegistries(&'static str),
    Reboot,
}

const RULES: &[Rule] = &[
    Rule {
        what: What::Keys,
        needs: Needs::Nothing,
        because: "sshd reads the keys at each login",
    },
    Rule {
        what: What::Path("/etc/kubernetes/kubelet-ca.crt"),
        needs: Needs::Nothing,
        because: "the kubelet reads its client CA again when it changes",
    },
    Rule {
        what: What::Path("/var/lib/kubelet/config.json"),
        needs: Needs::Nothing,
        because: "the pull secret is read at each pull",
    },
    Rule {
        what: What::Path("/etc/ostree/auth.json"),
        needs: Needs::Nothing,
        because: "rpm-ostree and bootc read it at each pull",
    },
    Rule {
        what: What::Path("/etc/machine-config-daemon/no-reboot/containers-gpg.pub"),
        needs: Needs::Reload(CRIO),
        because: "the runtime reads signing keys on reload",
    },
    Rule {
        what: What::Path("/etc/containers/policy.json"),
        needs: Needs::Reload(CRIO),
        because: "the runtime reads the signature policy on reload",
    },
    Rule {
        what: What::Path("/etc/containers/registries.conf"),
        needs: Needs::ReloadRegistries(CRIO),
        because: "the runtime reads registries on reload; pods may lose an image source, so they move first unless nothing is taken away",
    },
    Rule {
        what: What::Service,
        needs: Needs::RestartIt,
        because: "a service takes a new command when it starts",
    },
    Rule {
        what: What::Payload,
        needs: Needs::RestartIt,
        because: "a program takes a new file when it starts",
    },
    Rule {
        what: What::Anything,
        needs: Needs::Reboot,
        because: "nothing else is known to be picked up by a running machine",
    },
];

/// What everything needs that no row spares.
pub(crate) const REBOOT: &[UnitAction] = &[UnitAction::Drain, UnitAction::Reboot];

/// What a step needs around it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NeededDisruption {
    /// In order.
    pub(crate) actions: Vec<UnitAction>,
    /// What a person should know.
    pub(crate) warning: Option<String>,
    /// The entry of the policy that decided; nothing if the table here did.
    pub(crate) policy: Option<String>,
}

/// What `step` needs around it: what `policy` says of it, and where that says nothing, the table.
///
/// `old` and `new` are the contents where the rule looks at them; nothing there is empty contents.
pub(crate) fn needs(
    policy: &DisruptionPolicy,
    step: &Step,
    old: &[u8],
    new: &[u8],
) -> NeededDisruption {
    if let Some((entry, actions)) = by_policy(policy, &step.resource) {
        return NeededDisruption {
            actions,
            warning: None,
            policy: Some(entry),
        };
    }
    let (actions, warning) = by_table(step, old, new);
    NeededDisruption {
        actions,
        warning,
        policy: None,
    }
}

/// The entry of `policy` for `resource`, and what it asks for. The nearest says: of a file that has a row of its own here, a
/// folder above it says nothing.
fn by_policy(policy: &DisruptionPolicy, resource: &Resource) -> Option<(String, Vec<UnitAction>)> {
    let has_row = |path: &str| {
        let is_its = |rule: &Rule| matches!(rule.what, What::Path(its) if its == path);
        RULES.iter().any(is_its)
    };
    let (entry, actions) = match resource {
        Resource::File(path) => {
            let (entry, actions) = policy.for_file(path)?;
            // Who asks for a reboot of everything means everything.
            let is_all = entry == "/" && actions.contains(&PolicyAction::Reboot);
            (entry == path || is_all || !has_row(path)).then_some(())?;
            (format!("files[{entry}]"), actions)
        }
        Resource::Unit(name) => (format!("units[{name}]"), policy.units.get(name)?.as_slice()),
        Resource::AuthorisedKeys(_) => ("sshkey".to_owned(), policy.ssh_keys.as_deref()?),
        _ => return None,
    };
    let actions = actions.iter().flat_map(|action| match action {
        PolicyAction::Drain => vec![UnitAction::Drain],
        PolicyAction::DaemonReload => vec![UnitAction::DaemonReload],
        PolicyAction::Reload(unit) => vec![UnitAction::Reload(unit.clone())],
        PolicyAction::Restart(unit) => vec![UnitAction::Restart(unit.clone())],
        PolicyAction::Reboot => REBOOT.to_vec(),
    });
    Some((entry, actions.collect()))
}

fn by_table(step: &Step, old: &[u8], new: &[u8]) -> (Vec<UnitAction>, Option<String>) {
    let Step { resource, part, .. } = step;
    let rule = RULES.iter().find(|rule| match (&rule.what, resource) {
        (What::Anything, _)
        | (What::Keys, Resource::AuthorisedKeys(_))
        | (What::Service, Resource::Service(_)) => true,
        (What::Payload, _) => matches!(part, Part::Payload(_)),
        (What::Path(path), Resource::File(changed)) => path == changed,
        _ => false,
    });
    match rule.map(|rule| &rule.needs) {
        Some(Needs::Nothing) => (vec![], None),
        Some(Needs::RestartIt) => (restarts(step), None),
        Some(Needs::Reload(unit)) => (vec![UnitAction::Reload((*unit).to_owned())], None),
        Some(Needs::ReloadRegistries(unit)) => {
            let reload = UnitAction::Reload((*unit).to_owned());
            match registries::judge(old, new) {
                registries::SourceChange::Safe => (vec![reload], None),
                registries::SourceChange::Unsafe => (vec![UnitAction::Drain, reload], None),
                registries::SourceChange::Unreadable(why) => (
                    vec![UnitAction::Drain, reload],
                    Some(format!(
                        "{resource}: {why}; it counts as an unsafe change (drain, then reload)"
                    )),
                ),
            }
        }
        Some(Needs::Reboot) | None => (REBOOT.to_vec(), None),
    }
}

/// What goes away is not restarted, nor what only comes: it starts in its own step.
fn restarts(step: &Step) -> Vec<UnitAction> {
    let spared = match (&step.before, &step.after) {
        (_, Entry::Absent) => true,
        (Entry::Service(old), Entry::Service(new)) => !old.needs_restart_for(new),
        (before, Entry::Service(_)) => *before == Entry::Absent,
        _ => false,
    };
    let services = match (&step.resource, &step.part) {
        _ if spared => &[],
        (Resource::Service(name), _) => std::slice::from_ref(name),
        (_, Part::Payload(services)) => services,
        _ => &[],
    };
    services.iter().cloned().map(UnitAction::Restart).collect()
}

/// The greatest disruption among `actions`.
pub(crate) fn greatest(actions: &[UnitAction]) -> Disruption {
    actions
        .iter()
        .map(UnitAction::disruption)
        .max()
        .unwrap_or_default()
}

/// Whether the rule for `resource` looks at contents, so that they must be at hand.
pub fn looks_at_contents(resource: &Resource) -> bool {
    RULES.iter().any(|rule| {
        matches!((&rule.what, &rule.needs, resource),
            (What::Path(path), Needs::ReloadRegistries(_), Resource::File(changed)) if path == changed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Case<'a> = (Resource, &'a str, &'a str, &'a str, &'a [&'a str], &'a str);

    fn file(path: &str) -> Resource {
        Resource::File(path.to_owned())
    }

    fn step(resource: &Resource) -> Step {
        Step {
            resource: resource.clone(),
            part: Part::Whole,
            path: String::new(),
            before: Entry::Absent,
            after: Entry::Other,
        }
    }

    fn words(resource: &Resource, old: &str, new: &str) -> (String, Vec<String>) {
        let step = step(resource);
        let need = needs(
            &DisruptionPolicy::default(),
            &step,
            old.as_bytes(),
            new.as_bytes(),
        );
        let actions = need.actions;
        (
            greatest(&actions).to_string(),
            actions.iter().map(ToString::to_string).collect(),
        )
    }

    /// Covers M13.
    #[test]
    fn each_change_disrupts_as_much_as_it_must_and_no_more() {
        let reboot = &["drain", "reboot"][..];
        let reload = &["reload crio.service"][..];
        let keys = Resource::AuthorisedKeys("core".to_owned());
        let digest = "[[registry]]\nprefix = \"a\"\nmirror-by-digest-only = true\n";
        let registries = "/etc/containers/registries.conf";
        let table: &[Case<'_>] = &[
            (keys, "", "", "none", &[], "sshd reads keys at each login"),
            (
                file("/etc/kubernetes/kubelet-ca.crt"),
                "a",
                "b",
                "none",
                &[],
                "the kubelet's client CA",
            ),
            (
                file("/var/lib/kubelet/config.json"),
                "a",
                "b",
                "none",
                &[],
                "the pull secret",
            ),
            (
                file("/etc/ostree/auth.json"),
                "a",
                "b",
                "none",
                &[],
                "the pull secret of the system's own images",
            ),
            (
                file("/etc/containers/policy.json"),
                "a",
                "b",
                "reload",
                reload,
                "signature policy",
            ),
            (
                file("/etc/machine-config-daemon/no-reboot/containers-gpg.pub"),
                "a",
                "b",
                "reload",
                reload,
                "signing keys",
            ),
            (
                file(registries),
                "",
                digest,
                "reload",
                reload,
                "a safe addition",
            ),
            (
                file(registries),
                digest,
                "",
                "drain",
                &["drain", "reload crio.service"],
                "a registry taken away",
            ),
            (
                file(registries),
                digest,
                digest,
                "reload",
                reload,
                "an edit that parses the same",
            ),
            (
                file(registries),
                "",
                "[[",
                "drain",
                &["drain", "reload crio.service"],
                "not TOML",
            ),
            (
                file("/etc/kubernetes/kubelet-ca.crt.bak"),
                "a",
                "b",
                "reboot",
                reboot,
                "a path that only begins the same",
            ),
            (
                file("/etc/kubernetes/kubelet.conf"),
                "a",
                "b",
                "reboot",
                reboot,
                "the kubelet's configuration",
            ),
            (
                file("/var/lib/kubelet/config.yaml"),
                "a",
                "b",
                "reboot",
                reboot,
                "not the pull secret",
            ),
            (
                file("/etc/containers/registries.conf.d/x.conf"),
                "",
                digest,
                "reboot",
                reboot,
                "a folder that no rule names",
            ),
            (
                file("/etc/containers/policy.json/x"),
                "",
                "",
                "reboot",
                reboot,
                "below a path that a rule names",
            ),
            (
                file("/etc/containers/storage.conf"),
                "a",
                "b",
                "reboot",
                reboot,
                "storage needs a fresh start",
            ),
            (
                file("/etc/machine-config-daemon/no-reboot/other"),
                "a",
                "b",
                "reboot",
                reboot,
                "the folder alone spares nothing",
            ),
            (
                file("/etc/chrony.conf"),
                "a",
                "b",
                "reboot",
                reboot,
                "any other file",
            ),
            (
                file("/usr/local/bin/x"),
                "",
                "b",
                "reboot",
                reboot,
                "a new program",
            ),
            (
                Resource::Unit("kubelet.service".into()),
                "",
                "",
                "reboot",
                reboot,
                "units run anew after a boot",
            ),
            (
                Resource::Unit("crio.service".into()),
                "",
                "",
                "reboot",
                reboot,
                "also the runtime's own",
            ),
            (
                Resource::Service("kubelet".into()),
                "",
                "",
                "restart",
                &["restart kubelet"],
                "a Windows service starts with its new command",
            ),
            (
                Resource::Variable("HTTP_PROXY".into()),
                "",
                "",
                "reboot",
                reboot,
                "services see a Machine variable after a boot",
            ),
            (
                Resource::OsImage,
                "",
                "",
                "reboot",
                reboot,
                "a new image is booted",
            ),
            (
                Resource::KernelArguments,
                "",
                "",
                "reboot",
                reboot,
                "the kernel reads them at boot",
            ),
        ];
        for (resource, old, new, disruption, actions, because) in table {
            let expected = (
                (*disruption).to_owned(),
                actions.iter().map(ToString::to_string).collect(),
            );
            assert_eq!(words(resource, old, new), expected, "{resource}: {because}");
        }
    }

    /// Covers O09.
    #[test]
    fn a_policy_overrides_and_extends_the_table_and_the_nearest_entry_says() {
        let none = r#"[{"type": "None"}]"#;
        let text = format!(
            r#"{{
            "files": [
                {{"path": "/etc", "actions": [{{"type": "Drain"}}]}},
                {{"path": "/etc/chrony.d", "actions": {none}}},
                {{"path": "/etc/containers/policy.json", "actions": [{{"type": "Reboot"}}]}}
            ],
            "units": [{{"name": "a.service", "actions": [
                {{"type": "DaemonReload"}},
                {{"type": "Restart", "restart": {{"serviceName": "a.service"}}}}
            ]}}],
            "sshkey": {{"actions": [{{"type": "Drain"}}]}}
        }}"#
        );
        let (policy, problems) = DisruptionPolicy::parse(&text);
        assert_eq!(problems, []);
        let unit = |name: &str| Resource::Unit(name.to_owned());
        let keys = Resource::AuthorisedKeys("core".to_owned());
        let drain = &["drain"][..];
        let reboot = &["drain", "reboot"][..];
        for (resource, actions, decided) in [
            (file("/etc/hosts"), drain, Some("files[/etc]")),
            (file("/etc/chrony.d/x/y"), &[], Some("files[/etc/chrony.d]")),
            (file("/etc/chrony.dx"), drain, Some("files[/etc]")),
            (
                file("/etc/containers/policy.json"),
                reboot,
                Some("files[/etc/containers/policy.json]"),
            ),
            // Nearer than a folder is a row of the table.
            (file("/etc/kubernetes/kubelet-ca.crt"), &[], None),
            (file("/opt/x"), reboot, None),
            (
                unit("a.service"),
                &["daemon-reload", "restart a.service"],
                Some("units[a.service]"),
            ),
            (unit("b.service"), reboot, None),
            (keys, drain, Some("sshkey")),
            (Resource::OsImage, reboot, None),
        ] {
            let need = needs(&policy, &step(&resource), b"a", b"b");
            let said: Vec<String> = need.actions.iter().map(ToString::to_string).collect();
            assert_eq!(said, actions, "{resource}");
            assert_eq!(need.policy.as_deref(), decided, "{resource}");
        }
        // Nobody knows what was meant: everything reboots.
        let (careful, problems) = DisruptionPolicy::parse("{ files: [");
        assert_eq!(problems.len(), 1);
        for resource in [file("/etc/containers/policy.json"), file("/opt/x")] {
            let need = needs(&careful, &step(&resource), b"a", b"b");
            assert!(need.actions.contains(&UnitAction::Reboot), "{resource}");
        }
    }

    #[test]
    fn every_row_says_why_and_the_last_one_catches_everything() {
        assert!(RULES.iter().all(|rule| !rule.because.is_empty()));
        assert!(matches!(
            RULES.last().map(|rule| &rule.what),
            Some(What::Anything)
        ));
    }

    /// Covers M14.
    #[test]
    fn registries_that_do_not_parse_are_warned_about_and_never_refused() {
        let (actions, warning) = by_table(
            &step(&file("/etc/containers/registries.conf")),
            b"",
            b"a = [",
        );
        assert_eq!(actions.first(), Some(&UnitAction::Drain));
        assert!(warning.is_some_and(|text| text.contains("the new contents are not TOML")));
    }
}
