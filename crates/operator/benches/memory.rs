//! What the operator needs for 5,000 Nodes of real size, against its limit: `cargo bench -p evenkeel-operator`.

use std::process::ExitCode;

#[path = "../tests/operator/replay.rs"]
mod replay;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let measured = match runtime {
        Ok(runtime) => runtime.block_on(replay::measure()),
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match measured {
        Ok(needed) => {
            let (now, most) = (needed.now_kib / 1024, needed.most_kib / 1024);
            let limit = replay::LIMIT_KIB / 1024;
            println!(
                "{} Nodes of {} bytes, listed and watched: {now} MiB resident, {most} MiB at most (limit {limit} MiB)",
                replay::NODES,
                needed.size
            );
            if needed.size >= replay::SIZE && now > 0 && needed.most_kib < replay::LIMIT_KIB {
                ExitCode::SUCCESS
            } else {
                println!("MISSED");
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
