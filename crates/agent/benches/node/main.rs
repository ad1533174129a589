//! What an agent costs and how quick it is, each against its limit, on a real control plane and a node
//! with a real systemd: `cargo bench -p evenkeel-agent`.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
#[path = "../../tests/agent/scene.rs"]
#[expect(dead_code, reason = "the tests need more of it")]
mod scene;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {}
