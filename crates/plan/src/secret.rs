//! What must not be shown to whoever reads a plan, a log or an Event.

/// Whether the contents at `path` look like something that opens doors: a private key, a token, a
/// password, a pull secret. Where in doubt, they do.
pub fn looks_secret(path: &str, contents: &[u8]) -> bool {
    let path = path.to_ascii_lowercase();
    let name = path.rsplit('/').next().unwrap_or(&path);
    let by_name = [
        "secret",
        "token",
        "passw",
        "credential",
        "kubeconfig",
        "htpasswd",
        "private",
    ]
    .iter()
    .any(|word| path.contains(word))
        || [".key", ".p12", ".pfx", ".jks", ".keytab"]
            .iter()
            .any(|ending| ends(name, ending))
        || [
            "shadow",
            "gshadow",
            "config.json",
            "auth.json",
            ".dockercfg",
            ".netrc",
            ".pgpass",
        ]
        .contains(&name)
        || name.starts_with("id_") && !ends(name, ".pub");
    by_name || by_contents(contents)
}

fn ends(name: &str, ending: &str) -> bool {
    name.as_bytes().ends_with(ending.as_bytes())
}

fn by_contents(contents: &[u8]) -> bool {
    const WORDS: &[&str] = &[
        "private key-----",
        "\"auth\"",
        "\"auths\"",
        "password",
        "passwd=",
        "token:",
        "token=",
        "\"token\"",
        "secret",
        "client-key-data",
        "aws_access_key",
        "authorization: ",
        "bearer ",
    ];
    let text = String::from_utf8_lossy(contents).to_ascii_lowercase();
    WORDS.iter().any(|word| text.contains(word)) || has_login(&text)
}

/// Whether a URL in it has somebody's login, as a proxy's may: `http://user:password@host`.
fn has_login(text: &str) -> bool {
    let is_end = |it: char| it.is_whitespace() || matches!(it, '/' | '?' | '#' | '"' | '\'' | '\\');
    let after = text.split("://").skip(1);
    let mut hosts = after.map(|rest| rest.split(is_end).next().unwrap_or_default());
    // What we hid ourselves is no secret any more.
    hosts.any(|it| it.contains('@') && !it.starts_with("***@"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opens_doors_is_never_shown() {
        for (path, contents, secret) in [
            ("/var/lib/kubelet/config.json", "{}", true),
            (
                "/etc/ssh/ssh_host_ed25519_key",
                "-----BEGIN OPENSSH PRIVATE KEY-----\n",
                true,
            ),
            ("/etc/pki/tls/private/x.pem", "", true),
            ("/etc/app/tls.key", "", true),
            ("/root/.ssh/id_ed25519", "", true),
            ("/etc/kubernetes/kubeconfig", "", true),
            ("/etc/app.conf", "db_password = x", true),
            ("/etc/app.conf", "Authorization: Bearer abc", true),
            ("/etc/x.json", "{\"auths\": {}}", true),
            ("/etc/proxy.env", "HTTP_PROXY=http://me:x@proxy:3128", true),
            ("/x", r#"[{"value":"https://me@proxy"}]"#, true),
            (
                "/x",
                "docker://quay.io/a/b@sha256:00, me@example.com",
                false,
            ),
            ("/x", r#"{"a":"http://proxy","b":"me@example.com"}"#, false),
            ("/x", "HTTP_PROXY=http://***@proxy:3128", false),
            ("/root/.ssh/id_ed25519.pub", "ssh-ed25519 AAAA", false),
            ("/etc/chrony.conf", "server 0.pool\n", false),
            (
                "/etc/containers/registries.conf",
                "unqualified-search-registries = []",
                false,
            ),
        ] {
            assert_eq!(
                looks_secret(path, contents.as_bytes()),
                secret,
                "{path}: {contents}"
            );
        }
    }
}
