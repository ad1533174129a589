//! Structured logs on standard error, or in a file, with time in UTC.

mod rotate;

use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt};

use self::rotate::Rotating;
use crate::{Arguments, Error, LogFormat, Result};

/// The client logs each failed request as an error, also those that we expect and repeat. We count
/// requests, and say ourselves what a failure means.
const NOISE: &str = "kube_client::client::builder";

/// Sends logs to standard error, or to the file of `--log-file`, from now on. In a process that logs
/// already (a test), nothing changes.
pub(crate) fn start(arguments: &Arguments) -> Result<()> {
    let layer = match &arguments.log_file {
        None => layer(arguments.log_format, std::io::stderr),
        Some(path) => {
            let file = Rotating::open(path).map_err(|source| Error::LogFile {
                path: path.clone(),
                source,
            })?;
            layer(arguments.log_format, file)
        }
    };
    let _ = tracing_subscriber::registry()
        .with(layer.with_filter(quieter(&arguments.log_level)))
        .try_init();
    Ok(())
}

fn layer<W>(format: LogFormat, writer: W) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_writer(writer);
    match format {
        LogFormat::Text => lines.with_ansi(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

/// Without the noise, unless somebody asked for it.
fn quieter(asked: &Targets) -> Targets {
    let wanted = asked.would_enable(NOISE, &Level::DEBUG)
        || asked.iter().any(|(target, _)| target.starts_with("kube"));
    if wanted {
        asked.clone()
    } else {
        asked.clone().with_target(NOISE, LevelFilter::OFF)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat) -> String {
        let paper = Paper::default();
        let writer = paper.clone();
        let subscriber = tracing_subscriber::registry().with(layer(format, move || writer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(node = "n1", "it is done");
        });
        let bytes = paper.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_line_has_its_time_in_utc_and_its_fields() {
        let text = logged(LogFormat::Text);
        let (time, rest) = text.split_once(' ').unwrap();
        assert!(time.ends_with('Z'), "{text}");
        assert!(rest.contains("it is done node=\"n1\""), "{text}");
        let json: serde_json::Value = serde_json::from_str(&logged(LogFormat::Json)).unwrap();
        assert_eq!(json["message"], "it is done");
        assert_eq!(json["node"], "n1");
        assert!(json["timestamp"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn the_client_is_quiet_unless_somebody_asked_for_it() {
        let quiet =
            |asked: &str| !quieter(&asked.parse().unwrap()).would_enable(NOISE, &Level::ERROR);
        assert!(quiet("info"));
        assert!(quiet("info,evenkeel_agent=debug"));
        assert!(!quiet("debug"));
        assert!(!quiet("info,kube_client=error"));
    }
}
