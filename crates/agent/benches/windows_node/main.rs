//! What an agent on Windows costs and how quick it is, each against its limit, on a real control plane and an
//! instance with a real service manager: `cargo bench -p evenkeel-agent --bench windows_node`.

#[cfg(target_os = "linux")]
#[path = "../../tests/agent/windows/edits.rs"]
mod edits;
#[cfg(target_os = "linux")]
mod measure;
#[cfg(target_os = "linux")]
#[path = "../../tests/agent/scene.rs"]
#[expect(dead_code, reason = "the tests need more of it")]
mod scene;
#[cfg(target_os = "linux")]
#[path = "../../tests/agent/windows/scene.rs"]
#[expect(dead_code, reason = "the tests need more of it")]
mod windows_scene;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    evenkeel_testbed::table::Table::verdict(measure::measure())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
