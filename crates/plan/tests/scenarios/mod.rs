//! Golden scenarios: a fleet and what happens to it as a small script, and what the planners decide, step by step, as a
//! snapshot that a person reads. The independent checker sees every decision.
//!
//! A script is a list of lines:
//!
//! ```text
//! fleet 4 nodes 2 zones limit 1    # the first line
//! rollout | drain                  # the operator decides, and writes
//! agent n1 | agent n1 fails        # an agent goes one step on
//! settle                           # rollout, drain and all agents, until nothing changes
//! gives-up n1, power n1, cordon n1, tamper n1, drift n1, gone n1
//! target rendered-2, limit 2, pause, join
//! ```

use std::fmt::Write;

use evenkeel_api::machine::node_state::NodeState;
use evenkeel_plan::fleet::budget::MaxUnavailable;
use evenkeel_plan::fleet::node::Node;

use crate::fleet::{Deed, Fleet};
use crate::script::{Result, lines, number};

/// Steps after which a script that settles must have.
const ROUNDS: usize = 100;

struct Scenario {
    fleet: Fleet,
    text: String,
}

impl Scenario {
    fn begin(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["fleet", nodes, "nodes", zones, "zones", "limit", limit] = words[..] else {
            return Err(format!("{line:?} is not: fleet N nodes N zones limit N"));
        };
        let limit = MaxUnavailable::Count(number(limit)?);
        Ok(Self {
            fleet: Fleet::new(number(nodes)?, number(zones)?, limit),
            text: format!("{line}\n"),
        })
    }

    /// The node of that name, as deeds count them.
    fn at(&self, name: &str) -> Result<usize> {
        let mut names = self.fleet.nodes.iter();
        let at = names.position(|it| it.name == name);
        at.ok_or_else(|| format!("there is no node {name}"))
    }

    fn happens(&mut self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let written = usize::MAX;
        let deed = match words[..] {
            ["rollout"] => Deed::RollOut { written },
            ["drain"] => Deed::Drain { written },
            ["agent", name] => Deed::Agent {
                at: self.at(name)?,
                fails: false,
            },
            ["agent", name, "fails"] => Deed::Agent {
                at: self.at(name)?,
                fails: true,
            },
            ["gives-up", name] => Deed::GivesUp { at: self.at(name)? },
            ["power", name] => Deed::Power { at: self.at(name)? },
            ["cordon", name] => Deed::Cordon { at: self.at(name)? },
            ["tamper", name] => Deed::Tamper { at: self.at(name)? },
            ["drift", name] => Deed::Drift { at: self.at(name)? },
            ["gone", name] => Deed::Gone { at: self.at(name)? },
            ["target", name] => Deed::Retarget {
                to: number(name.trim_start_matches("rendered-"))?,
            },
            ["limit", to] => Deed::Limit { to: number(to)? },
            ["pause"] => Deed::Pause,
            ["join"] => Deed::Join,
            ["settle"] => return self.settle(),
            _ => return Err(format!("nobody knows what {line:?} is")),
        };
        let _ = writeln!(self.text, "\n> {line}");
        let before = self.fleet.nodes.clone();
        self.fleet.happens(&deed);
        for decided in &self.fleet.decided {
            let _ = writeln!(self.text, "{decided}");
        }
        if self.fleet.decided.is_empty() {
            self.show(|node| !before.contains(node));
        }
        Ok(())
    }

    /// Everybody goes on until nothing changes any more; only where that leads is shown.
    fn settle(&mut self) -> Result<()> {
        let _ = writeln!(self.text, "\n> settle");
        for round in 1..=ROUNDS {
            let before = self.fleet.nodes.clone();
            let written = usize::MAX;
            for deed in [Deed::RollOut { written }, Deed::Drain { written }] {
                self.fleet.happens(&deed);
            }
            for at in 0..self.fleet.nodes.len() {
                self.fleet.happens(&Deed::Agent { at, fails: false });
            }
            if self.fleet.nodes == before {
                let _ = writeln!(self.text, "after {round} rounds:");
                self.show(|_| true);
                return Ok(());
            }
        }
        Err(format!("it never settles:\n{}", self.text))
    }

    /// These nodes, one in a line.
    fn show(&mut self, which: impl Fn(&Node) -> bool) {
        for node in self.fleet.nodes.iter().filter(|it| which(it)) {
            let said = |text: &Option<String>| match text.as_deref() {
                None | Some("") => "-".to_owned(),
                Some(text) => text.to_owned(),
            };
            let marks = [
                (node.unschedulable, ", cordoned"),
                (!node.ready, ", not ready"),
                (node.drain_granted.is_some(), ", has a permit"),
            ];
            let marks: Vec<&str> = marks.iter().filter(|it| it.0).map(|it| it.1).collect();
            let _ = writeln!(
                self.text,
                "{} in {}: runs {}, is told {}, state {}, reason {}{}",
                node.name,
                node.zone(),
                said(&node.current_config),
                said(&node.desired_config),
                node.state.as_ref().map_or("-", NodeState::as_str),
                said(&node.reason),
                marks.concat()
            );
        }
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
