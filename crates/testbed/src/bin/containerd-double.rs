//! The outside of containerd on Windows, run as a service: its named pipe. A client that connects
//! reads one byte, `k`, and is let go.
//!
//! `--pipe NAME` (else `\\.\pipe\containerd-containerd`), `--delay-ms N` before the pipe opens,
//! `--die CODE` to crash, at once or `--die-after-ms N` later, `--console`. All other arguments are
//! taken and left alone.

#[cfg(windows)]
fn main() -> std::process::ExitCode {
    evenkeel_testbed::service_double::main(containerd::run)
}

#[cfg(windows)]
mod containerd {
    use std::time::Duration;

    use evenkeel_testbed::arguments::Arguments;
    use evenkeel_testbed::service_double::Stop;
    use evenkeel_testbed::{Doing, Result};
    use tokio::io::AsyncWriteExt;
    use tokio::net::windows::named_pipe::ServerOptions;

    const PIPE: &str = r"\\.\pipe\containerd-containerd";

    pub(super) fn run(arguments: &Arguments, stop: &Stop) -> Result<()> {
        let delay = arguments.number("--delay-ms").unwrap_or_default();
        if stop.within(Duration::from_millis(delay)) {
            return Ok(());
        }
        serve(arguments.value("--pipe").unwrap_or(PIPE), stop.clone())
    }

    fn serve(pipe: &str, stop: Stop) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .doing(|| "cannot start a runtime")?;
        let served = runtime.block_on(async {
            let stopped = tokio::task::spawn_blocking(move || stop.wait());
            tokio::select! {
                _ = stopped => Ok(()),
                failed = answer(pipe) => failed,
            }
        });
        // Not dropped: that would wait for the thread that waits for the stop.
        runtime.shutdown_background();
        served
    }

    async fn answer(pipe: &str) -> Result<()> {
        let open = |first| {
            ServerOptions::new()
                .first_pipe_instance(first)
                .create(pipe)
                .doing(|| format!("cannot open {pipe}"))
        };
        let mut server = open(true)?;
        loop {
            server
                .connect()
                .await
                .doing(|| format!("cannot serve {pipe}"))?;
            // The next instance is there before this client is answered: no client finds none.
            let mut client = std::mem::replace(&mut server, open(false)?);
            // A client that left already is no failure of ours.
            let _ = client.write_all(b"k").await;
            let _ = client.flush().await;
        }
    }
}

#[cfg(not(windows))]
fn main() -> std::process::ExitCode {
    eprintln!("containerd-double runs on Windows only");
    std::process::ExitCode::FAILURE
}
