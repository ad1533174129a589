//! What the Windows instance's sshd runs for a command: `cmd /c "COMMAND"`, as OpenSSH on Windows
//! does. It exists because only a Windows program can hand cmd its line as it came; through Wine's
//! own command line every quote in it would arrive escaped.

#[cfg(windows)]
fn main() -> std::process::ExitCode {
    use std::os::windows::process::CommandExt;

    let Ok(line) = std::env::var("SSH_ORIGINAL_COMMAND") else {
        eprintln!("SSH_ORIGINAL_COMMAND is not set: this program is run by sshd");
        return std::process::ExitCode::FAILURE;
    };
    let mut cmd = std::process::Command::new("cmd.exe");
    cmd.raw_arg("/c").raw_arg(format!("\"{line}\""));
    cmd.env_remove("SSH_ORIGINAL_COMMAND");
    match cmd.status() {
        Ok(status) => {
            let code = u8::try_from(status.code().unwrap_or(1)).unwrap_or(u8::MAX);
            std::process::ExitCode::from(code)
        }
        Err(error) => {
            eprintln!("cannot run cmd.exe: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(windows))]
fn main() -> std::process::ExitCode {
    eprintln!("ssh-shell runs on Windows only");
    std::process::ExitCode::FAILURE
}
