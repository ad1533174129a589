//! What the power-cut machine runs to prove itself: it writes two files, one of them safely, and says
//! so; or it ends with the code it is told.

use std::fs::File;
use std::io::Write;
use std::process::ExitCode;

fn main() -> std::io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", folder] => {
            let mut safe = File::create(format!("{folder}/synced"))?;
            safe.write_all(b"synced\n")?;
            safe.sync_all()?;
            File::open(folder)?.sync_all()?;
            std::fs::write(format!("{folder}/not-synced"), "not synced\n")?;
            println!("both are written");
            loop {
                std::thread::park();
            }
        }
        ["read", folder] => {
            for name in ["synced", "not-synced"] {
                let content = std::fs::read_to_string(format!("{folder}/{name}"));
                println!("{name}: {:?}", content.map_err(|error| error.kind()));
            }
        }
        ["end", code, ..] => {
            for argument in &arguments[2..] {
                println!("{argument}");
            }
            print!("unfinished");
            std::io::stdout().flush()?;
            return Ok(code.parse::<u8>().map_or(ExitCode::FAILURE, ExitCode::from));
        }
        _ => eprintln!("usage: power-cut-writer write|read FOLDER, or end CODE LINE..."),
    }
    Ok(ExitCode::SUCCESS)
}
