//! The outside of a Windows kubelet, run as a service: it takes a real kubelet's arguments, writes
//! down what it was given and keeps a Node.
//!
//! Known arguments: `--kubeconfig`, `--bootstrap-kubeconfig`, `--node-ip` (else the address from which it
//! reaches the API server; with `--cloud-provider=external`, none: its cloud gives it one), `--hostname-override`, `--node-labels`, and of its own `--record FILE` (else `kubelet-double.json` beside the program), `--die CODE`,
//! `--die-after-ms N`, `--console`. All others are taken and left alone.

#[cfg(windows)]
fn main() -> std::process::ExitCode {
    evenkeel_testbed::service_double::main(kubelet::run)
}

#[cfg(windows)]
mod kubelet {
    use std::path::{Path, PathBuf};

    use evenkeel_testbed::arguments::Arguments;
    use evenkeel_testbed::kubeconfig::Kubeconfig;
    use evenkeel_testbed::node_double::{NodeDescription, NodeDouble, Os};
    use evenkeel_testbed::service_double::Stop;
    use evenkeel_testbed::{Doing, Error, Result};

    /// Where the instance under Wine says which boot this is.
    const BOOT_ID: &str = r"\\?\unix\run\boot-id";

    pub(super) fn run(arguments: &Arguments, stop: &Stop) -> Result<()> {
        arguments.record(&record_file(arguments)?)?;
        let name = match arguments.value("--hostname-override") {
            Some(name) => name.to_owned(),
            None => std::env::var("COMPUTERNAME")
                .doing(|| "cannot read the computer name")?
                .to_lowercase(),
        };
        let mut node = NodeDouble::named(&name).os(Os::Windows);
        let is_clouds = arguments.value("--cloud-provider") == Some("external");
        node = if is_clouds && arguments.value("--node-ip").is_none() {
            node.without_addresses()
        } else {
            node.address("InternalIP", &own_address(arguments)?)
        };
        let labels = arguments.value("--node-labels").unwrap_or_default();
        for (key, value) in labels.split(',').filter_map(|it| it.split_once('=')) {
            node = node.label(key, value);
        }
        if let Ok(boot) = std::fs::read_to_string(BOOT_ID) {
            node = node.boot_id(boot.trim());
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .doing(|| "cannot make a runtime")?;
        let node = runtime.block_on(join(node, arguments))?;
        stop.wait();
        node.vanish();
        Ok(())
    }

    /// As a kubelet does it: with its own login if it has one, else with a certificate that it asks
    /// for and keeps.
    async fn join(node: NodeDescription, arguments: &Arguments) -> Result<NodeDouble> {
        let kubeconfig = arguments
            .value("--kubeconfig")
            .map(Path::new)
            .ok_or_else(|| Error::failed("--kubeconfig is missing"))?;
        if kubeconfig.exists() {
            return node.start(&Kubeconfig::read(kubeconfig)?).await;
        }
        let bootstrap = arguments
            .value("--bootstrap-kubeconfig")
            .map(Path::new)
            .ok_or_else(|| {
                Error::failed(format!(
                    "{} is not there, and --bootstrap-kubeconfig is missing",
                    kubeconfig.display()
                ))
            })?;
        let node = node.join(&Kubeconfig::read(bootstrap)?).await?;
        node.kubeconfig().write(kubeconfig)?;
        Ok(node)
    }

    /// As a kubelet finds it: the address from which it would talk to the API server.
    fn own_address(arguments: &Arguments) -> Result<String> {
        if let Some(address) = arguments.value("--node-ip") {
            return Ok(address.to_owned());
        }
        let files = ["--kubeconfig", "--bootstrap-kubeconfig"];
        let mut files = files.iter().filter_map(|it| arguments.value(it));
        let file = files
            .find(|it| Path::new(it).exists())
            .ok_or_else(|| Error::failed("there is no kubeconfig"))?;
        let config = Kubeconfig::read(Path::new(file))?;
        let server = config.server().trim_start_matches("https://").to_owned();
        let route = || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(&server)?;
            socket.local_addr()
        };
        let address: std::io::Result<_> = route();
        let address = address.doing(|| format!("no route to {server}"))?;
        Ok(address.ip().to_string())
    }

    fn record_file(arguments: &Arguments) -> Result<PathBuf> {
        if let Some(file) = arguments.value("--record") {
            return Ok(file.into());
        }
        let program = std::env::current_exe().doing(|| "cannot find the path of this program")?;
        Ok(program.with_file_name("kubelet-double.json"))
    }
}

#[cfg(not(windows))]
fn main() -> std::process::ExitCode {
    eprintln!("kubelet-double runs on Windows only");
    std::process::ExitCode::FAILURE
}
