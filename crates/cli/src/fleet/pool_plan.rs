//! `evenkeel plan --pool NAME -f NEW`: what a new or changed MachineConfig would do to a pool: the
//! difference, which nodes it disrupts and how, and in which order. Changes nothing.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result, bail};
use evenkeel_api::document::{self, Document};
use evenkeel_api::machine::machine_config::MachineConfig;
use evenkeel_api::names::pool::RENDERED_PREFIX;
use evenkeel_plan::fleet::drain;
use evenkeel_plan::fleet::node::Node;
use evenkeel_plan::fleet::node_facts::NodeFacts;
use evenkeel_plan::fleet::overview::{self, Forecast};
use evenkeel_plan::fleet::pool::{Assignment, Pool};
use evenkeel_plan::fleet::render::{self, Rendered};
use evenkeel_plan::machine::disruption::{Disruption, UnitAction};
use serde::Serialize;
use serde_json::Value;

use crate::arguments::PlanArguments;
use crate::cluster::{self, Cluster};
use crate::machine::{Compared, Wanted, markdown};
use crate::output::{self, Paint, PlanDocument};
use crate::table::{lines, table};
use crate::{Ending, input, plan};

/// How many waves are forecast one by one.
const WAVES: usize = 100;

pub(crate) fn run(arguments: &PlanArguments, name: &str) -> Result<Ending> {
    let given = given(arguments)?;
    let shown = cluster::with(&arguments.cluster, async |cluster| {
        look(&cluster, name, &given).await
    })?;
    match arguments.format.plain() {
        Some(format) => {
            output::show(format, |paint| shown.text(paint), || shown.document())?;
        }
        None => output::print(shown.markdown().as_bytes())?,
    }
    if let Some(most) = arguments.max_disruption {
        shown.hold_to(most)?;
    }
    let is_same = shown.base.plan.changes.is_empty() && shown.rows().all(|row| row.wave.is_none());
    Ok(Ending::well_if(is_same))
}

/// A MachineConfig that the person gives.
struct Given {
    name: String,
    labels: BTreeMap<String, String>,
    text: String,
}

/// The given MachineConfigs, each of them valid by itself.
fn given(arguments: &PlanArguments) -> Result<Vec<Given>> {
    let files = &arguments.configuration.files;
    input::machine_config(files)?;
    let mut all = Vec::new();
    for source in input::sources(files)? {
        let text = String::from_utf8_lossy(&source.bytes);
        let raw: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap_or_default();
        for fragment in document::fragments(&source.name, &source.bytes)? {
            let Some(name) = fragment.name.clone() else {
                bail!(
                    "{}: metadata.name is missing: it says which MachineConfig of the pool is replaced",
                    source.name
                );
            };
            if name.starts_with(RENDERED_PREFIX) {
                bail!(
                    "{}: {name} is a rendered configuration: give the MachineConfigs that it is rendered from",
                    source.name
                );
            }
            let its = raw
                .iter()
                .find(|it| it["metadata"]["name"] == name.as_str());
            let labels = its.map(|it| it["metadata"]["labels"].clone());
            all.push(Given {
                labels: serde_json::from_value(labels.unwrap_or_default()).unwrap_or_default(),
                text: fragment.to_document().to_string(),
                name,
            });
        }
    }
    Ok(all)
}

/// What it takes a node to get somewhere.
struct Way {
    plan: PlanDocument,
    disruption: Disruption,
    drains: bool,
    reboots: bool,
}

impl Way {
    /// Whether pods are down meanwhile, where drains may keep them on the node.
    fn takes_pods_down(&self, keeps_pods: bool) -> bool {
        self.reboots || (self.drains && !keeps_pods)
    }
}

/// What is shown.
struct Shown {
    pool: Pool,
    new: String,
    nodes: usize,
    /// From what the pool has now to what it would have.
    base: Compared,
    contents: evenkeel_plan::machine::desired::Contents,
    forecast: Forecast,
    /// From what a node runs to what the pool would have, by what it runs.
    from: BTreeMap<Option<String>, Result<Way, String>>,
    runs: BTreeMap<String, Option<String>>,
    /// The only node of the cluster that takes pods, if it is one of the pool's.
    only_node: Option<String>,
}

