//! How an agent registers the kubelet's plugins: each socket in the kubelet's registry is an extension that
//! the node must have, in the node's own list. What others wrote there is never touched.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// Where the kubelet looks for the sockets of its plugins.
pub const PLUGINS: &str = "/var/lib/kubelet/plugins_registry";

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

/// What is to be in a node's own list, which is `list` now, when the kubelet's plugins have these
/// `sockets`, by the names of their files. A list that is no list is its owner's to mend.
pub fn registration(
    list: Option<&str>,
    sockets: &BTreeSet<String>,
) -> Result<Registration, String> {
    let before: Vec<Value> = match list.map(str::trim).filter(|it| !it.is_empty()) {
        None => Vec::new(),
        Some(text) => serde_json::from_str(text).map_err(|error| {
            format!("cannot read the node's list of extensions, so no plugin is registered: {error}: write a JSON list, or remove it")
        })?,
    };
    let wanted: Vec<Value> = sockets.iter().filter_map(|it| entry(it)).collect();
    let is_stale = |it: &Value| is_our_registration(it) && !wanted.contains(it);
    let mut after: Vec<Value> = before.iter().filter(|it| !is_stale(it)).cloned().collect();
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

/// The extension that a socket is.
fn entry(socket: &str) -> Option<Value> {
    let name = name(socket)?;
    let path = format!("{PLUGINS}/{socket}");
    Some(json!({ "name": name, "probe": { "unixSocket": { "path": path } } }))
}

/// Whether an agent wrote it: it is exactly what one would write for its socket.
fn is_our_registration(it: &Value) -> bool {
    let path = it["probe"]["unixSocket"]["path"].as_str();
    let socket = path.and_then(|path| path.strip_prefix(PLUGINS)?.strip_prefix('/'));
    socket.and_then(entry).is_some_and(|entry| entry == *it)
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

    fn sockets(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(ToString::to_string).collect()
    }

    fn becomes(list: Option<&str>, all: &[&str]) -> Option<String> {
        match registration(list, &sockets(all)) {
            Ok(Registration::Becomes(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    /// Covers R01.
    #[test]
    fn plugins_come_and_go_with_their_sockets_and_what_others_wrote_stays() {
        let one = becomes(None, &["csi.example.com-reg.sock"]).unwrap();
        assert_eq!(
            one,
            r#"[{"name":"csi.example.com","probe":{"unixSocket":{"path":"/var/lib/kubelet/plugins_registry/csi.example.com-reg.sock"}}}]"#
        );
        let read = evenkeel_api::readiness::extensions_from_json("it", &one);
        assert_eq!(read.map(|(all, _)| all.len()).ok(), Some(1));
        let same = registration(Some(&one), &sockets(&["csi.example.com-reg.sock"]));
        assert_eq!(same, Ok(Registration::Right));
        assert_eq!(becomes(Some(&one), &[]), None, "nobody is left");
        assert_eq!(registration(None, &sockets(&[])), Ok(Registration::Right));

        // Somebody else's: another source, the same name, a socket elsewhere, more of the same.
        let theirs = r#"[{"lease":{},"name":"cni"},{"name":"gpu","pods":{"namespace":"g"}},{"name":"x","probe":{"unixSocket":{"path":"/run/x.sock"}}},{"affectsReadiness":false,"name":"soft","probe":{"unixSocket":{"path":"/var/lib/kubelet/plugins_registry/soft.sock"}}}]"#;
        assert_eq!(
            registration(Some(theirs), &sockets(&["gpu.sock", "soft.sock"])),
            Ok(Registration::Right)
        );
        let both = becomes(Some(theirs), &["gpu.sock", "nfs-reg.sock"]).unwrap();
        assert!(both.starts_with(theirs.trim_end_matches(']')), "{both}");
        assert!(both.contains(r#""name":"nfs""#), "{both}");
        assert_eq!(becomes(Some(&both), &[]).as_deref(), Some(theirs));
        for wrong in ["{}", "[", "no"] {
            let refused = registration(Some(wrong), &sockets(&["a.sock"])).unwrap_err();
            assert!(refused.contains("write a JSON list"), "{refused}");
        }
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
    }
}
