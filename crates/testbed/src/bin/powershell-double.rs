//! A stand-in for `powershell.exe`, which Wine has only as an empty shell. It runs this much:
//!
//! - `powershell.exe [-NoProfile] [-NonInteractive] [-NoLogo] [-ExecutionPolicy X] -File PATH`, or
//!   `-Command TEXT`, where the text may also be `& 'PATH'` of a script;
//! - statements, one a line or parted by `;`: `Write-Output X` (also `Write-Host`, `echo`, or just
//!   `X`), `Write-Error X`, `Start-Sleep -Seconds N` (or `-Milliseconds N`), `exit N`, `throw X`,
//!   `& PROGRAM X…`, which says what the program prints, and `exit $LASTEXITCODE` after that;
//! - `X` is `"text with $env:NAME"`, `'text'`, `$env:NAME` or a bare word; `#` begins a comment.
//!
//! Anything else fails with a sentence that names it: a test never passes because a line was skipped.

use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ended = script(&arguments).and_then(|script| run(&script, &mut |line| println!("{line}")));
    match ended {
        Ok(code) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)),
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

/// The text to run, as the command line asks for it.
fn script(arguments: &[String]) -> Result<String, String> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.to_lowercase().replace('/', "-").as_str() {
            "-noprofile" | "-noninteractive" | "-nologo" | "-sta" => {}
            "-executionpolicy" | "-ep" | "-inputformat" | "-outputformat" | "-windowstyle" => {
                rest.next();
            }
            "-file" | "-f" => return read(rest.next().ok_or("-File wants a path")?),
            "-command" | "-c" => {
                let text = rest.cloned().collect::<Vec<_>>().join(" ");
                return match text.trim().strip_prefix('&') {
                    Some(path) => read(&value(path.trim())?),
                    None => Ok(text),
                };
            }
            other => {
                return Err(format!(
                    "this stand-in for PowerShell does not know the argument {other}: give -File or -Command"
                ));
            }
        }
    }
    Err("this stand-in for PowerShell wants -File or -Command".to_owned())
}

fn read(path: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        format!("The argument '{path}' to the -File parameter does not exist: {error}")
    })?;
    Ok(text.trim_start_matches('\u{feff}').to_owned())
}

/// Runs the statements of `script`; the number is its exit code.
fn run(script: &str, say: &mut dyn FnMut(&str)) -> Result<u32, String> {
    let mut last = 0;
    for statement in statements(script)? {
        let (command, rest) = statement
            .split_once(char::is_whitespace)
            .map_or((statement.as_str(), ""), |(it, rest)| (it, rest.trim()));
        match command.to_lowercase().as_str() {
            "write-output" | "write-host" | "echo" => say(&value(rest)?),
            "write-error" => eprintln!("Write-Error: {}", value(rest)?),
            "start-sleep" => std::thread::sleep(pause(rest)?),
            "throw" => return Err(value(rest)?),
            "exit" if rest.is_empty() => return Ok(0),
            "exit" if rest.eq_ignore_ascii_case("$LASTEXITCODE") => return Ok(last),
            "&" => last = call(rest, say)?,
            "exit" => {
                return rest
                    .parse()
                    .map_err(|_| format!("exit wants a number, not {rest}"));
            }
            _ if statement.starts_with(['"', '\''])
                || command.to_lowercase().starts_with("$env:") =>
            {
                say(&value(&statement)?);
            }
            _ => {
                return Err(format!(
                    "this stand-in for PowerShell does not know the statement: {statement}"
                ));
            }
        }
    }
    Ok(0)
}

/// Runs a program, and says what it prints; its exit code.
fn call(words: &str, say: &mut dyn FnMut(&str)) -> Result<u32, String> {
    let words: Result<Vec<String>, String> = words.split_whitespace().map(value).collect();
    let words = words?;
    let (program, arguments) = words.split_first().ok_or("& wants a program")?;
    let mut command = std::process::Command::new(program);
    let ended = command
        .args(arguments)
        .stderr(std::process::Stdio::inherit())
        .output();
    let ended =
        ended.map_err(|error| format!("The term '{program}' is not recognized: {error}"))?;
    for line in String::from_utf8_lossy(&ended.stdout).lines() {
        say(line);
    }
    Ok(ended.status.code().unwrap_or(1).cast_unsigned())
}

