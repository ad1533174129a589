//! Boots a systemd node, says how to log in, and keeps it until standard input ends: for a person who
//! wants to look at one, and for the test that kills its owner.

use std::process::ExitCode;

use evenkeel_testbed::Result;

fn main() -> ExitCode {
    match keep() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
fn keep() -> Result<()> {
    use std::io::Read;

    use evenkeel_testbed::{SystemdNode, process};

    let name = std::env::args().nth(1).unwrap_or("node".to_owned());
    let node = SystemdNode::boot(&name)?;
    println!("console: {}", node.console().display());
    println!("log in: {}", process::line_of(&node.ssh()));
    println!("it runs until you press Ctrl-D");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(node);
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn keep() -> Result<()> {
    Err(evenkeel_testbed::Error::Missing(
        "a systemd node needs Linux".to_owned(),
    ))
}
