//! Nodes and machines that lie, told to an operator with the rights that it ships with, which works on an honest node at the
//! same time. Every lie is a row of a table: who tells it, and what must not come of it.

mod crowd;
mod kubelet;
mod local_user;
mod machine;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use evenkeel_testbed::process::run;
use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::windows_instance::WindowsInstance;
use evenkeel_testbed::{Doing, Error, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use self::machine::{Answer, Habits, LyingMachine, Thing};
use crate::instances::bed::{Bed, LONG, SERVICES_MAP, is_skipped};
use crate::scene::{annotated, is_cordoned};

const HONEST: &str = "op-honest";
/// A node of somebody else, which has nothing to do with Windows.
const MASTER: &str = "op-master";
const INSTANCE: &str = "evenkeel.dev/instance";
/// More than any shared object may get of a machine's words.
const TALE: usize = 900 * 1024;

/// What is expected of a lie that a machine tells.
struct Lie {
    what: &'static str,
    habits: Habits,
    /// What it says that it is, and what it answers to other questions.
    host: &'static str,
    node: Option<&'static str>,
    others: &'static [(&'static str, &'static str, u32)],
    /// Whether it says that our agent's service is there already.
    says_ours: bool,
    /// Why it fails.
    category: &'static str,
    /// Whether our agent may be run on it at all.
    is_run: bool,
}

const PLAIN: Lie = Lie {
    what: "",
    habits: Habits::NONE,
    host: "op-liar",
    node: None,
    others: &[],
    says_ours: false,
    category: "NodeNameTaken",
    is_run: true,
};

/// What machines lie about: their name, what they had before, their host key, their files, and how much they have to say.
fn lies() -> Vec<Lie> {
    let planted = || Thing::File(b"MZ planted by a local user".to_vec());
    vec![
        Lie {
            what: "it has the computer name of an honest node",
            host: HONEST,
            ..PLAIN
        },
        Lie {
            what: "the same in capitals",
            host: "OP-HONEST",
            ..PLAIN
        },
        Lie {
            what: "it has the computer name of a Linux node",
            host: MASTER,
            ..PLAIN
        },
        Lie {
            what: "it was an honest node before",
            node: Some(HONEST),
            ..PLAIN
        },
        Lie {
            what: "it is a Linux node already, and our agent runs there",
            node: Some(MASTER),
            says_ours: true,
            ..PLAIN
        },
        Lie {
            what: "its name leads to another object",
            node: Some("../../namespaces/kube-system"),
            category: "InvalidNodeName",
            ..PLAIN
        },
        Lie {
            what: "it has the name of the API server",
            host: "kubernetes.default.svc",
            category: "InvalidNodeName",
            ..PLAIN
        },
        Lie {
            what: "its name is a command of its own",
            host: "op-liar\" & shutdown.exe /r & echo \"",
            category: "InvalidNodeName",
            ..PLAIN
        },
        Lie {
            what: "it is an honest node already, and our agent runs there",
            node: Some(HONEST),
            says_ours: true,
            ..PLAIN
        },
        Lie {
            what: "it has one name first, and that of an honest node later",
            host: "op-liar-late",
            others: &[(" bootstrap ", r#"{"node":"op-honest"}"#, 0)],
            ..PLAIN
        },
        Lie {
            what: "it says that it is a node that it never became",
            host: "op-liar-never",
            others: &[(" bootstrap ", r#"{"node":"op-liar-never"}"#, 0)],
            category: "NodeGone",
            ..PLAIN
        },
        Lie {
            what: "it has a megabyte to say",
            others: &[(" prepare", "TALE", 1)],
            category: "AgentFailed",
            ..PLAIN
        },
        Lie {
            what: "it answers a megabyte that is no answer",
            others: &[(" prepare", "TALE", 0)],
            category: "AgentFailed",
            ..PLAIN
        },
        Lie {
            what: "its answer has no end of brackets",
            others: &[(" prepare", "DEEP", 0)],
            category: "AgentFailed",
            ..PLAIN
        },
        Lie {
            what: "it is somebody else the second time",
            others: &[(" prepare", "not yet", 1)],
            habits: Habits {
                changes_its_key: true,
                ..Habits::NONE
            },
            category: "HostKeyChanged",
            ..PLAIN
        },
        Lie {
            what: "our agent is there, but another program is read",
            habits: Habits {
                garbles: true,
                ..Habits::NONE
            },
            category: "CopyFailed",
            is_run: false,
            ..PLAIN
        },
        Lie {
            what: "its folder leads elsewhere",
            habits: Habits {
                things: vec![("/C:/k", Thing::Link)],
                ..Habits::NONE
            },
            category: "ForeignFolder",
            is_run: false,
            ..PLAIN
        },
        Lie {
            what: "a local user has put an agent into our folder",
            host: HONEST,
            habits: Habits {
                things: vec![
                    ("/C:/k", Thing::Folder),
                    ("/C:/k/evenkeel-agent.exe", planted()),
                    ("/C:/k/version.dll", planted()),
                ],
                ..Habits::NONE
            },
            ..PLAIN
        },
        Lie {
            what: "our folder cannot be closed",
            others: &[("icacls.exe", "access denied", 5)],
            category: "AgentFailed",
            is_run: false,
            ..PLAIN
        },
    ]
}

/// What a liar answers: as an honest machine would, but for its lie.
fn answer(lie: &Lie, sums: BTreeMap<String, Option<String>>) -> Answer {
    let machine = json!({
        "hostName": lie.host, "node": lie.node, "addresses": ["10.96.0.1"],
        "services": if lie.says_ours { vec!["evenkeel-agent"] } else { Vec::new() },
    });
    let (others, says_ours) = (lie.others, lie.says_ours);
    Box::new(move |line| {
        if let Some((_, words, code)) = others.iter().find(|(word, ..)| line.contains(word)) {
            let words = match *words {
                "TALE" => "ä\r\n\"".repeat(TALE / 5),
                "DEEP" => format!("{{\"machine\":{}", "[".repeat(TALE)),
                words => words.to_owned(),
            };
            return (words, *code);
        }
        if line.contains("reg.exe") {
            let path = r#"    ImagePath    REG_EXPAND_SZ    "C:\k\evenkeel-agent.exe" controller"#;
            return if says_ours {
                (path.to_owned(), 0)
            } else {
                (String::new(), 1)
            };
        }
        if line.contains(" prepare") {
            return (
                json!({ "machine": machine, "checksums": sums }).to_string(),
                0,
            );
        }
        let is_sums = line.contains(" checksums");
        (if is_sums { json!(sums) } else { json!({}) }.to_string(), 0)
    })
}

/// The payload's checksums, as anybody can read them.
async fn sums(bed: &Bed) -> Result<BTreeMap<String, Option<String>>> {
    let maps: Api<ConfigMap> = Api::namespaced(bed.scene.client.clone(), &bed.scene.name);
    let map = maps.get(SERVICES_MAP).await.doing(|| "no services")?;
    let data = map.data.unwrap_or_default();
    let files: Vec<Value> = data
        .get("files")
        .and_then(|it| serde_json::from_str(it).ok())
        .unwrap_or_default();
    let text = |it: &Value| it.as_str().map(str::to_owned);
    let sums = files
        .iter()
        .filter_map(|it| Some((text(&it["path"])?, text(&it["checksum"]))));
    Ok(sums.collect())
}

/// A node of somebody else, on Linux.
async fn make_master(bed: &Bed) -> Result<Node> {
    let node: Node = serde_json::from_value(json!({
        "metadata": { "name": MASTER, "labels": { "kubernetes.io/os": "linux", "place": bed.scene.name } },
    }))
    .doing(|| "no Node")?;
    let made = bed
        .scene
        .nodes()
        .create(&PostParams::default(), &node)
        .await;
    made.doing(|| "cannot make a Node")
}

/// Nobody has touched a node: it is the same object, not cordoned, without a new annotation of ours.
async fn is_as_before(bed: &Bed, before: &Node) -> Result<()> {
    let now = bed.scene.node(&before.name_any()).await?;
    let same = now.uid() == before.uid()
        && is_cordoned(&now) == is_cordoned(before)
        && annotated(&now, INSTANCE) == annotated(before, INSTANCE);
    if same {
        return Ok(());
    }
    Err(Error::failed(format!("{before:?} became {now:?}")))
}

/// Waits until the operator says of each liar what is wrong with it.
async fn all_found_out(bed: &Bed, liars: &[(Lie, LyingMachine)]) -> Result<()> {
    until_async("all lies to be found out", LONG * 2, async || {
        let records = bed.scene.records().await?;
        let open: Vec<String> = liars
            .iter()
            .filter_map(|(lie, machine)| {
                let record = records.get(&machine.address.to_string());
                let failed = record.map(|it| &it["failedWith"]);
                let is_told = failed.is_some_and(|it| *it == lie.category);
                (!is_told).then(|| format!("{}: {record:?}", lie.what))
            })
            .collect();
        Ok(if open.is_empty() {
            Look::Found(())
        } else {
            Look::NotYet(format!("{open:#?}\n{}", bed.last_words(5)))
        })
    })
    .await
}

/// Covers S01, S02, S04, S12.
#[tokio::test(flavor = "multi_thread")]
async fn no_lie_of_a_machine_or_a_kubelet_gets_at_another_node() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let bed = Bed::new("hostile").await?;
    // Many get a copy of it.
    let agent = bed.payload.join("files/evenkeel-agent.exe");
    run(Command::new("x86_64-w64-mingw32-strip").arg(&agent))?;
    bed.seal()?;
    let instance = bed.instance(HONEST)?;
    let _operator = bed.operator(&[])?;
    bed.services().await?;
    let master = make_master(&bed).await?;
    let sums = sums(&bed).await?;
    // The honest one comes first: what is to be taken from somebody must be there.
    bed.list_these(&[&instance]).await?;
    let honest = bed.serves(&instance).await?;
    let mut liars = Vec::new();
    for (number, lie) in (1..).zip(lies()) {
        let address = format!("127.36.0.{number}");
        let said = answer(&lie, sums.clone());
        let (habits, lie) = lie.split();
        liars.push((lie, LyingMachine::at(&address, habits, said).await?));
    }
    let bait = LyingMachine::at("127.36.1.1", Habits::NONE, answer(&PLAIN, sums)).await?;
    list(&bed, &instance, &liars).await?;
    let told = kubelet::lie(&bed, &instance, &bait).await?;
    all_found_out(&bed, &liars).await?;

    for (lie, machine) in &liars {
        let what = lie.what;
        assert!(machine.visits() > 0, "{what}: nobody came");
        assert_eq!(
            machine.runs_of_agent() > 0,
            lie.is_run,
            "{what}: {:?}",
            machine.commands()
        );
        // No login for anybody whose name was not found to be its own.
        if !lie.others.iter().any(|(word, ..)| *word == " bootstrap ") {
            assert_eq!(machine.thing("/C:/k/login"), None, "{what}: it got a login");
        }
        let aside = machine.paths().into_iter();
        let aside = aside.filter(|it| it.contains("before-evenkeel")).count();
        if what.starts_with("a local user") {
            assert_eq!(aside, 3, "{what}: {:?}", machine.paths());
            let planted = machine.thing("/C:/k/version.dll");
            assert_eq!(planted, None, "{what}");
        }
        println!("proof: {what}: {}", lie.category);
    }
    let records = bed.scene.records().await?;
    for (instance, record) in &records {
        let size = record.to_string().len();
        assert!(size < 4096, "{instance}: {size}");
    }
    let events = bed.told_so_far().await?;
    assert!(events.iter().all(|(_, note)| note.len() <= 1024));
    assert_eq!(
        bait.visits(),
        0,
        "somebody went where a Node said that it came from"
    );
    is_as_before(&bed, &honest).await?;
    is_as_before(&bed, &master).await?;
    bed.serves(&instance).await?;
    kubelet::must_not_have(&bed, &told).await?;
    // The honest one is served while all of them go on.
    let begin = std::time::Instant::now();
    kubelet::honest_is_served(&bed, &instance).await?;
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
    println!(
        "proof: {} lies of machines and {} of kubelets, none got anything of another node",
        liars.len(),
        told.len()
    );
    assert!(liars.len() + told.len() >= 40);
    Ok(())
}

/// Lists the honest one and all liars.
async fn list(bed: &Bed, honest: &WindowsInstance, liars: &[(Lie, LyingMachine)]) -> Result<()> {
    let honest = honest.address().to_string();
    let liars = liars.iter().map(|(_, machine)| machine.address.to_string());
    let all: Vec<String> = liars.chain([honest]).collect();
    let entries: Vec<_> = all
        .iter()
        .map(|it| (it.as_str(), "username=Administrator"))
        .collect();
    bed.list(&entries).await
}

impl Lie {
    /// Its habits are the machine's from now on.
    fn split(mut self) -> (Habits, Self) {
        let habits = std::mem::take(&mut self.habits);
        (habits, self)
    }
}
