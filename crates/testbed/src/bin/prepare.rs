//! Makes ready what is slow to make the first time: control-plane programs, Helm, promtool, the Debian tree, what
//! nodes of a real cluster run, the kernel, the Windows programs and the Wine prefix. `./test` runs it so that a first run shows what
//! it waits for; the tests would make the same things by themselves.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use evenkeel_testbed::alerts::Alerts;
    use evenkeel_testbed::chart::Chart;
    use evenkeel_testbed::cluster::Cluster;
    use evenkeel_testbed::control_plane::ControlPlane;
    use evenkeel_testbed::windows_instance::WindowsInstance;
    use evenkeel_testbed::{PowerCutMachine, SystemdNode};
    type Prepare = fn() -> evenkeel_testbed::Result<()>;
    let parts: [(&str, Prepare); 7] = [
        ("the control plane", ControlPlane::prepare),
        ("Helm", Chart::prepare),
        ("promtool", Alerts::prepare),
        ("the systemd node", SystemdNode::prepare),
        ("the cluster's node", Cluster::prepare),
        ("the power-cut machine", PowerCutMachine::prepare),
        ("the Windows instance", WindowsInstance::prepare),
    ];
    let mut code = std::process::ExitCode::SUCCESS;
    for (part, prepare) in parts {
        let start = std::time::Instant::now();
        match prepare() {
            Ok(()) => println!("{part} is ready ({:.0} s)", start.elapsed().as_secs_f64()),
            Err(error) => {
                eprintln!("cannot prepare {part}: {error}");
                code = std::process::ExitCode::FAILURE;
            }
        }
    }
    code
}

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    eprintln!("the test bed runs on Linux only");
    std::process::ExitCode::FAILURE
}
