//! How an agent registers the kubelet's plugins: each socket in one of the kubelet's folders for them is an extension that
//! the node must have, in the node's own list. What others wrote there is never touched.
//!
//! A plugin that restarts takes its socket with it, and a kubelet that restarts removes those of all device plugins: a
//! plugin whose socket is gone is missed for a while, and only then forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::time::Moment;

/// The folders below the kubelet's own in which its plugins have their sockets.
pub const PLUGIN_FOLDERS: [&str; 2] = [REGISTRY, DEVICES];

/// Here drivers have a socket that tells the kubelet where they are.
const REGISTRY: &str = "plugins_registry";
/// Here device plugins have the socket that they serve, and the kubelet the one at which they register.
const DEVICES: &str = "device-plugins";
const KUBELETS_OWN: &str = "kubelet.sock";
/// How long the name of an extension may be.
const LONGEST: usize = 63;

/// What is to be done about a node's own list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registration {
    /// It is as it should be.
    Right,
    /// It becomes this; nothing if nobody has anything to say in it.
    Becomes(Option<String>),
}

/// The plugins of a node's kubelet.
#[derive(Debug)]
pub struct Plugins {
    forgotten_after: Duration,
    /// Since when the socket of a plugin in the list is not there, by its path.
    missed: BTreeMap<String, Moment>,
}

impl Plugins {
    /// A plugin is forgotten when its socket is not there for this long.
    pub fn new(forgotten_after: Duration) -> Self {
        Self {
            forgotten_after,
            missed: BTreeMap::new(),
        }
    }

    /// What is to be in a node's own list, which is `list` now, when the kubelet's plugins have the sockets at these paths.
    /// A list that is no list is its owner's to mend.
    pub fn registration(
        &mut self,
        list: Option<&str>,
        sockets: &BTreeSet<String>,
        now: Moment,
    ) -> Result<Registration, String> {
        let before: Vec<Value> = match list.map(str::trim).filter(|it| !it.is_empty()) {
            None => Vec::new(),
            Some(text) => serde_json::from_str(text).map_err(|error| {
                format!("cannot read the node's list of extensions, so no plugin is registered: {error}: write a JSON list, or remove it")
            })?,
        };
        let wanted = entries(sockets);
        let missed = std::mem::take(&mut self.missed);
        let mut after: Vec<Value> = Vec::with_capacity(before.len());
        for it in &before {
            if let Some(path) = registered(it)
                && !wanted.contains(it)
            {
                // It is under another name now, or it is not there.
                if sockets.contains(path) {
                    continue;
                }
                let since = missed.get(path).copied().unwrap_or(now);
                self.missed.insert(path.to_owned(), since);
                if now.since(since) >= self.forgotten_after {
                    continue;
                }
            }
            after.push(it.clone());
        }
        for entry in wanted {
            // A name that somebody has given to something else, or to more of the same, is theirs.
            if !after.iter().any(|it| it["name"] == entry["name"]) {
                after.push(entry);
            }
        }
        Ok(if after == before {
            Registration::Right
        } else if after.is_empty() {
            Registration::Becomes(None)
        } else {
            Registration::Becomes(Some(Value::from(after).to_string()))
        })
    }

    /// When a plugin is forgotten, if its socket does not come back.
    pub fn forgets_next(&self) -> Option<Moment> {
        let first = self.missed.values().min();
        first.map(|since| *since + self.forgotten_after)
    }
}

/// The extensions that the sockets at these paths are; those of drivers come first.
fn entries(sockets: &BTreeSet<String>) -> Vec<Value> {
    let mut entries: Vec<Value> = Vec::new();
    for folder in PLUGIN_FOLDERS {
        let here = sockets
            .iter()
            .filter(|path| folder_of(path) == Some(folder));
        for path in here {
            let is_free = |it: &Value| entries.iter().all(|other| other["name"] != it["name"]);
            if let Some(entry) = possible(path).find(is_free) {
                entries.push(entry);
            }
        }
    }
    entries
}

/// What a socket may be in the list: a device plugin that is called like a driver gets a longer name.
fn possible(path: &str) -> impl Iterator<Item = Value> {
    let (folder, socket) = path.rsplit_once('/').unwrap_or_default();
    let is_device = folder.ends_with(DEVICES);
    let name = name(socket).filter(|_| !(is_device && socket == KUBELETS_OWN));
    let longer = name.iter().filter(|_| is_device).map(|name| {
        let room = LONGEST - "-device-plugin".len();
        format!("{}-device-plugin", &name[..name.len().min(room)])
    });
    let names: Vec<String> = name.iter().cloned().chain(longer).collect();
    let path = path.to_owned();
    names
        .into_iter()
        .map(move |name| json!({ "name": name, "probe": { "unixSocket": { "path": path } } }))
}

