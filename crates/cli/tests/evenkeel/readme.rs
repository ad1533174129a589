//! Every command that the README shows is run, and prints what the README says it prints.

use std::path::{Path, PathBuf};

use super::scene::{Said, evenkeel, program};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The commands of the README's console blocks, each with what is printed below it.
fn shown() -> Vec<(String, String)> {
    let readme = std::fs::read_to_string(project().join("README.md")).unwrap();
    let mut commands: Vec<(String, String)> = Vec::new();
    for block in readme.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap_or_default();
        for line in block.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                commands.push((command.to_owned(), String::new()));
            } else {
                let (_, printed) = commands.last_mut().unwrap();
                printed.push_str(line);
                printed.push('\n');
            }
        }
    }
    commands
}

/// Numbers, which differ from run to run, as `N`.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for character in text.trim().chars() {
        let number = character.is_ascii_digit() || (character == '.' && out.ends_with('N'));
        if !number {
            out.push(character);
        } else if !out.ends_with('N') {
            out.push('N');
        }
    }
    out
}

#[test]
fn every_command_of_the_readme_prints_what_it_shows() {
    let shown = shown();
    let typed: Vec<&str> = shown.iter().map(|(command, _)| command.as_str()).collect();
    assert!(typed.contains(&"./test"), "{typed:?}");
    assert!(typed.contains(&"cargo run -- demo"), "{typed:?}");
    assert!(typed.len() > 5, "{typed:?}");
    let mut run = 0;
    for (command, printed) in &shown {
        // What stands inside the demo's own transcript, and what is this very test run.
        if command.contains("--root tree") || command.contains("tree/etc") || command == "./test" {
            continue;
        }
        let words: Vec<&str> = match command.strip_prefix("cargo run -- ") {
            Some(rest) => rest.split(' ').collect(),
            None => command
                .strip_prefix("evenkeel ")
                .unwrap_or_else(|| panic!("{command} is not ours"))
                .split(' ')
                .collect(),
        };
        let said: Said = program()
            .args(words)
            .current_dir(project())
            .output()
            .unwrap()
            .into();
        if command.ends_with("demo") {
            assert_eq!(said.code, Some(0), "{said:?}");
            continue;
        }
        assert_eq!(said.out.trim(), printed.trim(), "{command}");
        run += 1;
    }
    assert!(run >= 3, "only {run} commands were run");
}

#[test]
fn the_demo_tells_the_story_that_the_readme_shows() {
    let readme = std::fs::read_to_string(project().join("README.md")).unwrap();
    let transcript = readme
        .split("$ cargo run -- demo\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let said = evenkeel(&["demo"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(without_numbers(&said.out), without_numbers(transcript));
}

#[test]
fn every_example_is_valid() {
    let examples = project().join("examples").display().to_string();
    let said = evenkeel(&["check", &examples]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    assert!(said.out.lines().count() >= 5, "{}", said.out);
}

#[test]
fn a_typing_error_is_a_failure_and_help_is_not() {
    assert_eq!(evenkeel(&["plann"]).code, Some(1));
    assert_eq!(evenkeel(&["plan"]).code, Some(1));
    let help = evenkeel(&["plan", "--help"]);
    assert_eq!(help.code, Some(0));
    assert!(help.out.contains("--from <OLD>"), "{}", help.out);
    assert!(evenkeel(&["completions", "bash"]).out.contains("evenkeel"));
}
