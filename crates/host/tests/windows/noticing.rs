//! Drift is noticed at once and put back, whatever it is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::execute::{Claim, State};
use evenkeel_host::watch::{Event, Heard, Look, Monitor, Source, Watching};
use evenkeel_plan::machine::desired::Contents;
use evenkeel_plan::machine::entry::{Activity, Entry, Hash, Ids};
use evenkeel_plan::machine::resource::Resource;
use evenkeel_plan::machine::targets::{Part, Target, Targets};

use crate::machine::{Machine, declared, tell_to_stop, until, windows};

const ENVIRONMENT: &str = r"HKLM\SYSTEM\CurrentControlSet\Control\Session Manager\Environment";
const TOOL: &str = "c:/k/noticed/tool.txt";
const VARIABLE: &str = "variable:EK_NOTICED";
const SERVICE: &str = "service:ek-noticed";
/// The promise is a second; a busy machine that plays Windows gets some more before it is a failure.
const SOON: Duration = Duration::from_secs(10);

fn targets() -> Targets {
    let target = |resource, part, entry| Target {
        resource,
        part,
        entry,
    };
    let file = Entry::File {
        hash: Hash::of(b"tool"),
        mode: 0,
        owner: Ids::default(),
    };
    let value = Entry::Variable {
        value: "right".to_owned(),
        expands: false,
    };
    let service = Entry::Service(declared("ek-noticed", "--right"));
    BTreeMap::from([
        (
            TOOL.to_owned(),
            target(
                Resource::File(TOOL.to_owned()),
                Part::Payload(vec!["ek-noticed".to_owned()]),
                file,
            ),
        ),
        (
            VARIABLE.to_owned(),
            target(
                Resource::Variable("EK_NOTICED".to_owned()),
                Part::Whole,
                value,
            ),
        ),
        (
            SERVICE.to_owned(),
            target(
                Resource::Service("ek-noticed".to_owned()),
                Part::Service(0),
                service,
            ),
        ),
    ])
}

/// An edit: its name, the words of what is found, and what does it.
type Edit<'a> = (&'a str, &'a str, &'a dyn Fn());

/// One edit after the other, and how long each took to be put back.
#[test]
fn every_kind_of_drift_is_put_back_within_a_second() {
    let machine = Machine::without(&["ek-noticed"]);
    let host = &machine.host;
    let state = State::at("c:/k/noticed/state").storing_at("c:/k/noticed/store");
    _ = std::fs::remove_dir_all("c:/k/noticed");
    std::fs::create_dir_all("c:/k/noticed").unwrap();
    std::fs::write(TOOL, "tool").unwrap();
    let targets = targets();
    let mut contents = Contents::default();
    contents.keep(b"tool".to_vec());
    let claim = Claim::take(host, &state).unwrap();
    claim.keep_contents(&targets, &contents).unwrap();
    drop(claim);
    for place in [VARIABLE, SERVICE] {
        host.disk().put(place, &targets[place].entry).unwrap();
    }
    let mut watcher = host.watch(targets.keys().map(String::as_str)).unwrap();
    let mut monitor = Monitor::healing(host, &state, targets.clone());
    let mut none = |event: Event| panic!("{event:?}");
    while {
        monitor
            .watch_once(&mut watcher, Duration::from_millis(100), &mut none)
            .unwrap();
        !monitor.is_at_rest()
    } {}

    let kill = || {
        let out = std::process::Command::new("taskkill.exe")
            .args(["/F", "/IM", "service-double.exe"])
            .output()
            .unwrap();
        assert!(out.status.success(), "{out:?}");
    };
    let change = |change: &dyn Fn(&mut evenkeel_plan::machine::entry::ServiceEntry)| {
        let mut entry = declared("ek-noticed", "--right");
        change(&mut entry);
        host.disk().put(SERVICE, &Entry::Service(entry)).unwrap();
    };
    let edits: [Edit<'_>; 11] = [
        ("stopped", "is stopped", &|| {
            tell_to_stop("ek-noticed");
        }),
        ("killed", "ended by itself", &kill),
        ("deleted", "missing", &|| {
            host.disk().put(SERVICE, &Entry::Absent).unwrap();
        }),
        ("command", "command differs", &|| {
            change(&|it| it.command.push_str(" --wrong"));
        }),
        ("dependencies", "dependencies differ", &|| {
            change(&|it| it.dependencies.push("EventLog".to_owned()));
        }),
        ("start type", "is disabled", &|| {
            change(&|it| it.start = evenkeel_plan::machine::entry::Start::Disabled);
        }),
        ("description", "description differs", &|| {
            change(&|it| it.description.clear());
        }),
        ("variable set", "value differs", &|| {
            windows(&[
                "reg.exe",
                "add",
                ENVIRONMENT,
                "/v",
                "EK_NOTICED",
                "/d",
                "wrong",
                "/f",
            ]);
        }),
        ("variable removed", "missing", &|| {
            windows(&["reg.exe", "delete", ENVIRONMENT, "/v", "EK_NOTICED", "/f"]);
        }),
        ("file tampered", "contents differ", &|| {
            std::fs::write(TOOL, "wrong").unwrap();
        }),
        ("file removed", "missing", &|| {
            std::fs::remove_file(TOOL).unwrap();
        }),
    ];
    for (what, words, edit) in edits {
        edit();
        let start = Instant::now();
        let mut said = Vec::new();
        let mut healed = None;
        while healed.is_none() {
            assert!(start.elapsed() < SOON, "{what} was not put back: {said:?}");
            let mut hear = |event: Event| match event {
                Event::Healed { took, .. } => healed = Some(took),
                Event::Drifted { finding, .. } => said.push(finding.why),
                other => said.push(format!("{other:?}")),
            };
            let turn = monitor.watch_once(&mut watcher, Duration::from_millis(200), &mut hear);
            assert_eq!(turn.unwrap(), Watching::GoOn);
        }
        println!("proof: {what} put back after {:?}", start.elapsed());
        assert!(
            said.iter().any(|why| why.contains(words)),
            "{what}: {said:?}"
        );
        // Some edits have two halves (an edit, and a restart): wait until all is followed.
        let mut quiet = 0;
        while quiet < 3 {
            let mut events = 0;
            monitor
                .watch_once(&mut watcher, Duration::from_millis(50), &mut |_| {
                    events += 1;
                })
                .unwrap();
            quiet = if events == 0 && monitor.is_at_rest() {
                quiet + 1
            } else {
                0
            };
        }
        for (place, target) in &targets {
            assert_eq!(
                host.disk().look(place).unwrap(),
                target.entry,
                "{what}: {place}"
            );
        }
    }
    assert_eq!(machine.activity("ek-noticed"), Activity::Running);
    host.disk().put(VARIABLE, &Entry::Absent).unwrap();
}