/// The folder for plugins that a socket is in, whichever kubelet's it is: that one may have moved.
fn folder_of(path: &str) -> Option<&'static str> {
    let (folder, _) = path.rsplit_once('/')?;
    let (_, folder) = folder.rsplit_once('/')?;
    PLUGIN_FOLDERS.into_iter().find(|it| *it == folder)
}

/// The socket of an extension that an agent wrote: it is exactly what one would write for it.
fn registered(it: &Value) -> Option<&str> {
    let path = it["probe"]["unixSocket"]["path"].as_str()?;
    folder_of(path)?;
    possible(path).any(|entry| entry == *it).then_some(path)
}

/// The name of a plugin by that of its socket: `csi.example.com-reg.sock` is `csi.example.com`.
fn name(socket: &str) -> Option<String> {
    let name = socket.strip_suffix(".sock")?;
    let name = name.strip_suffix("-reg").unwrap_or(name);
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let name: String = name
        .to_ascii_lowercase()
        .chars()
        .map(|c| if fits(c) || c == '.' { c } else { '-' })
        .skip_while(|c| !fits(*c))
        .take(LONGEST)
        .collect();
    let name = name.trim_end_matches(['-', '.']);
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBELET: &str = "/var/lib/kubelet";
    const GRACE: Duration = Duration::from_mins(2);

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn sockets(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(|it| format!("{KUBELET}/{it}")).collect()
    }

    fn entry(name: &str, socket: &str) -> String {
        format!(r#"{{"name":"{name}","probe":{{"unixSocket":{{"path":"{KUBELET}/{socket}"}}}}}}"#)
    }

    impl Plugins {
        fn becomes(&mut self, list: Option<&str>, all: &[&str], seconds: u64) -> Option<String> {
            match self.registration(list, &sockets(all), at(seconds)) {
                Ok(Registration::Becomes(text)) => text,
                other => panic!("{other:?}"),
            }
        }

        fn is_right(&mut self, list: Option<&str>, all: &[&str], seconds: u64) -> bool {
            self.registration(list, &sockets(all), at(seconds)) == Ok(Registration::Right)
        }
    }

    /// Covers R01.
    #[test]
    fn plugins_come_with_their_sockets_and_what_others_wrote_stays() {
        let csi = "plugins_registry/csi.example.com-reg.sock";
        let mut plugins = Plugins::new(GRACE);
        let one = plugins.becomes(None, &[csi], 0).unwrap();
        assert_eq!(one, format!("[{}]", entry("csi.example.com", csi)));
        let read = evenkeel_api::readiness::extensions_from_json("it", &one);
        assert_eq!(read.map(|(all, _)| all.len()).ok(), Some(1));
        assert!(plugins.is_right(Some(&one), &[csi], 1));
        assert!(plugins.is_right(None, &[], 1));
        assert_eq!(plugins.forgets_next(), None);

        // Somebody else's: another source, the same name, a socket elsewhere, more of the same.
        let theirs = r#"[{"lease":{},"name":"cni"},{"name":"gpu","pods":{"namespace":"g"}},{"name":"x","probe":{"unixSocket":{"path":"/run/x.sock"}}},{"affectsReadiness":false,"name":"soft","probe":{"unixSocket":{"path":"/var/lib/kubelet/plugins_registry/soft.sock"}}}]"#;
        let named = ["plugins_registry/gpu.sock", "plugins_registry/soft.sock"];
        assert!(plugins.is_right(Some(theirs), &named, 2));
        let more = ["plugins_registry/gpu.sock", "plugins_registry/nfs-reg.sock"];
        let both = plugins.becomes(Some(theirs), &more, 2).unwrap();
        assert!(both.starts_with(theirs.trim_end_matches(']')), "{both}");
        assert!(both.contains(r#""name":"nfs""#), "{both}");
        assert!(plugins.is_right(Some(&both), &[], 3), "it is only missed");
        assert_eq!(
            plugins.becomes(Some(&both), &[], 123).as_deref(),
            Some(theirs)
        );
        for wrong in ["{}", "[", "no"] {
            let refused = plugins.registration(Some(wrong), &sockets(&[csi]), at(4));
            let refused = refused.unwrap_err();
            assert!(refused.contains("write a JSON list"), "{refused}");
        }
    }

    /// Covers R01.
    #[test]
    fn device_plugins_are_registered_and_the_kubelets_own_socket_is_none() {
        let mut plugins = Plugins::new(GRACE);
        let all = [
            "device-plugins/kubelet.sock",
            "device-plugins/nvidia-gpu.sock",
            "device-plugins/fpga.sock",
            "plugins_registry/fpga.sock",
            "plugins_registry/kubelet.sock",
            "other/x.sock",
        ];
        let list = plugins.becomes(None, &all, 0).unwrap();
        let expected = [
            entry("fpga", "plugins_registry/fpga.sock"),
            entry("kubelet", "plugins_registry/kubelet.sock"),
            entry("fpga-device-plugin", "device-plugins/fpga.sock"),
            entry("nvidia-gpu", "device-plugins/nvidia-gpu.sock"),
        ];
        assert_eq!(list, format!("[{}]", expected.join(",")));
        assert!(plugins.is_right(Some(&list), &all, 1));
        let read = evenkeel_api::readiness::extensions_from_json("it", &list);
        assert_eq!(read.map(|(all, _)| all.len()).ok(), Some(4));
    }

    /// Covers R01.
    #[test]
    fn a_plugin_whose_socket_goes_is_missed_and_forgotten_only_when_it_does_not_come_back() {
        let gpu = "device-plugins/gpu.sock";
        let csi = "plugins_registry/csi-reg.sock";
        let list = format!("[{},{}]", entry("csi", csi), entry("gpu", gpu));
        let mut plugins = Plugins::new(GRACE);
        assert!(plugins.is_right(Some(&list), &[csi, gpu], 0));
        // The kubelet restarts and removes it; a minute later it is there again.
        assert!(plugins.is_right(Some(&list), &[csi], 10));
        assert_eq!(plugins.forgets_next(), Some(at(130)));
        assert!(plugins.is_right(Some(&list), &[csi, gpu], 70));
        assert_eq!(plugins.forgets_next(), None);
        // Now it does not come back.
        assert!(plugins.is_right(Some(&list), &[csi], 80));
        assert!(plugins.is_right(Some(&list), &[csi], 199));
        let left = plugins.becomes(Some(&list), &[csi], 200);
        assert_eq!(left, Some(format!("[{}]", entry("csi", csi))));
        // It could not be written.
        assert_eq!(plugins.becomes(Some(&list), &[csi], 201), left);
        assert!(plugins.is_right(left.as_deref(), &[csi], 202));
        assert_eq!(plugins.forgets_next(), None);
        // An agent that comes later does not know since when.
        let mut later = Plugins::new(GRACE);
        assert!(later.is_right(Some(&list), &[], 500));
        assert_eq!(later.becomes(Some(&list), &[], 620), None);
    }

    #[test]
    fn plugins_of_a_kubelet_that_has_moved_are_forgotten() {
        let old = format!("[{}]", entry("gpu", "device-plugins/gpu.sock"));
        let mut plugins = Plugins::new(GRACE);
        let moved = BTreeSet::from(["/data/kubelet/device-plugins/gpu.sock".to_owned()]);
        let seen = |plugins: &mut Plugins, seconds| {
            plugins
                .registration(Some(&old), &moved, at(seconds))
                .unwrap()
        };
        assert_eq!(
            seen(&mut plugins, 0),
            Registration::Right,
            "the name is not free yet"
        );
        let Registration::Becomes(Some(new)) = seen(&mut plugins, 120) else {
            panic!("nothing was written");
        };
        assert!(
            new.contains("/data/kubelet/device-plugins/gpu.sock"),
            "{new}"
        );
        assert!(!new.contains(KUBELET), "{new}");
    }

    #[test]
    fn a_name_is_one_that_a_list_may_have() {
        for (socket, expected) in [
            ("csi.example.com-reg.sock", Some("csi.example.com")),
            ("GPU_one.sock", Some("gpu-one")),
            ("-.sock", None),
            (".sock", None),
            ("kubelet.txt", None),
        ] {
            assert_eq!(name(socket).as_deref(), expected, "{socket}");
        }
        let long = format!("{}-reg.sock", "a.".repeat(60));
        assert_eq!(name(&long).map(|it| it.len()), Some(LONGEST));
        let long = format!("{KUBELET}/device-plugins/{}.sock", "a".repeat(80));
        for it in possible(&long) {
            assert_eq!(it["name"].as_str().map(str::len), Some(LONGEST));
        }
    }
}
