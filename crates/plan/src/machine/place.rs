//! Where a resource stands: at a path, or under a name that is no path. One text for both, so that
//! records, steps and findings need not tell them apart.

/// What a place means on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location<'a> {
    /// A path, with `/` between its parts on every system.
    Path(&'a str),
    /// A Windows service, by its name in small letters.
    Service(&'a str),
    /// An environment variable of a Windows machine, by its name in capitals.
    Variable(&'a str),
}

const SERVICE: &str = "service:";
const VARIABLE: &str = "variable:";

impl<'a> Location<'a> {
    /// What `text` means. No path begins like the others: a drive has one letter.
    pub fn of(text: &'a str) -> Self {
        if let Some(name) = text.strip_prefix(SERVICE) {
            Self::Service(name)
        } else if let Some(name) = text.strip_prefix(VARIABLE) {
            Self::Variable(name)
        } else {
            Self::Path(text)
        }
    }

    /// Whether `text` is a path.
    pub fn is_path(text: &str) -> bool {
        matches!(Location::of(text), Location::Path(_))
    }
}

/// The place of the Windows service `name`. Windows does not tell names apart by their case.
pub fn service(name: &str) -> String {
    format!("{SERVICE}{}", name.to_lowercase())
}

/// The place of the environment variable `name`.
pub fn variable(name: &str) -> String {
    format!("{VARIABLE}{}", name.to_uppercase())
}

/// The place of a file of a Windows machine.
pub fn windows_file(path: &str) -> String {
    path.replace('\\', "/").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_place_whatever_its_case_and_no_path_is_a_name() {
        assert_eq!(
            Location::of(&service("Kubelet")),
            Location::Service("kubelet")
        );
        assert_eq!(
            Location::of(&variable("http_proxy")),
            Location::Variable("HTTP_PROXY")
        );
        assert_eq!(windows_file(r"C:\k\Kubelet.exe"), "c:/k/kubelet.exe");
        for path in ["c:/k/kubelet.exe", "/etc/x", "/variable:x"] {
            assert!(Location::is_path(path), "{path}");
        }
        assert!(!Location::is_path(&service("x")));
    }
}
