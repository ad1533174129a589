//! Whether a value will do. What is said of it never repeats it: there may be a password in it.

use std::net::Ipv6Addr;

use super::Variable;

/// The longest value that a Windows program can have in its environment.
const LONGEST: usize = 32_767;
/// How a proxy is written.
const SHAPE: &str = "write it as http://HOST:PORT";

/// What is odd about a value, or why it will not do.
pub(super) fn judge(variable: Variable, value: &str) -> Result<Vec<String>, String> {
    if value.contains('\0') {
        return Err("it has a NUL character: remove it".to_owned());
    }
    if value.encode_utf16().count() > LONGEST {
        return Err(format!(
            "it is longer than the limit of Windows, {LONGEST} characters: shorten it"
        ));
    }
    match variable {
        Variable::NoProxy => Ok(odd_entries(value)),
        Variable::HttpProxy | Variable::HttpsProxy => judge_url(value),
    }
}

fn judge_url(value: &str) -> Result<Vec<String>, String> {
    let is_gap = |it: char| it.is_whitespace() || it.is_control();
    if value.contains(is_gap) {
        return Err("it has a space or a line break in it: remove it".to_owned());
    }
    let Some((scheme, rest)) = value.split_once("://") else {
        return Err(format!("it has no scheme: {SHAPE}"));
    };
    if !["http", "https"].contains(&scheme.to_ascii_lowercase().as_str()) {
        return Err(format!("its scheme is neither http nor https: {SHAPE}"));
    }
    // A proxy has no path worth the name, so whatever is before an @ is user and password.
    let rest = match rest.rsplit_once('@') {
        Some((user, rest)) => {
            judge_user(user)?;
            rest
        }
        None => rest,
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    judge_authority(authority)?;
    Ok(if matches!(path, "" | "/") {
        Vec::new()
    } else {
        vec!["a proxy ignores what comes after host and port: remove it".to_owned()]
    })
}

/// User and password: what means something in a URL is written as a percent sign and two digits.
fn judge_user(user: &str) -> Result<(), String> {
    if user.split(':').next().is_none_or(str::is_empty) {
        return Err(
            "there is no user before its @: write http://USER:PASSWORD@HOST:PORT".to_owned(),
        );
    }
    let bytes = user.as_bytes();
    let is_fine = |(at, byte): (usize, &u8)| match byte {
        b'%' => [at + 1, at + 2]
            .into_iter()
            .all(|it| bytes.get(it).is_some_and(u8::is_ascii_hexdigit)),
        byte => byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:".contains(byte),
    };
    if bytes.iter().enumerate().all(is_fine) {
        return Ok(());
    }
    Err(
        "its user or password has a reserved character: write each as a percent sign and two hex digits, for example %40 for @ and %25 for %"
            .to_owned(),
    )
}

fn judge_authority(authority: &str) -> Result<(), String> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let Some((host, port)) = rest.split_once(']') else {
            return Err(format!("its IPv6 address has no closing bracket: {SHAPE}"));
        };
        if host.parse::<Ipv6Addr>().is_err() {
            return Err(format!(
                "there is no IPv6 address between its brackets: {SHAPE}"
            ));
        }
        (host, port)
    } else {
        let end = authority.find(':').unwrap_or(authority.len());
        authority.split_at(end)
    };
    if host.is_empty() {
        return Err(format!("it has no host: {SHAPE}"));
    }
    let is_in_a_name = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '.' | '_' | ':');
    if !host.chars().all(is_in_a_name) {
        return Err(format!(
            "its host has a character that is not valid in a name: {SHAPE}"
        ));
    }
    let port = match port.strip_prefix(':') {
        Some(port) => port,
        None if port.is_empty() => return Ok(()),
        None => {
            return Err(format!(
                "there is something between its host and its port: {SHAPE}"
            ));
        }
    };
    let is_port =
        port.bytes().all(|it| it.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|it| it != 0);
    if is_port {
        Ok(())
    } else {
        Err(format!("its port is not a number from 1 to 65535: {SHAPE}"))
    }
}

/// What hardly anybody understands among exceptions. They are passed on all the same: somebody may.
fn odd_entries(value: &str) -> Vec<String> {
    let mut odd = Vec::new();
    for (number, entry) in (1..).zip(value.split(',')) {
        let why = if entry.is_empty() {
            "is empty: remove a comma"
        } else if entry.contains(['\n', '\r']) {
            "has a line break: write all entries in one line, with commas between them"
        } else if entry.contains(char::is_whitespace) {
            "has a space, which many programs treat as part of the name: remove it"
        } else if entry.contains("://") {
            "has a scheme: write the name alone"
        } else if entry.contains(';') {
            "has a semicolon: write a comma between entries"
        } else {
            continue;
        };
        odd.push(format!("entry {number} {why}; it is used as it is"));
    }
    odd
}
