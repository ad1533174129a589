//! Which unit of systemd runs a machine's kubelet, and where the kubelet has its folder. Distributions differ in both; what
//! somebody has set is not asked about.

/// Units that run a kubelet, and the folder of each.
const KNOWN: [(&str, &str); 8] = [
    ("kubelet.service", FOLDER),
    ("k3s-agent.service", FOLDER),
    ("k3s.service", FOLDER),
    ("rke2-agent.service", FOLDER),
    ("rke2-server.service", FOLDER),
    ("k0sworker.service", "/var/lib/k0s/kubelet"),
    ("k0scontroller.service", "/var/lib/k0s/kubelet"),
    (
        "snap.microk8s.daemon-kubelite.service",
        "/var/snap/microk8s/common/var/lib/kubelet",
    ),
];
/// The folder of a kubelet that was told of no other.
const FOLDER: &str = "/var/lib/kubelet";

/// The kubelet of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubelet {
    /// The unit of systemd that runs it.
    pub unit: String,
    /// Its folder.
    pub folder: String,
}

/// What was set; nothing is found out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeletSettings {
    /// The unit of systemd that runs the kubelet.
    pub unit: Option<String>,
    /// Its folder.
    pub folder: Option<String>,
}

impl KubeletSettings {
    /// The kubelet, by which units run; `before` is what it was found to be. One that is down for a while is not taken for
    /// another, and of several the first known one counts.
    pub fn find(&self, before: Option<&Kubelet>, runs: impl Fn(&str) -> bool) -> Kubelet {
        let found = || {
            let before = before.map(|it| it.unit.as_str());
            let known = KNOWN.iter().map(|(unit, _)| *unit);
            let running = before.into_iter().chain(known).find(|unit| runs(unit));
            running.or(before).unwrap_or(KNOWN[0].0).to_owned()
        };
        let unit = self.unit.clone().unwrap_or_else(found);
        let folder = self.folder.clone().unwrap_or_else(|| {
            let known = KNOWN.iter().find(|(name, _)| *name == unit);
            known.map_or(FOLDER, |(_, folder)| folder).to_owned()
        });
        Kubelet { unit, folder }
    }
}

/// Reads the name of a unit, with or without `.service`; empty is nothing.
pub fn unit_setting(text: &str) -> Result<Option<String>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    let name = text.strip_suffix(".service").unwrap_or(text);
    if name.is_empty() || !name.chars().all(fits) {
        return Err("this is no name of a service: give one like k3s.service".to_owned());
    }
    Ok(Some(format!("{name}.service")))
}

/// Reads the path of a folder; empty is nothing.
pub fn folder_setting(text: &str) -> Result<Option<String>, String> {
    let path = text.trim_end_matches('/');
    if text.is_empty() {
        Ok(None)
    } else if !path.starts_with('/')
        || path
            .split('/')
            .skip(1)
            .any(|it| matches!(it, "" | "." | ".."))
    {
        Err("this is no path of a folder: give one like /var/lib/kubelet".to_owned())
    } else {
        Ok(Some(path.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(
        settings: &KubeletSettings,
        before: Option<&str>,
        running: &[&str],
    ) -> (String, String) {
        let before = before.map(|unit| Kubelet {
            unit: unit.to_owned(),
            folder: FOLDER.to_owned(),
        });
        let it = settings.find(before.as_ref(), |unit| running.contains(&unit));
        (it.unit, it.folder)
    }

    /// Covers R08.
    #[test]
    fn the_kubelet_is_found_by_what_runs_and_stays_found_while_it_is_down() {
        let microk8s = "/var/snap/microk8s/common/var/lib/kubelet";
        let kubelite = "snap.microk8s.daemon-kubelite.service";
        for (before, running, unit, folder) in [
            (None, &[][..], "kubelet.service", FOLDER),
            (None, &["kubelet.service"], "kubelet.service", FOLDER),
            (
                None,
                &["containerd.service", "k3s.service"],
                "k3s.service",
                FOLDER,
            ),
            (None, &["k3s-agent.service"], "k3s-agent.service", FOLDER),
            (
                None,
                &["rke2-server.service"],
                "rke2-server.service",
                FOLDER,
            ),
            (None, &["rke2-agent.service"], "rke2-agent.service", FOLDER),
            (
                None,
                &["k0sworker.service"],
                "k0sworker.service",
                "/var/lib/k0s/kubelet",
            ),
            (None, &[kubelite], kubelite, microk8s),
            (
                None,
                &["k3s.service", "kubelet.service"],
                "kubelet.service",
                FOLDER,
            ),
            (Some("k3s.service"), &[], "k3s.service", FOLDER),
            (
                Some("k3s.service"),
                &["kubelet.service", "k3s.service"],
                "k3s.service",
                FOLDER,
            ),
            (Some(kubelite), &[], kubelite, microk8s),
            (
                Some("k3s.service"),
                &["rke2-agent.service"],
                "rke2-agent.service",
                FOLDER,
            ),
        ] {
            assert_eq!(
                found(&KubeletSettings::default(), before, running),
                (unit.to_owned(), folder.to_owned()),
                "{before:?}, {running:?}"
            );
        }
    }

    #[test]
    fn what_is_set_is_not_found_out() {
        let all = ["kubelet.service", "k3s.service"];
        let unit = KubeletSettings {
            unit: unit_setting("k0sworker").unwrap(),
            folder: None,
        };
        let expected = (
            "k0sworker.service".to_owned(),
            "/var/lib/k0s/kubelet".to_owned(),
        );
        assert_eq!(found(&unit, Some("k3s.service"), &all), expected);
        let folder = KubeletSettings {
            unit: None,
            folder: folder_setting("/data/kubelet/").unwrap(),
        };
        let expected = ("k3s.service".to_owned(), "/data/kubelet".to_owned());
        assert_eq!(found(&folder, None, &["k3s.service"]), expected);
        for none in [unit_setting(""), folder_setting("")] {
            assert_eq!(none, Ok(None));
        }
        for wrong in [".service", "../k3s", "a b", "k3s.service/.."] {
            assert!(unit_setting(wrong).is_err(), "{wrong}");
        }
        for wrong in ["/", "kubelet", "/a/../b", "/a//b", "./a"] {
            assert!(folder_setting(wrong).is_err(), "{wrong}");
        }
    }
}
