//! An operating system for a node that is managed by images: stand-ins for rpm-ostree and bootc, which
//! are not in Debian.

use super::SystemdNode;
use crate::Result;

const STATE: &str = "/var/lib/os-double";
const PROGRAM: &str = "/usr/lib/os-double/os-double";
const UNIT: &str = "[Unit]
Description=Boots what was staged, and keeps it for the next boot at an orderly shutdown
DefaultDependencies=no
RequiresMountsFor=/var/lib /run
Before=sysinit.target shutdown.target
Conflicts=shutdown.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/lib/os-double/os-double boot
ExecStop=/usr/lib/os-double/os-double finalize
[Install]
WantedBy=sysinit.target
";

impl SystemdNode {
    /// Gives the node the programs `managers` (`rpm-ostree`, `bootc`, `ostree`), as if it had booted
    /// `image` with these arguments of the kernel. From here on its reboots bring what was staged.
    pub fn install_os(&self, managers: &[&str], image: &str, arguments: &[&str]) -> Result<()> {
        let script = include_str!("os-double.sh");
        for manager in managers {
            self.place("755", &format!("/usr/bin/{manager}"), script.as_bytes())?;
        }
        self.place("755", PROGRAM, script.as_bytes())?;
        self.write(&format!("{STATE}/default.image"), format!("{image}\n"))?;
        self.write(&format!("{STATE}/default.arguments"), lines(arguments))?;
        self.write("/etc/systemd/system/os-double.service", UNIT)?;
        self.run(&["systemctl", "daemon-reload"])?;
        self.run(&["systemctl", "enable", "--now", "os-double.service"])
            .map(|_| ())
    }

    /// Takes the programs away again.
    pub fn remove_os(&self, managers: &[&str]) -> Result<()> {
        for manager in managers {
            self.run(&["rm", &format!("/usr/bin/{manager}")])?;
        }
        Ok(())
    }

    /// Lets these commands of the stand-ins fail from now on: `rpm-ostree rebase`.
    pub fn fail_os(&self, commands: &[&str]) -> Result<()> {
        self.write(&format!("{STATE}/fail"), lines(commands))
    }

    /// Lets every boot from now on bring the deployment before; or not any more.
    pub fn boot_stubbornly(&self, stubborn: bool) -> Result<()> {
        let flag = format!("{STATE}/stubborn");
        if stubborn {
            return self.write(&flag, "");
        }
        self.run(&["rm", "-f", &flag]).map(|_| ())
    }

    /// Every command line that the stand-ins were given.
    pub fn os_calls(&self) -> Result<Vec<String>> {
        let calls = self.read(&format!("{STATE}/calls"))?;
        let calls = String::from_utf8_lossy(&calls);
        Ok(calls.lines().map(str::to_owned).collect())
    }
}

fn lines(words: &[&str]) -> String {
    words.iter().flat_map(|word| [*word, "\n"]).collect()
}
