//! A Windows service that does nothing but run. `--record FILE` makes it write its own arguments and
//! environment there, as JSON, so that a test sees what the service got; `--die CODE` and
//! `--die-after-ms N` make it crash; with `--console` it runs in the foreground.

#[cfg(windows)]
fn main() -> std::process::ExitCode {
    evenkeel_testbed::service_double::main(|arguments, stop| {
        if let Some(file) = arguments.value("--record") {
            arguments.record(file.as_ref())?;
        }
        stop.wait();
        Ok(())
    })
}

#[cfg(not(windows))]
fn main() -> std::process::ExitCode {
    eprintln!("service-double runs on Windows only");
    std::process::ExitCode::FAILURE
}