/// On a real Windows BAM, HNS and drivers write below the Services key all day.
#[test]
fn what_others_write_below_the_services_key_costs_nothing() {
    let machine = Machine::without(&["ek-mine", "ek-theirs"]);
    machine.make("ek-mine", "");
    machine.make("ek-theirs", "");
    let mut watcher = machine
        .host
        .watch(["service:ek-mine", "service:ek-late"])
        .unwrap();
    let mut hints = |pause: u64| match watcher.next(Duration::from_millis(pause)).unwrap() {
        Heard::Looks(looks) => looks,
        Heard::Stopped => panic!("nobody stopped it"),
    };
    while !hints(300).is_empty() {}
    let calls = machine.host.manager_calls();
    let services = r"HKLM\SYSTEM\CurrentControlSet\Services";
    let write = |key: &str, value: &str| {
        let key = format!(r"{services}\{key}");
        windows(&["reg.exe", "add", &key, "/v", value, "/d", "1", "/f"]);
    };
    for turn in 0..10 {
        write(r"ek-theirs\State\UserSettings", &format!("program-{turn}"));
        write(&format!(r"ek-theirs\State\Network-{turn}"), "Policy");
        write("ek-theirs", &format!("value-{turn}"));
        write(r"ek-mine\Parameters", &format!("value-{turn}"));
        assert_eq!(hints(100), []);
    }
    // A stranger's service that comes is no service of ours either.
    windows(&[
        "reg.exe",
        "add",
        &format!(r"{services}\ek-comes"),
        "/v",
        "Start",
        "/t",
        "REG_DWORD",
        "/d",
        "4",
        "/f",
    ]);
    assert_eq!(hints(300), []);
    windows(&["reg.exe", "delete", &format!(r"{services}\ek-comes"), "/f"]);
    assert_eq!(hints(300), []);
    // Of those that are watched it looks for the process of the one that is not there, and no more.
    let calls = machine.host.manager_calls() - calls;
    println!("proof: 42 writes of others, {calls} calls to the manager");
    assert!(calls <= 2 * 14, "{calls}");
    // What is written there of ours is heard of, and of that one alone.
    write("ek-mine", "ImagePath");
    let mine = Look::Path("service:ek-mine".to_owned());
    assert_eq!(until("a hint", || hints(100).pop()), mine);
    while !hints(200).is_empty() {}
    let _late = Machine::without(&["ek-late"]);
    machine.make("ek-late", "");
    let late = Look::Path("service:ek-late".to_owned());
    assert_eq!(until("a hint", || hints(100).pop()), late);
}

/// A machine that is as it should be costs its manager next to nothing.
#[test]
fn a_full_check_with_nothing_to_do_asks_the_manager_less_than_twenty_times() {
    let names = ["ek-a", "ek-b", "ek-c", "ek-d", "ek-e", "ek-f"];
    let machine = Machine::without(&names);
    let host = &machine.host;
    let targets: Targets = names
        .iter()
        .map(|name| {
            let target = Target {
                resource: Resource::Service((*name).to_owned()),
                part: Part::Service(0),
                entry: Entry::Service(machine.make(name, "")),
            };
            (format!("service:{name}"), target)
        })
        .collect();
    let state = State::at("c:/k/noticed/state").storing_at("c:/k/noticed/store");
    let mut watcher = host.watch(targets.keys().map(String::as_str)).unwrap();
    let mut monitor = Monitor::healing(host, &state, targets);
    let mut rest = |monitor: &mut Monitor<'_, _>| {
        while {
            let mut none = |event: Event| panic!("{event:?}");
            let pause = Duration::from_millis(100);
            monitor.watch_once(&mut watcher, pause, &mut none).unwrap();
            !monitor.is_at_rest()
        } {}
    };
    rest(&mut monitor);
    rest(&mut monitor);
    let before = host.manager_calls();
    monitor.check_everything();
    rest(&mut monitor);
    let calls = host.manager_calls() - before;
    println!(
        "proof: a full check of {} services took {calls} calls",
        names.len()
    );
    assert!(calls < 20, "{calls}");
}
