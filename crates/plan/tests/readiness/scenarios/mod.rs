//! Golden scenarios: what happens to a few nodes as a small script, and what is decided about them, as a snapshot that a
//! person reads.
//!
//! A script is a list of lines:
//!
//! ```text
//! rule gpu evict 1m: dp mon      # a rule: each extension renews a Lease; `one-shot=NetReady` is a condition
//! node n1 in zone-a: dp mon      # a node that is there with these extensions alive
//! begin                          # the operator begins, or another one takes over
//! joins n2                       # a new node, without any extension
//! starts n1 dp, stops n1 dp, condition n1 NetReady True
//! off n1, on n1, reboots n1      # the machine is cut off, is back, has another boot
//! freeze, thaw                   # the API server
//! pass 30 seconds                # so much time passes, with everything that is alive renewing
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use evenkeel_plan::readiness::{ReadinessAction, TaintChange};
use serde_json::{Value, json};

use crate::script::{Result, lines, number};
use crate::world::{World, rule};

struct Scenario {
    world: World,
    boots: u32,
    /// What was last shown of each node.
    nodes: BTreeMap<String, String>,
    text: String,
}

impl Scenario {
    fn happens(&mut self, line: &str) -> Result<()> {
        let _ = writeln!(self.text, "\n> {line}");
        let (head, extensions) = line.split_once(':').unwrap_or((line, ""));
        let words: Vec<&str> = head.split_whitespace().collect();
        let before = self.world.log.len();
        let world = &mut self.world;
        match words[..] {
            ["rule", name, "evict", after] => {
                let extensions: Vec<Value> = extensions.split_whitespace().map(extension).collect();
                world.set_rule(rule(
                    name,
                    &json!({
                        "nodeSelector": { "matchLabels": { "pool": "gpu" } },
                        "evictAfter": after, "extensions": extensions,
                    }),
                ));
            }
            ["node", name, "in", zone] => {
                let extensions: Vec<&str> = extensions.split_whitespace().collect();
                world.add(name, zone, &extensions);
            }
            ["begin"] => world.begin(),
            ["joins", name] => world.join(name, false),
            ["starts", name, extension] => {
                let extensions = &mut world.machine(name).extensions;
                extensions.insert(extension.to_owned(), true);
                world.renew(name, true);
                world.act();
            }
            ["stops", name, extension] => {
                let extensions = &mut world.machine(name).extensions;
                extensions.insert(extension.to_owned(), false);
            }
            ["condition", name, kind, status] => {
                let stamp = world.now.to_string();
                world.condition(name, kind, status, &stamp);
            }
            ["off", name] => world.machine(name).connected = false,
            ["on", name] => {
                world.machine(name).connected = true;
                world.renew(name, true);
                world.act();
            }
            ["reboots", name] => {
                self.boots += 1;
                let boot = format!("boot-{}", self.boots);
                world.reboot(name, &boot);
            }
            ["freeze"] => world.freeze(),
            ["thaw"] => world.thaw(),
            ["pass", seconds, "seconds"] => world.pass(1_000 * number::<u64>(seconds)?),
            _ => return Err(format!("nobody knows what {line:?} is")),
        }
        let done = self.world.log[before..].iter();
        let done: Vec<_> = done.map(|(at, action)| (*at, shown(action))).collect();
        // What is done again and again is shown once.
        for same in done.chunk_by(|one, next| one.1 == next.1) {
            let (at, what) = &same[0];
            let times = match same.len() {
                1 => String::new(),
                times => format!(" ({times} times)"),
            };
            let _ = writeln!(self.text, "{}: {what}{times}", clock(*at));
        }
        let names: Vec<_> = self.world.machines.keys().cloned().collect();
        for name in names {
            let Some(view) = self.world.readiness.node(&name, self.world.moment()) else {
                continue;
            };
            let extensions = view
                .extensions
                .iter()
                .map(|it| format!("{} {}", it.extension, it.says));
            let extensions: Vec<_> = extensions.collect();
            let taint = if self.world.is_tainted(&name) {
                "tainted"
            } else {
                "takes pods"
            };
            let line = format!("{name} {taint}, {} [{}]", view.phase, extensions.join(", "));
            if self.nodes.get(&name) != Some(&line) {
                let _ = writeln!(self.text, "{}   {line}", clock(self.world.now));
                self.nodes.insert(name, line);
            }
        }
        Ok(())
    }
}

/// Since the beginning of the script.
fn clock(at: u64) -> String {
    let passed = Duration::from_millis(at.saturating_sub(1_000));
    format!("{:>6.1}s", passed.as_secs_f64())
}

fn extension(word: &str) -> Value {
    match word.strip_prefix("one-shot=") {
        Some(kind) => json!({ "name": kind.to_lowercase(), "condition": { "type": kind } }),
        None => json!({ "name": word, "lease": {} }),
    }
}

fn shown(action: &ReadinessAction) -> String {
    match action {
        ReadinessAction::Write { node, change, .. } => match change {
            TaintChange::Taint(why) => format!("taint {node}: {why}"),
            TaintChange::Untaint => format!("untaint {node}"),
            TaintChange::Record => format!("record who holds {node}"),
        },
        ReadinessAction::Confirm { node, .. } => format!("read again what {node} is silent about"),
        ReadinessAction::Publish { node, .. } => format!("publish conditions of {node}"),
        ReadinessAction::Relist(feed) => format!("list {} again", feed.describe()),
        ReadinessAction::Evict { node, .. } => format!("evict the pods of {node}"),
        ReadinessAction::Spare(node) => format!("stop evicting pods of {node}"),
    }
}

#[test]
fn every_scenario_is_decided_as_its_snapshot_says() {
    insta::glob!("*.script", |path| {
        let mut scenario = Scenario {
            world: World::new(&[]),
            boots: 0,
            nodes: BTreeMap::new(),
            text: String::new(),
        };
        for line in lines(path) {
            scenario.happens(&line).unwrap();
        }
        insta::assert_snapshot!(scenario.text);
    });
}
