//! What only a simulated machine promises: its faults, and how little of it there is.

use evenkeel_plan::machine::entry::{Entry, Ids};

use super::SimulatedHost;
use crate::disk::{Disk, Host};

fn write(host: &SimulatedHost, path: &str, contents: &[u8]) -> crate::Result<()> {
    host.disk().create(path, contents, 0o644, Ids::default())
}

#[test]
fn a_killed_program_changes_nothing_any_more_and_the_next_one_finds_what_it_did() {
    let host = SimulatedHost::new();
    write(&host, "/before", b"x").unwrap();
    host.stop_after(host.changes() + 1);
    assert!(write(&host, "/during", b"x").is_err());
    assert!(host.has_stopped());
    assert!(host.disk().remove("/before").is_err());
    assert!(host.disk().look("/before").is_err());
    let next = host.reborn();
    assert_eq!(next.disk().read("/before").unwrap().unwrap(), b"x");
    assert_eq!(
        next.disk().read("/during").unwrap().unwrap(),
        b"",
        "cut short"
    );
}

#[test]
fn one_call_fails_and_the_next_one_does_not() {
    let host = SimulatedHost::new();
    host.fail_at(1);
    assert!(host.disk().look("/a").is_ok());
    assert!(host.disk().look("/a").is_err());
    assert!(host.disk().look("/a").is_ok());
    assert_eq!(host.calls(), 3);
}

#[test]
fn a_power_cut_takes_only_what_was_not_durable() {
    let host = SimulatedHost::new();
    write(&host, "/durable", b"kept").unwrap();
    host.disk().sync_files(&["/durable".to_owned()]).unwrap();
    host.disk().sync_folder("/").unwrap();
    write(&host, "/named", b"lost").unwrap();
    host.disk().sync_folder("/").unwrap();
    host.disk().remove("/durable").unwrap();
    write(&host, "/written", b"nowhere").unwrap();
    host.disk().sync_files(&["/written".to_owned()]).unwrap();

    let oldest = host.cut(&mut |_| 0);
    assert_eq!(oldest.disk().read("/durable").unwrap().unwrap(), b"kept");
    assert_eq!(oldest.disk().look("/written").unwrap(), Entry::Absent);
    let newest = host.cut(&mut |ways| ways - 1);
    assert_eq!(newest.disk().look("/durable").unwrap(), Entry::Absent);
    assert_eq!(newest.disk().read("/written").unwrap().unwrap(), b"nowhere");
    assert_eq!(newest.disk().read("/named").unwrap().unwrap(), [0; 4]);
    assert_eq!(
        newest.cut(&mut |_| 0).tree(),
        newest.tree(),
        "all is durable"
    );
}

#[test]
fn two_snapshots_have_nothing_to_do_with_each_other() {
    let host = SimulatedHost::new();
    write(&host, "/a", b"x").unwrap();
    let copies: Vec<_> = (0..5_000).map(|_| host.snapshot()).collect();
    write(&copies[0], "/b", b"x").unwrap();
    host.disk().remove("/a").unwrap();
    assert_eq!(copies[0].tree().len(), 2);
    assert_eq!(copies[4_999].tree().len(), 1);
    assert_eq!(host.tree().len(), 0);
}