#[derive(Serialize)]
struct Row<'a> {
    node: &'a str,
    /// Which wave it goes with, from 1; none if it does not go, or later.
    wave: Option<usize>,
    from: Option<&'a str>,
    disruption: &'a str,
    actions: &'a [String],
    /// What holds it, if anything does.
    held: Option<String>,
}

impl Row<'_> {
    /// What happens to it, and what holds it.
    fn effect(&self) -> String {
        let disruption = match self.actions {
            [] => self.disruption.to_owned(),
            actions => format!("{} ({})", self.disruption, actions.join(", then ")),
        };
        match &self.held {
            Some(held) => format!("{disruption}; {held}"),
            None => disruption,
        }
    }
}

async fn look(cluster: &Cluster, name: &str, given: &[Given]) -> Result<Shown> {
    let mut pool = cluster.pool(name).await?.pool;
    let (fleet, sources) = futures::join!(cluster.fleet(), cluster.sources(&pool));
    let (fleet, mut sources) = (fleet?, sources?);
    for one in given {
        let selector = pool.machine_config_selector.as_ref();
        let label = |key: &str| one.labels.get(key).map(String::as_str);
        if !selector.is_some_and(|it| it.matches(label)) {
            output::warn([format!(
                "MachineConfig {} has no labels that pool {name} selects: the plan assumes that it has them",
                one.name
            )]);
        }
        sources.insert(one.name.clone(), one.text.clone());
    }
    let sources: Vec<_> = sources.into_iter().collect();
    let rendered = render::render(name, &sources);
    let Rendered { config, .. } = rendered.map_err(|problem| {
        anyhow::anyhow!(
            "cannot render pool {name} with these MachineConfigs: {}",
            problem.note
        )
    })?;
    let new = config.name.clone().unwrap_or_default();
    let base = match &pool.target {
        Some(target) => read(cluster, target).await?,
        None => MachineConfig::default(),
    };
    // The operator gives each configuration the policy that the cluster has.
    let wanted = Wanted::of(MachineConfig {
        disruption_policy: base.disruption_policy.clone(),
        ..config
    });
    let base = plan::between(&Wanted::of(base), &wanted)?;
    pool.target = Some(new.clone());
    let paused = std::mem::take(&mut pool.budget.paused);
    let pools: Vec<Pool> = fleet
        .pools
        .iter()
        .map(|it| {
            if it.name == name {
                pool.clone()
            } else {
                it.clone()
            }
        })
        .collect();
    let assignment = Assignment::of(&pools, &fleet.nodes);
    let members = pools
        .iter()
        .zip(&assignment.members)
        .find(|(it, _)| it.name == name);
    let members: &[&Node] = members
        .map(|(_, members)| members.as_slice())
        .unwrap_or_default();
    let forecast = overview::forecast(&pool, members, WAVES);
    pool.budget.paused = paused;
    // The order is that of the first window that is long enough; when it opens is said beside it.
    if let Some(held) = fleet.pools.iter().find(|it| it.name == name) {
        pool.budget.closed = held.budget.closed;
        pool.problems.clone_from(&held.problems);
    }
    let mut names = members.iter().map(|node| &node.name);
    let candidates: Vec<_> = fleet.facts.iter().map(NodeFacts::candidate).collect();
    let only_node = names.find(|name| drain::is_only_node(name, &candidates));
    let only_node = only_node.cloned();
    let runs: BTreeMap<String, Option<String>> = members
        .iter()
        .map(|node| (node.name.clone(), node.current_config.clone()))
        .collect();
    let mut from = BTreeMap::new();
    for config in runs.values() {
        if !from.contains_key(config) {
            from.insert(
                config.clone(),
                way(cluster, config.as_deref(), &wanted).await?,
            );
        }
    }
    Ok(Shown {
        pool,
        new,
        nodes: members.len(),
        base,
        contents: wanted.contents,
        forecast,
        from,
        runs,
        only_node,
    })
}

