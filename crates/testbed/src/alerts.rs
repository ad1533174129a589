//! The alerts that we ship, judged by Prometheus' own `promtool`: whether they can be loaded, and whether they
//! fire when certain numbers are seen for a while. Time is simulated, so nobody waits for it.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::need::Need;
use crate::process::{output, words_of};
use crate::prometheus::PROMTOOL;
use crate::scratch::Scratch;
use crate::{Doing, Error, Result};

/// How often numbers are taken and alerts are judged.
const STEP: &str = "10s";
/// For how many steps there are numbers: longer than any alert waits.
const STEPS: u32 = 720;

const RULES: &str = "rules.yaml";
const QUESTION: &str = "question.yaml";

/// Whether promtool is at hand or can be built.
pub(crate) fn can_be_judged() -> Result<()> {
    PROMTOOL.can_be_had()
}

/// A file of alerts.
#[derive(Debug)]
pub struct Alerts {
    rules: Vec<Value>,
    scratch: Scratch,
}

impl Alerts {
    /// What a test that judges alerts needs.
    pub const NEEDS: &[Need] = &[Need::Made(can_be_judged)];

    /// Makes promtool ready, so that the first test does not have to.
    pub fn prepare() -> Result<()> {
        PROMTOOL.find().map(|_| ())
    }

    /// Reads one of the files in `deploy/alerts`.
    pub fn read(file: &str) -> Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/alerts");
        let text = std::fs::read_to_string(folder.join(file));
        let text = text.doing(|| format!("cannot read {file}"))?;
        let object: Value =
            serde_saphyr::from_str(&text).doing(|| format!("{file} is not YAML"))?;
        let rules = object["spec"]["groups"][0]["rules"].as_array().cloned();
        let rules = rules.ok_or_else(|| Error::failed(format!("{file} has no rules")))?;
        let scratch = Scratch::new("alerts")?;
        let alerts = Self { rules, scratch };
        alerts.write(RULES, &object["spec"])?;
        Ok(alerts)
    }

    /// Its rules.
    pub fn rules(&self) -> &[Value] {
        &self.rules
    }

    /// Whether Prometheus loads them, and has nothing to say about them.
    pub fn can_be_loaded(&self) -> Result<()> {
        let checked = promtool(&self.scratch, &["check", "rules", "--lint-fatal", RULES])?;
        if checked.status.success() {
            return Ok(());
        }
        Err(Error::failed(words_of(&checked)))
    }

    /// Whether `alert` fires when these numbers stay for as long as `after` from now. They are lines as programs
    /// show them at `/metrics`; what else is between them does not matter.
    pub fn fires(&self, alert: &str, numbers: &str, after: Duration) -> Result<bool> {
        self.fires_from(SystemTime::now(), alert, numbers, after)
    }

    /// As [`Self::fires`], of numbers that stay from `start` on.
    pub fn fires_from(
        &self,
        start: SystemTime,
        alert: &str,
        numbers: &str,
        after: Duration,
    ) -> Result<bool> {
        let rule = self.rules.iter().find(|it| it["alert"] == alert);
        let expression = rule.and_then(|it| it["expr"].as_str());
        let expression =
            expression.ok_or_else(|| Error::failed(format!("alert {alert} does not exist")))?;
        let series: Vec<Value> = numbers
            .lines()
            .filter_map(|line| line.trim().rsplit_once(' '))
            .filter(|(series, _)| is_named(series, expression))
            .map(
                |(series, value)| json!({ "series": series, "values": format!("{value}x{STEPS}") }),
            )
            .collect();
        let start = start.duration_since(SystemTime::UNIX_EPOCH);
        let start = start.doing(|| "a time before 1970")?;
        let firing = format!(r#"ALERTS{{alertname="{alert}", alertstate="firing"}}"#);
        let mut said = String::new();
        // It compares with what is expected, and says only whether that is right.
        for (answer, value) in [(true, 1), (false, 0)] {
            let question = json!({
                "rule_files": [RULES],
                "evaluation_interval": STEP,
                "tests": [{
                    "interval": STEP,
                    "start_timestamp": start.as_secs(),
                    "input_series": series,
                    "promql_expr_test": [{
                        "expr": format!("clamp_max(count({firing}), 1) or vector(0)"),
                        "eval_time": format!("{}s", after.as_secs()),
                        "exp_samples": [{ "labels": "{}", "value": value }],
                    }],
                }],
            });
            self.write(QUESTION, &question)?;
            let judged = promtool(&self.scratch, &["test", "rules", QUESTION])?;
            if judged.status.success() {
                return Ok(answer);
            }
            said = words_of(&judged);
        }
        Err(Error::failed(format!(
            "promtool cannot evaluate {alert}: {said}"
        )))
    }

    /// Writes what promtool reads. All JSON is YAML, too.
    fn write(&self, file: &str, contents: &Value) -> Result<()> {
        let written = std::fs::write(self.scratch.path().join(file), contents.to_string());
        written.doing(|| format!("cannot write {file}"))
    }
}

/// Whether `expression` speaks of this series.
fn is_named(series: &str, expression: &str) -> bool {
    let name = series.split('{').next().unwrap_or_default();
    let mut words = expression.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    words.any(|it| it == name)
}

fn promtool(folder: &Scratch, words: &[&str]) -> Result<Output> {
    let mut command = Command::new(PROMTOOL.find()?);
    output(command.args(words).current_dir(folder.path()), &[])
}
