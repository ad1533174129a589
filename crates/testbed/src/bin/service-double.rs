//! A Windows service that does nothing but run. `--record FILE` makes it write its own arguments and
//! environment there, as JSON, so that a test sees what the service got; `--die CODE` and
//! `--die-after-ms N` make it crash.

#[cfg(windows)]
fn main() -> std::process::ExitCode {
    evenkeel_testbed::service_double::main(|stop| {
        let arguments = evenkeel_testbed::arguments::Arguments::of_this_process();
        if let Some(file) = arguments.value("--record")
            && let Err(error) = arguments.record(file.as_ref())
        {
            eprintln!("{error}");
            return 1;
        }
        if let Some(code) = arguments.number("--die") {
            let _ = stop.within(std::time::Duration::from_millis(
                arguments.number("--die-after-ms").unwrap_or_default(),
            ));
            evenkeel_testbed::service_double::die(u32::try_from(code).unwrap_or(1));
        }
        stop.wait();
        0
    })
}

#[cfg(not(windows))]
fn main() -> std::process::ExitCode {
    eprintln!("service-double runs on Windows only");
    std::process::ExitCode::FAILURE
}