fn pause(text: &str) -> Result<Duration, String> {
    let (unit, number) = text
        .split_once(char::is_whitespace)
        .unwrap_or(("-seconds", text));
    let number: u32 = number
        .trim()
        .parse()
        .map_err(|_| format!("Start-Sleep wants a whole number, not {text}"))?;
    match unit.to_lowercase().as_str() {
        "-seconds" | "-s" => Ok(Duration::from_secs(number.into())),
        "-milliseconds" | "-m" => Ok(Duration::from_millis(number.into())),
        other => Err(format!("Start-Sleep does not know {other}")),
    }
}

/// Parts a script at line ends and semicolons outside of quotes, and drops comments.
fn statements(script: &str) -> Result<Vec<String>, String> {
    let (mut all, mut one, mut quote, mut comment) = (Vec::new(), String::new(), None, false);
    for letter in script.chars() {
        match (letter, quote) {
            ('\n', None) => {
                comment = false;
                all.push(std::mem::take(&mut one));
            }
            _ if comment => {}
            (';', None) => all.push(std::mem::take(&mut one)),
            ('#', None) if one.trim().is_empty() || one.ends_with(' ') => comment = true,
            ('"' | '\'', None) => {
                quote = Some(letter);
                one.push(letter);
            }
            _ => {
                if quote == Some(letter) {
                    quote = None;
                }
                one.push(letter);
            }
        }
    }
    if quote.is_some() {
        return Err(format!("The string is missing the terminator: {one}"));
    }
    all.push(one);
    let trimmed = all.iter().map(|it| it.trim().to_owned());
    Ok(trimmed.filter(|it| !it.is_empty()).collect())
}

/// What one expression stands for.
fn value(text: &str) -> Result<String, String> {
    let unknown = || format!("this stand-in for PowerShell does not know the expression: {text}");
    let between = |quote: char| {
        let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
        (!inner.contains(quote)).then_some(inner)
    };
    if let Some(inner) = between('\'') {
        return Ok(inner.to_owned());
    }
    if let Some(inner) = between('"') {
        return expand(inner).ok_or_else(unknown);
    }
    let bare = |it: char| it.is_alphanumeric() || r"_.:\/-$".contains(it);
    if text.is_empty() || !text.chars().all(bare) {
        return Err(unknown());
    }
    expand(text).ok_or_else(unknown)
}

/// Replaces each `$env:NAME`; `None` if there is any other `$`.
fn expand(text: &str) -> Option<String> {
    let mut parts = text.split('$');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let prefix = part.get(..4)?;
        if !prefix.eq_ignore_ascii_case("env:") {
            return None;
        }
        let rest = part.get(4..)?;
        let end = rest
            .find(|it: char| !it.is_alphanumeric() && it != '_')
            .unwrap_or(rest.len());
        whole += &std::env::var(rest.get(..end)?).unwrap_or_default();
        whole += rest.get(end..)?;
    }
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> (Vec<String>, Result<u32, String>) {
        let mut lines = Vec::new();
        let ended = run(text, &mut |line| lines.push(line.to_owned()));
        (lines, ended)
    }

    #[test]
    fn a_script_says_its_lines_and_ends_with_its_code() {
        let text = "# a comment\r\nWrite-Output \"one; two\" # more\r\n'three'; echo four\nexit 7\necho five";
        let (lines, ended) = said(text);
        assert_eq!(lines, ["one; two", "three", "four"]);
        assert_eq!(ended, Ok(7));
    }

    #[test]
    fn variables_of_the_environment_are_filled_in() {
        let path = std::env::var("PATH").unwrap();
        let (lines, _) = said("Write-Output \"p=$env:PATH!\"; $Env:PATH; $env:NO_SUCH_NAME");
        assert_eq!(lines, [format!("p={path}!"), path, String::new()]);
    }

    #[test]
    fn what_it_does_not_know_fails_and_is_named() {
        for unknown in [
            "Get-NetIPAddress",
            "$x = 1",
            "Write-Output \"$x\"",
            "echo (1)",
            "Start-Sleep -Days 1",
        ] {
            let (lines, ended) = said(unknown);
            assert!(lines.is_empty());
            let sentence = ended.unwrap_err();
            assert!(sentence.contains("does not know"), "{sentence}");
        }
        assert_eq!(said("throw 'no network'").1, Err("no network".to_owned()));
        assert!(said("echo 'open").1.is_err());
    }

    #[test]
    fn the_text_of_a_command_may_come_in_several_arguments() {
        let arguments = [
            "-NoProfile",
            "-ExecutionPolicy",
            "Bypass",
            "-Command",
            "echo",
            "hello",
        ];
        assert_eq!(
            script(&arguments.map(str::to_owned)),
            Ok("echo hello".to_owned())
        );
        assert!(script(&["-Sneaky".to_owned()]).is_err());
    }
}
