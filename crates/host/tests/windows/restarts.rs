//! Who starts a service again that ended by itself. `under_wine` reads in the manager's own log what it was asked for.

use evenkeel_plan::machine::entry::{Entry, ServiceEntry};

use crate::machine::{Machine, declared};

#[test]
fn the_manager_starts_a_service_again_where_nobody_watches_and_leaves_it_to_whoever_does() {
    let machine = Machine::without(&["ek-again", "ek-not-ours"]);
    // One of somebody else is never touched.
    let theirs = ServiceEntry {
        description: "made by hand".to_owned(),
        ..declared("ek-not-ours", "")
    };
    machine.put("ek-not-ours", &Entry::Service(theirs));
    machine.make("ek-again", "");
    let places = ["service:ek-again", "service:ek-not-ours"];
    let first = machine.host.watch(places).unwrap();
    // The second has nothing to take, and gives nothing back while the first lives.
    drop(machine.host.watch(places).unwrap());
    machine.make("ek-again", "--other");
    drop(first);
    machine.make("ek-again", "");
}
