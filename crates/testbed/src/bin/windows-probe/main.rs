//! Looks at a Windows instance from inside, with the calls the real programs use, so that the test
//! bed can prove that they do there what they do on Windows. `windows-probe help` lists what it can.

#[cfg(windows)]
mod handles;
#[cfg(windows)]
mod meddle;
#[cfg(windows)]
mod registry;
#[cfg(windows)]
mod service;
#[cfg(windows)]
mod trust;

#[cfg(windows)]
const HELP: &str = "\
service create NAME manual|auto COMMAND…
service start|stop|delete|state NAME
registry watch KEY            says `watching`, then when the key changed
registry set KEY NAME VALUE   says when it was set
roots                         the machine's trusted roots, by thumbprint
trust FILE                    adds a certificate (DER) to them
untrust FILE                  takes it away
await-trust FILE              says `watching`, then when it is among them
world                         what is said outside, through HTTPS_PROXY and trusting whom the machine trusts
pipe NAME                     connects and says what comes
connect HOST:PORT             connects and says to whom
get HOST:PORT PATH            what a server of plain HTTP answers
sha256 FILE
handles SERVICE               how many handles its process has
meddle WHAT ON                does it, and says after how many ms it was as before
                              stop|kill|delete|command|dependencies|start|description SERVICE,
                              set|unset VARIABLE, tamper|remove FILE, untrust FILE
meddle many SEED COUNT MS ON… so many by chance, with a pause between two
reboot                        through ExitWindowsEx";

#[cfg(windows)]
fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let found = match words.as_slice() {
        ["service", rest @ ..] => service::ask(rest),
        ["registry", "watch", key] => registry::watch(key),
        ["registry", "set", key, name, value] => registry::set(key, name, value),
        ["roots"] => trust::roots(),
        ["trust", file] => trust::add(file),
        ["untrust", file] => trust::remove(file),
        ["await-trust", file] => trust::wait_for(file),
        ["world"] => trust::reach_world(),
        ["pipe", name] => pipe(name),
        ["connect", address] => connect(address),
        ["get", address, path] => get(address, path),
        ["sha256", file] => sha256(file),
        ["handles", service] => handles::of(service),
        ["meddle", "many", seed, count, pause, on @ ..] => meddle::many(seed, count, pause, on),
        ["meddle", what, on] => meddle::once(what, on),
        ["reboot"] => reboot(),
        _ => Err(evenkeel_testbed::Error::failed(HELP)),
    };
    match found {
        Ok(text) => {
            println!("{text}");
            std::process::ExitCode::SUCCESS
        }
        Err(sentence) => {
            eprintln!("{sentence}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(windows)]
fn pipe(name: &str) -> evenkeel_testbed::Result<String> {
    use evenkeel_testbed::Doing;
    use std::io::Read;

    let mut byte = [0];
    std::fs::File::options()
        .read(true)
        .open(name)
        .and_then(|mut open| open.read_exact(&mut byte))
        .doing(|| format!("cannot read {name}"))?;
    Ok(String::from_utf8_lossy(&byte).into_owned())
}

#[cfg(windows)]
fn connect(address: &str) -> evenkeel_testbed::Result<String> {
    use evenkeel_testbed::Doing;

    let peer = std::net::TcpStream::connect(address).and_then(|stream| stream.peer_addr());
    let peer = peer.doing(|| format!("cannot connect to {address}"))?;
    Ok(peer.to_string())
}

#[cfg(windows)]
fn get(address: &str, path: &str) -> evenkeel_testbed::Result<String> {
    use evenkeel_testbed::Doing;
    use std::io::{Read, Write};

    let mut answer = String::new();
    let asked = std::net::TcpStream::connect(address).and_then(|mut stream| {
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        )?;
        stream.read_to_string(&mut answer)
    });
    asked.doing(|| format!("cannot get {path} of {address}"))?;
    Ok(answer)
}

#[cfg(windows)]
fn sha256(file: &str) -> evenkeel_testbed::Result<String> {
    use evenkeel_testbed::Doing;
    use sha2::Digest;

    let mut digest = sha2::Sha256::new();
    let mut open = std::fs::File::open(file).doing(|| format!("cannot open {file}"))?;
    std::io::copy(&mut open, &mut digest).doing(|| format!("cannot read {file}"))?;
    Ok(format!("{:x}", digest.finalize()))
}

#[cfg(windows)]
fn reboot() -> evenkeel_testbed::Result<String> {
    use windows_sys::Win32::System::Shutdown::{EWX_REBOOT, ExitWindowsEx};

    // SAFETY: the call takes two numbers and touches no memory of ours.
    if unsafe { ExitWindowsEx(EWX_REBOOT, 0) } == 0 {
        let error = std::io::Error::last_os_error();
        return Err(evenkeel_testbed::Error::because("cannot reboot", error));
    }
    Ok("a reboot was asked for".to_owned())
}

#[cfg(not(windows))]
fn main() -> std::process::ExitCode {
    eprintln!("windows-probe runs on Windows only");
    std::process::ExitCode::FAILURE
}
