//! Services: made, changed, started after what they need, stopped with those that need them, removed.

use std::time::{Duration, Instant};

use evenkeel_host::disk::Host;
use evenkeel_host::windows::script;
use evenkeel_plan::machine::entry::{Activity, Entry, ServiceEntry, Start};

use crate::machine::{Machine, PROGRAM, SealedKey, declared, tell_to_stop, until, windows};

#[test]
fn a_service_is_read_back_as_it_was_put_and_runs() {
    let machine = Machine::without(&["ek-put", "ek-need"]);
    machine.make("ek-need", "");
    let mut entry = machine.make("ek-put", "--first");
    assert_eq!(machine.look("ek-put"), Entry::Service(entry.clone()));
    assert_eq!(machine.look("EK-PUT"), Entry::Service(entry.clone()));
    entry.command = format!(r#""{PROGRAM}" --second="a b""#);
    entry.dependencies = vec!["ek-need".to_owned()];
    entry.description = "OpenShift managed and changed".to_owned();
    entry.start = Start::Manual;
    machine.put("ek-put", &Entry::Service(entry.clone()));
    assert_eq!(machine.look("ek-put"), Entry::Service(entry.clone()));
    entry.dependencies.clear();
    entry.activity = Activity::Stopped;
    machine.put("ek-put", &Entry::Service(entry.clone()));
    assert_eq!(machine.look("ek-put"), Entry::Service(entry));
    machine.put("ek-put", &Entry::Absent);
    assert_eq!(machine.look("ek-put"), Entry::Absent);
    // Twice is once.
    machine.put("ek-put", &Entry::Absent);
}

#[test]
fn a_service_starts_after_what_it_depends_on_and_stops_with_it() {
    let machine = Machine::without(&["ek-below", "ek-above", "ek-top"]);
    for (name, dependency) in [
        ("ek-below", None),
        ("ek-above", Some("ek-below")),
        ("ek-top", Some("ek-above")),
    ] {
        let entry = ServiceEntry {
            dependencies: dependency.into_iter().map(str::to_owned).collect(),
            activity: Activity::Stopped,
            ..declared(name, "")
        };
        machine.put(name, &Entry::Service(entry));
    }
    machine.host.start("ek-top").unwrap();
    let all = || ["ek-below", "ek-above", "ek-top"].map(|name| machine.activity(name));
    assert_eq!(all(), [Activity::Running; 3]);
    machine.host.stop("ek-below").unwrap();
    assert_eq!(all(), [Activity::Stopped; 3]);
    machine.host.start("ek-top").unwrap();
    machine.host.restart("ek-below").unwrap();
    assert_eq!(all(), [Activity::Running; 3]);
}

#[test]
fn a_service_that_was_told_to_stop_and_takes_its_time_is_gone_when_it_was_removed() {
    // Longer than anybody waits for one to go that was deleted.
    const TIME: Duration = Duration::from_secs(12);
    let machine = Machine::without(&["ek-slow"]);
    machine.make("ek-slow", "--stops-within-ms 12000");
    let told = Instant::now();
    tell_to_stop("ek-slow");
    until("the stop", || {
        (machine.activity("ek-slow") == Activity::Stopped).then_some(())
    });
    machine.put("ek-slow", &Entry::Absent);
    assert!(told.elapsed() >= TIME, "it was removed while it ran");
    assert_eq!(machine.look("ek-slow"), Entry::Absent);
    let again = machine.make("ek-slow", "");
    assert_eq!(machine.look("ek-slow"), Entry::Service(again));
}

#[test]
fn a_service_that_dies_is_seen_with_its_exit_code_and_one_that_stops_is_stopped() {
    let machine = Machine::without(&["ek-dies", "ek-stops"]);
    machine.make("ek-stops", "");
    tell_to_stop("ek-stops");
    until("the stop", || {
        (machine.activity("ek-stops") == Activity::Stopped).then_some(())
    });
    let mut watcher = machine.host.watch(["service:ek-dies"]).unwrap();
    machine.make("ek-dies", "--die 7 --die-after-ms 300");
    let ended = until("the end", || {
        use evenkeel_host::watch::Source;
        watcher.next(Duration::from_millis(50)).unwrap();
        match machine.activity("ek-dies") {
            Activity::Running => None,
            other => Some(other),
        }
    });
    // It is dead before it is heard of.
    let code = until("its exit code", || {
        use evenkeel_host::watch::Source;
        watcher.next(Duration::from_millis(50)).unwrap();
        match machine.activity("ek-dies") {
            Activity::Ended(Some(code)) => Some(code),
            _ => None,
        }
    });
    assert!(matches!(ended, Activity::Ended(_)), "{ended:?}");
    assert_eq!(code, 7);
}

#[test]
fn a_service_that_died_and_was_deleted_before_anybody_looked_comes_back() {
    let machine = Machine::without(&["ek-undead"]);
    machine.make("ek-undead", "--die 9 --die-after-ms 100");
    until("the end", || {
        matches!(machine.activity("ek-undead"), Activity::Ended(_)).then_some(())
    });
    windows(&["sc.exe", "delete", "ek-undead"]);
    let entry = machine.make("ek-undead", "--again");
    assert_eq!(machine.look("ek-undead"), Entry::Service(entry));
}

#[test]
fn a_service_that_was_deleted_while_it_ran_and_died_comes_back() {
    let machine = Machine::without(&["ek-going"]);
    machine.make("ek-going", "--die 9 --die-after-ms 1500");
    windows(&["sc.exe", "delete", "ek-going"]);
    until("the end", || match machine.look("ek-going") {
        Entry::Service(found) => matches!(found.activity, Activity::Ended(_)).then_some(()),
        _ => Some(()),
    });
    let entry = machine.make("ek-going", "--again");
    assert_eq!(machine.look("ek-going"), Entry::Service(entry));
}

#[test]
fn one_that_shares_its_process_is_heard_of_while_it_stops_and_the_process_lives() {
    use evenkeel_host::watch::{Heard, Look, Source};
    let machine = Machine::without(&["ek-shares"]);
    machine.make("ek-shares", "--stops-within-ms 4000");
    let key = r"HKLM\SYSTEM\CurrentControlSet\Services\ek-shares";
    windows(&[
        "reg.exe",
        "add",
        key,
        "/v",
        "Type",
        "/t",
        "REG_DWORD",
        "/d",
        "32",
        "/f",
    ]);
    let mut watcher = machine.host.watch(["service:ek-shares"]).unwrap();
    let mut hints = || match watcher.next(Duration::from_millis(500)).unwrap() {
        Heard::Looks(looks) => looks,
        Heard::Stopped => panic!("nobody stopped it"),
    };
    while !hints().is_empty() {}
    let start = std::time::Instant::now();
    tell_to_stop("ek-shares");
    let heard = until("a hint", || hints().pop());
    println!(
        "proof: a shared process, heard of after {:?}",
        start.elapsed()
    );
    assert_eq!(heard, Look::Path("service:ek-shares".to_owned()));
    assert!(start.elapsed() < Duration::from_secs(3), "that was its end");
}

#[test]
fn ours_are_known_by_their_tag() {
    let machine = Machine::without(&["ek-ours", "ek-theirs"]);
    machine.make("ek-ours", "");
    let theirs = ServiceEntry {
        description: "made by hand".to_owned(),
        ..declared("ek-theirs", "")
    };
    machine.put("ek-theirs", &Entry::Service(theirs));
    let tagged = machine.host.tagged_services().unwrap().names;
    assert!(tagged.contains(&"ek-ours".to_owned()), "{tagged:?}");
    assert!(!tagged.contains(&"ek-theirs".to_owned()), "{tagged:?}");
}

/// Security products close the keys of their services, to the system too.
#[test]
fn a_service_key_that_cannot_be_read_is_skipped_and_named() {
    let machine = Machine::without(&["ek-open", "ek-above-open"]);
    machine.make("ek-open", "");
    let above = ServiceEntry {
        dependencies: vec!["ek-open".to_owned()],
        ..declared("ek-above-open", "")
    };
    machine.put("ek-above-open", &Entry::Service(above));
    let sealed = SealedKey::below_services("ek-sealed");
    let tagged = machine.host.tagged_services().unwrap();
    assert!(tagged.names.contains(&"ek-open".to_owned()), "{tagged:?}");
    let unreadable: Vec<_> = tagged.unreadable.iter().collect();
    let [(name, error)] = unreadable.as_slice() else {
        panic!("{unreadable:?}")
    };
    assert_eq!(name, "ek-sealed");
    let said = error.with_causes();
    assert!(said.contains("ek-sealed"), "{said}");
    // Whoever stops a service looks through all keys for what depends on it.
    machine.host.stop("ek-open").unwrap();
    assert_eq!(machine.activity("ek-above-open"), Activity::Stopped);
    drop(sealed);
    let tagged = machine.host.tagged_services().unwrap();
    assert!(tagged.unreadable.is_empty(), "{tagged:?}");
}

#[test]
fn a_service_that_takes_its_time_to_start_is_no_drift_and_is_watched_once_it_has_a_process() {
    use evenkeel_host::watch::{Heard, Source};
    let machine = Machine::without(&["ek-late"]);
    let stopped = ServiceEntry {
        activity: Activity::Stopped,
        ..declared(
            "ek-late",
            "--starts-within-ms 2000 --die 5 --die-after-ms 100",
        )
    };
    machine.put("ek-late", &Entry::Service(stopped));
    let mut watcher = machine.host.watch(["service:ek-late"]).unwrap();
    watcher.next(Duration::ZERO).unwrap();
    windows(&["sc.exe", "start", "ek-late"]);
    let start = Instant::now();
    while watcher.next(Duration::from_millis(20)).unwrap() == Heard::Looks(Vec::new()) {
        assert!(start.elapsed() < Duration::from_secs(20));
        let is_early = start.elapsed() < Duration::from_secs(2);
        assert!(!is_early || machine.activity("ek-late") == Activity::Running);
    }
    assert!(start.elapsed() >= Duration::from_secs(2));
    until("its exit code", || {
        watcher.next(Duration::from_millis(20)).unwrap();
        (machine.activity("ek-late") == Activity::Ended(Some(5))).then_some(())
    });
}

#[test]
fn a_script_gives_one_line_within_its_time() {
    let run = |text: &str, limit: u64| {
        std::fs::write(r"C:\k\value.ps1", text).unwrap();
        let out = script::output_of(r"C:\k\value.ps1", Duration::from_millis(limit));
        out.map_err(|error| error.with_causes())
    };
    assert_eq!(run("Write-Output 'value'", 20_000).unwrap(), "value");
    for (text, limit, words) in [
        (
            "Write-Output 'a'\nWrite-Output 'b'",
            20_000,
            "more than one line",
        ),
        ("exit 3", 20_000, "ended with exit code: 3"),
        ("Start-Sleep -Seconds 60", 1_000, "did not end within 1s"),
    ] {
        let said = run(text, limit).unwrap_err();
        assert!(said.contains(words), "{text}: {said}");
        assert!(said.contains(r"C:\k\value.ps1"), "{said}");
    }
}
