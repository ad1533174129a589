//! The engine on a Windows machine keeps the promises that it keeps on the simulated one.

use evenkeel_host::disk::{Disk, Host};
use evenkeel_plan::machine::entry::Entry;

use crate::machine::{Machine, PROGRAM};
use crate::service_promises::{NAMES, Subject, there_and_back, undone};

const BASE: &str = "c:/k/engine";

fn on_a_fresh_machine(promise: impl Fn(&Subject<'_, evenkeel_host::windows::WindowsHost>)) {
    _ = std::fs::remove_dir_all(BASE);
    std::fs::create_dir_all(BASE).unwrap();
    let machine = Machine::without(&NAMES);
    for name in ["variable:EK_PROXY", "variable:EK_WATCHED"] {
        machine.host.disk().put(name, &Entry::Absent).unwrap();
    }
    promise(&Subject {
        host: &machine.host,
        base: BASE,
        program: PROGRAM,
    });
}

#[test]
fn services_variables_and_files_are_brought_there_and_back() {
    on_a_fresh_machine(there_and_back);
}

#[test]
fn a_service_that_does_not_start_again_undoes_everything() {
    on_a_fresh_machine(|subject| undone(subject, r"C:\k\no-such-program.exe", || {}));
}
