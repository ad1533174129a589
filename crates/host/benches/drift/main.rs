//! How quickly drift is found and healed, and what watching costs, each against its limit:
//! `cargo bench -p evenkeel-host`. Ratios are taken within one run, with both sides in turns.

#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {}
