//! What OpenShift's operator left on a machine, and its folder: looked at and closed with programs of Windows alone, because
//! nobody knows what else lies there. `evenkeel_plan::windows::take_over` says what must be there.

use evenkeel_api::names::windows;
use evenkeel_plan::windows::instances::InstanceFailure;
use evenkeel_plan::windows::take_over::{WmcoMachine, registry_value};

use super::reach::Reached;
use super::secure::{GRANT, OWN, SYSTEM};
use crate::windows::ssh::FileKind;

/// Only administrators write there: the service of that operator's agent is there if that one installed it.
const ASK_FOR_AGENT: &str = r"C:\Windows\System32\reg.exe query HKLM\SYSTEM\CurrentControlSet\Services\windows-instance-config-daemon /v ImagePath";
const ASK_FOR_KUBELET: &str = r"C:\Windows\System32\reg.exe query HKLM\SYSTEM\CurrentControlSet\Services\kubelet /v ImagePath";
const ASK_FOR_NAME: &str = r"C:\Windows\System32\reg.exe query HKLM\SYSTEM\CurrentControlSet\Services\Tcpip\Parameters /v Hostname";
/// What others were ever allowed in the folder goes, then the folder is closed, then all that is in it belongs to
/// administrators and is allowed what the folder allows.
const TAKE: [&str; 5] = [
    OWN,
    r"C:\Windows\System32\icacls.exe C:\k /reset",
    GRANT,
    r#"C:\Windows\System32\icacls.exe C:\k /setowner "*S-1-5-32-544" /T /C /L /Q"#,
    r"C:\Windows\System32\icacls.exe C:\k\* /reset /T /C /L /Q",
];
/// The value with the command of a service.
const IMAGE: &str = "ImagePath";

impl Reached {
    /// Whether the service of that operator's agent is installed, with its program where that one puts it.
    pub(super) async fn has_wmco(&self) -> Result<bool, InstanceFailure> {
        let said = self.registry(ASK_FOR_AGENT).await?.unwrap_or_default();
        let command = registry_value(&said, IMAGE).unwrap_or_default();
        let (command, agent) = (command.to_lowercase(), windows::WMCO_AGENT.to_lowercase());
        Ok(command.trim_start_matches('"').starts_with(&agent))
    }

    pub(super) async fn survey(&self) -> Result<WmcoMachine, InstanceFailure> {
        let kubelet = self.registry(ASK_FOR_KUBELET).await?;
        let name = self.registry(ASK_FOR_NAME).await?;
        let login = self.files.kind(windows::KUBECONFIG).await?;
        Ok(WmcoMachine {
            kubelet: kubelet.and_then(|it| registry_value(&it, IMAGE)),
            host_name: name.and_then(|it| registry_value(&it, "Hostname")),
            has_login: login == FileKind::File,
        })
    }

    pub(super) async fn take_folder(&self) -> Result<(), InstanceFailure> {
        for line in TAKE {
            self.session.run(line, SYSTEM).await?;
        }
        // Only what is copied from here on is run: an agent of ours is not there yet.
        if self.files.kind(upgrade()).await? == FileKind::Link {
            self.files.remove(upgrade()).await?;
        }
        self.files.remove_folder(upgrade()).await?;
        Ok(())
    }
}

fn upgrade() -> &'static str {
    windows::UPGRADE.trim_end_matches('\\')
}

#[cfg(test)]
mod tests {
    use super::super::secure::folder;
    use super::*;

    /// Covers S04.
    #[test]
    fn what_another_operator_left_is_looked_at_and_closed_by_programs_of_windows_itself() {
        let asked = [ASK_FOR_AGENT, ASK_FOR_KUBELET, ASK_FOR_NAME];
        for line in asked.iter().chain(&TAKE) {
            assert!(line.starts_with(r"C:\Windows\System32\"), "{line}");
        }
        for line in TAKE {
            let place = line.split(' ').nth(1).unwrap_or_default();
            assert!(place == folder() || place == r"C:\k\*", "{line}");
        }
        let service = |name: &str| format!(r"\Services\{name} ");
        assert!(ASK_FOR_AGENT.contains(&service(windows::WMCO_SERVICE)));
        assert!(ASK_FOR_KUBELET.contains(&service(windows::KUBELET_SERVICE)));
    }
}
