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

    /// Whether pulling an image goes on for ever from now on; it ends when this is taken back.
    pub fn hold_os(&self, hold: bool) -> Result<()> {
        self.flag("hold", hold)
    }

    /// What images have at paths of `/etc`, of one line each.
    pub fn let_bring(&self, files: &[(&str, &str, &str)]) -> Result<()> {
        let lines = files
            .iter()
            .map(|(image, path, text)| format!("{image} {path} {text}\n"));
        self.write(&format!("{STATE}/etc"), lines.collect::<String>())
    }

    /// Whether another transaction runs from now on.
    pub fn keep_os_busy(&self, busy: bool) -> Result<()> {
        self.flag("busy", busy)
    }

    /// Lets registries ask for a login that has these words.
    pub fn ask_for_login(&self, words: &str) -> Result<()> {
        self.write(&format!("{STATE}/login"), lines(&[words]))
    }

    /// Lets a program of this name, whose unit is made, drive the updates of the machine.
    pub fn let_drive(&self, name: &str, unit: &str) -> Result<()> {
        let text = "[Service]\nExecStart=sleep infinity\n";
        self.write(&format!("/etc/systemd/system/{unit}"), text)?;
        self.write(&format!("{STATE}/driver"), format!("{name} {unit}\n"))?;
        self.run(&["systemctl", "start", unit]).map(|_| ())
    }

    /// What changed the system so far: the command, the control group that it ran in, and its proxy.
    pub fn os_changes(&self) -> Result<Vec<String>> {
        let changes = self.read(&format!("{STATE}/changes"))?;
        let changes = String::from_utf8_lossy(&changes);
        Ok(changes.lines().map(str::to_owned).collect())
    }

    fn flag(&self, name: &str, there: bool) -> Result<()> {
        let flag = format!("{STATE}/{name}");
        if there {
            return self.write(&flag, "");
        }
        self.run(&["rm", "-f", &flag]).map(|_| ())
    }

    /// Lets every boot from now on bring the deployment before; or not any more.
    pub fn boot_stubbornly(&self, stubborn: bool) -> Result<()> {
        self.flag("stubborn", stubborn)
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