async fn read(cluster: &Cluster, name: &str) -> Result<MachineConfig> {
    let text = cluster.config(name).await?;
    let text = text.with_context(|| {
        format!("MachineConfig {name} does not exist, but the pool refers to it")
    })?;
    let (documents, _) = document::read(name, text.as_bytes())?;
    let config = documents.into_iter().find_map(|it| match it {
        Document::MachineConfig(config) => Some(config),
        _ => None,
    });
    Ok(config.unwrap_or_default())
}

/// What it takes a node to get from what it runs to what is wanted; or why it may not go there.
async fn way(
    cluster: &Cluster,
    from: Option<&str>,
    wanted: &Wanted,
) -> Result<Result<Way, String>> {
    let old = match from {
        // What it has by chance is adopted; what it has not is written. Nobody knows from here.
        None => return Ok(Err("unknown: the node runs no configuration yet".to_owned())),
        Some(name) => match cluster.config(name).await? {
            Some(_) => read(cluster, name).await?,
            None => {
                return Ok(Err(format!(
                    "unknown: MachineConfig {name} does not exist any more"
                )));
            }
        },
    };
    Ok(match plan::between(&Wanted::of(old), wanted) {
        Ok(compared) => Ok(Way {
            disruption: compared.plan.disruption(),
            drains: compared.plan.actions.contains(&UnitAction::Drain),
            reboots: compared.plan.actions.contains(&UnitAction::Reboot),
            plan: PlanDocument::of(&compared.plan),
        }),
        Err(refused) => Err(format!("refused: {refused:#}")),
    })
}

