//! Golden scenarios: Windows nodes that are upgraded or removed as a small script, and what is decided, step by step, as a
//! snapshot that a person reads.
//!
//! A script is a list of lines:
//!
//! ```text
//! fleet 3 nodes limit 1          # the first line
//! operator | operator killed     # the operator decides and writes; killed, it has not written its status
//! drain                          # the drain controller goes one step on
//! supply win-0000                # files and the new agent are brought, if that is due
//! agent win-0000, dies win-0000
//! boot-wanted win-0000           # its agent asks for a drain of its own
//! delist win-0000, list win-0000, take-out win-0000
//! version 3, breaks 3            # the version that all go to, one whose services do not start
//! pause, resume
//! settle                         # everybody does what they should, until nothing changes
//! ```

use std::fmt::Write;

use evenkeel_api::windows::version::StatedVersion;
use evenkeel_plan::fleet::budget::MaxUnavailable;

use crate::script::{Result, lines, number};
use crate::world::{World, version};

/// Rounds after which a script that settles must have.
const ROUNDS: usize = 100;

struct Scenario {
    world: World,
    text: String,
}

impl Scenario {
    fn begin(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["fleet", nodes, "nodes", "limit", limit] = words[..] else {
            return Err(format!("{line:?} is not: fleet N nodes limit N"));
        };
        let limit = MaxUnavailable::Count(number(limit)?);
        Ok(Self {
            world: World::new(number(nodes)?, limit),
            text: format!("{line}\n"),
        })
    }

    fn at(&self, name: &str) -> Result<usize> {
        let mut nodes = self.world.nodes.iter();
        let at = nodes.position(|it| it.name == name);
        at.ok_or_else(|| format!("there is no node {name}"))
    }

    fn happens(&mut self, line: &str) -> Result<()> {
        let _ = writeln!(self.text, "\n> {line}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = match words[..] {
            [_, name] if name.starts_with("win-") => self.at(name)?,
            _ => 0,
        };
        let before = self.lines();
        let world = &mut self.world;
        match words[..] {
            ["operator"] => self.operate(false),
            ["operator", "killed"] => self.operate(true),
            ["drain"] => world.drain(),
            ["supply", _] => {
                let done = world.supply(at);
                let _ = writeln!(self.text, "{}", if done { "brought" } else { "not due" });
            }
            ["agent", _] => world.agent(at),
            ["dies", _] => world.nodes[at].ready = false,
            ["boot-wanted", _] => world.ask_for_boot(at),
            ["delist", _] => world.list(at, false),
            ["list", _] => world.list(at, true),
            ["take-out", _] => world.take_out(at),
            ["version", to] => world.target = version(number(to)?),
            ["breaks", which] => world.broken = Some(version(number(which)?).version),
            ["pause"] => world.pool.budget.paused = true,
            ["resume"] => world.pool.budget.paused = false,
            ["settle"] => return self.settle(),
            _ => return Err(format!("nobody knows what {line:?} is")),
        }
        for line in self.lines().iter().filter(|it| !before.contains(it)) {
            let _ = writeln!(self.text, "{line}");
        }
        Ok(())
    }

    /// The operator decides: what it decided of each node is shown, and why nobody else begins.
    fn operate(&mut self, is_killed: bool) {
        let round = self.world.round();
        let mut decided: Vec<_> = round
            .rollouts
            .iter()
            .map(|it| format!("{}: {:?}", it.node.name, it.state))
            .collect();
        decided.sort();
        let stopped = round.stopped.clone();
        for line in decided {
            let _ = writeln!(self.text, "{line}");
        }
        if let Some(why) = stopped {
            let _ = writeln!(self.text, "stopped: {why}");
        }
        self.world.operate(is_killed);
    }

    fn settle(&mut self) -> Result<()> {
        let limit = self.world.limit();
        for round in 1..=ROUNDS {
            let before = (self.world.nodes.clone(), self.world.granted.clone());
            self.world.calm_round();
            let down = self.world.down();
            assert!(down.len() <= limit, "too many are down: {down:?}");
            if before == (self.world.nodes.clone(), self.world.granted.clone()) {
                let _ = writeln!(self.text, "after {round} rounds:");
                for line in self.lines() {
                    let _ = writeln!(self.text, "{line}");
                }
                return Ok(());
            }
        }
        Err(format!("it never settles:\n{}", self.text))
    }

    /// Every node, one in a line.
    fn lines(&self) -> Vec<String> {
        let said = |text: Option<&String>| match text.map(String::as_str) {
            None | Some("") => "-".to_owned(),
            Some(text) => text.to_owned(),
        };
        let text = |it: Option<&StatedVersion>| it.map(ToString::to_string);
        let lines = self.world.nodes.iter().map(|node| {
            let windows = node.windows.as_deref();
            let granted = self.world.granted.iter().find(|it| it.node == node.name);
            let marks = [
                (!node.ready, ", not ready"),
                (node.unschedulable, ", cordoned"),
                (node.claims_permit(), ", has a permit"),
                (
                    windows.is_some_and(|it| it.supplied.is_some()),
                    ", has its files",
                ),
            ];
            let marks: Vec<&str> = marks.iter().filter(|it| it.0).map(|it| it.1).collect();
            format!(
                "{}: runs {}, is told {}, phase {}, drain {}, reason {}{}",
                node.name,
                said(text(windows.and_then(|it| it.version.as_ref())).as_ref()),
                said(text(windows.and_then(|it| it.desired_version.as_ref())).as_ref()),
                granted.map_or("-", |it| it.phase.as_str()),
                said(node.desired_drain.as_ref()),
                said(node.reason.as_ref()),
                marks.concat()
            )
        });
        lines.collect()
    }
}

#[test]
fn every_scenario_is_decided_as_its_snapshot_says() {
    insta::glob!("*.script", |path| {
        let mut lines = lines(path).into_iter();
        let mut scenario = Scenario::begin(&lines.next().unwrap_or_default()).unwrap();
        for line in lines {
            scenario.happens(&line).unwrap();
        }
        insta::assert_snapshot!(scenario.text);
    });
}
