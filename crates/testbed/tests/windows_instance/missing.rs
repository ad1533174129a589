//! What a person is told whose machine lacks something.

use std::process::Command;

use evenkeel_testbed::process::run;
use evenkeel_testbed::windows_instance::{TARGET, WindowsInstance};
use evenkeel_testbed::{Result, need};

use super::{is_started, this_test};

#[test]
fn a_missing_wine_mingw_or_rust_target_is_one_sentence_with_its_cure() -> Result<()> {
    if need::skip(&WindowsInstance::NEEDS)? {
        return Ok(());
    }
    let library =
        run(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]))?;
    // They are not removed, only hidden, and only from the process that is asked.
    let cases = [
        (
            "/usr/lib/wine/wine64",
            "`wine64` is not installed: apt-get install wine64",
        ),
        (
            "/usr/bin/x86_64-w64-mingw32-gcc",
            "`x86_64-w64-mingw32-gcc` is not installed: apt-get install mingw-w64",
        ),
        (
            library.trim(),
            "Rust cannot build for x86_64-pc-windows-gnu here: rustup target add x86_64-pc-windows-gnu",
        ),
    ];
    for (hidden, sentence) in cases {
        let this = this_test("missing::an_instance_that_lacks_something")?;
        let script = "
            hidden=$(readlink -f \"$1\") && shift &&
            if [ -d \"$hidden\" ]; then mount -t tmpfs tmpfs \"$hidden\"
            else mount --bind /dev/null \"$hidden\"; fi && exec \"$@\"";
        let mut hiding = Command::new("unshare");
        hiding.args(["--mount", "--propagation", "private", "sh", "-c", script]);
        hiding
            .args(["sh", hidden])
            .arg(this.get_program())
            .args(this.get_args())
            .envs(
                this.get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            );
        let said = run(&mut hiding)?;
        assert!(
            said.lines().any(|line| line == sentence),
            "{sentence}\n{said}"
        );
    }
    Ok(())
}

#[test]
#[ignore = "another test starts it as a process, on a machine that lacks something"]
fn an_instance_that_lacks_something() {
    if is_started()
        && let Err(error) = WindowsInstance::boot("lacking")
    {
        println!("{error}");
    }
}