impl Shown {
    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let waves = self.forecast.waves.iter().enumerate();
        let going =
            waves.flat_map(|(at, wave)| wave.iter().map(move |node| (node, Some(at + 1), None)));
        let later = self
            .forecast
            .later
            .iter()
            .map(|node| (node, None, Some("in a later wave".to_owned())));
        let held = self
            .forecast
            .held
            .iter()
            .map(|(node, why)| (node, None, Some(why.to_string())));
        going
            .chain(later)
            .chain(held)
            .map(|(node, wave, held)| self.row(node, wave, held))
    }

    fn row<'a>(&'a self, node: &'a str, wave: Option<usize>, held: Option<String>) -> Row<'a> {
        let runs = self.runs.get(node).and_then(Option::as_deref);
        let way = self.from.get(&runs.map(str::to_owned));
        let (disruption, actions): (&str, &[String]) = match way {
            Some(Ok(way)) => (&way.plan.disruption, &way.plan.actions),
            Some(Err(why)) => (why, &[]),
            None => ("", &[]),
        };
        Row {
            node,
            wave,
            from: runs,
            disruption,
            actions,
            held,
        }
    }

    /// An error if a node would be disrupted more than that, or nobody knows how much.
    fn hold_to(&self, most: Disruption) -> Result<()> {
        let mut above = Vec::new();
        for row in self.rows() {
            let way = self.from.get(&row.from.map(str::to_owned));
            match way {
                Some(Ok(way)) if way.disruption > most => {
                    above.push(format!("node {} needs {}", row.node, way.disruption));
                }
                // A reboot is what it may come to.
                Some(Err(why)) if most < Disruption::Reboot => {
                    above.push(format!("node {}: {why}", row.node));
                }
                _ => {}
            }
        }
        let base = self.base.plan.disruption();
        if above.is_empty() && base > most {
            above.push(format!("the change needs {base}"));
        }
        match above.first() {
            None => Ok(()),
            Some(first) => bail!(
                "--max-disruption allows {most}, and {first}{}",
                match above.len() - 1 {
                    0 => String::new(),
                    more => format!(" (and {more} more)"),
                }
            ),
        }
    }

    /// What holds the pool as a whole, and what goes down with it.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.pool.budget.paused {
            remarks.push(format!(
                "The pool is paused: the rollout starts after `evenkeel rollout resume {}`.",
                self.pool.name
            ));
        }
        if let Some(closed) = self.pool.budget.closed {
            remarks.push(format!("No node may start now: {closed}."));
        }
        remarks
    }

    /// As a comment on a pull request.
    fn markdown(&self) -> String {
        let Compared { plan, seen } = &self.base;
        output::warn(&plan.warnings);
        let name = markdown::escaped(&self.pool.name);
        let limit = self.pool.budget.max_unavailable.of(self.nodes);
        let mut text = format!(
            "### Pool {name}: {}\n\n{} nodes, at most {limit} at once, to `{}`.\n\n",
            plan.disruption(),
            self.nodes,
            self.new
        );
        let remarks = self.remarks().into_iter();
        let problems = self.pool.problems.iter().map(ToString::to_string);
        for remark in remarks.chain(problems).chain(self.outage()) {
            let _ = writeln!(text, "> {}\n", markdown::escaped(&remark));
        }
        text.push_str(&markdown::plan(plan, &seen.contents, &self.contents));
        let rows = self.rows().map(|row| {
            let wave = row.wave.map_or_else(|| "-".to_owned(), |it| it.to_string());
            let runs = row.from.unwrap_or("-").to_owned();
            [wave, row.node.to_owned(), runs, row.effect()]
        });
        let head = ["wave", "node", "current", "disruption"];
        let _ = write!(text, "\n{}", markdown::table(&head, rows));
        text
    }

    /// The outage that a drain of the cluster's only node is, if it is drained, or may be.
    fn outage(&self) -> Option<String> {
        let only = self.only_node.as_deref()?;
        let row = self.rows().find(|row| row.node == only)?;
        let keeps_pods = self.pool.drain_keeps_pods == Some(true);
        let is_known = match self.from.get(&row.from.map(str::to_owned))? {
            Ok(way) if way.takes_pods_down(keeps_pods) => true,
            Ok(_) => return None,
            Err(_) => false,
        };
        let when = match (is_known, keeps_pods) {
            (true, false) => "while it is drained",
            (false, false) => "if it has to be drained",
            (true, true) => "while it reboots",
            (false, true) => "if it has to reboot",
        };
        Some(format!(
            "node {only} is the only node that takes pods: {when}, every workload of the cluster is down until it is back. Add a node first, or pause the pool until a maintenance window: docs/drain.md#a-cluster-with-one-node"
        ))
    }

    fn text(&self, paint: Paint) -> String {
        let Compared { plan, seen } = &self.base;
        output::warn(&plan.warnings);
        let mut text = output::plan_text(plan, &seen.contents, &self.contents, paint);
        let limit = self.pool.budget.max_unavailable.of(self.nodes);
        let _ = writeln!(
            text,
            "\nPool {} would roll out {}: {} nodes, at most {limit} at once.",
            self.pool.name, self.new, self.nodes
        );
        for remark in self.remarks() {
            let _ = writeln!(text, "{remark}");
        }
        for problem in &self.pool.problems {
            let _ = writeln!(text, "{} {problem}", paint.red("!"));
        }
        if let Some(outage) = self.outage() {
            let _ = writeln!(text, "{} {outage}", paint.red("!"));
        }
        let mut rows = table(&["WAVE", "NODE", "CURRENT", "DISRUPTION"], paint);
        let mut is_empty = true;
        for row in self.rows() {
            is_empty = false;
            let effect = row.effect();
            let wave = row
                .wave
                .map_or_else(|| "-".to_owned(), |wave| wave.to_string());
            rows.add_row([
                wave,
                row.node.to_owned(),
                row.from.unwrap_or("-").to_owned(),
                effect,
            ]);
        }
        if !is_empty {
            text.push('\n');
            text.push_str(&lines(&rows));
        }
        text
    }

    /// The plan as for one machine, and who goes when.
    fn document(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct Document<'a> {
            #[serde(flatten)]
            plan: PlanDocument,
            pool: &'a str,
            configuration: &'a str,
            limit: usize,
            paused: bool,
            closed: Option<String>,
            /// What is down with the cluster's only node.
            outage: Option<String>,
            nodes: Vec<Row<'a>>,
        }
        output::warn(&self.base.plan.warnings);
        Document {
            plan: PlanDocument::of(&self.base.plan),
            pool: &self.pool.name,
            configuration: &self.new,
            limit: self.pool.budget.max_unavailable.of(self.nodes),
            paused: self.pool.budget.paused,
            closed: self.pool.budget.closed.map(|it| it.to_string()),
            outage: self.outage(),
            nodes: self.rows().collect(),
        }
    }
}
