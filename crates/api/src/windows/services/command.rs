//! The command line of a Windows service, as far as it can be judged without running it, and the
//! JSON paths that fill it.

/// Whether a quotation mark is left open, by the rules of Windows: in the program's own name a
/// backslash is part of the path; after it, an odd number of them takes the mark's meaning away.
pub(super) fn has_open_quote(command: &str) -> bool {
    let command = command.trim_start();
    let arguments = match command.strip_prefix('"') {
        Some(rest) => match rest.split_once('"') {
            Some((_, arguments)) => arguments,
            None => return true,
        },
        None => command,
    };
    let mut open = false;
    let mut backslashes = 0;
    for character in arguments.chars() {
        if character == '"' && backslashes % 2 == 0 {
            open = !open;
        }
        backslashes = if character == '\\' {
            backslashes + 1
        } else {
            0
        };
    }
    open
}

/// `metadata.name`, `.metadata.name`, `$.metadata.name` and `{.metadata.name}`, all as the last.
pub(super) fn json_path(text: &str) -> Result<String, String> {
    let cure = "write one path, for example {.metadata.name}";
    let inner = text.trim();
    let inner = match (inner.strip_prefix('{'), inner.strip_suffix('}')) {
        (Some(_), Some(_)) => inner[1..inner.len() - 1].trim(),
        (None, None) => inner,
        _ => {
            return Err(format!(
                "jsonPathNodeObject {text:?} has an unmatched brace: {cure}"
            ));
        }
    };
    let path = inner.strip_prefix('$').unwrap_or(inner);
    if path.is_empty() || path == "." {
        return Err(format!(
            "jsonPathNodeObject {text:?} names no field: {cure}"
        ));
    }
    if path.contains(['{', '}']) {
        return Err(format!(
            "jsonPathNodeObject {text:?} has more than one path: {cure}"
        ));
    }
    if path.matches('[').count() != path.matches(']').count() {
        return Err(format!(
            "jsonPathNodeObject {text:?} has an unmatched bracket: {cure}"
        ));
    }
    let dot = if path.starts_with(['.', '[']) {
        ""
    } else {
        "."
    };
    Ok(format!("{{{dot}{path}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers H06.
    #[test]
    fn an_open_quote_is_found_by_the_rules_of_windows() {
        for command in [
            r"C:\k\kubelet.exe --a=b",
            r#""C:\Program Files\k.exe" --a="b c""#,
            r#""C:\Program Files\" --a"#,
            r#"k.exe --a=\"b"#,
            r#"k.exe --a="b\\""#,
            r#"k.exe --a="b""c""#,
        ] {
            assert!(!has_open_quote(command), "{command}");
        }
        for command in [
            r#""C:\Program Files\k.exe --a"#,
            r#"k.exe --a="b c"#,
            r#"k.exe --a="b\""#,
            r#""k.exe" ""#,
        ] {
            assert!(has_open_quote(command), "{command}");
        }
    }

    /// Covers H06.
    #[test]
    fn a_json_path_may_be_written_with_or_without_braces() {
        for text in [
            "metadata.name",
            ".metadata.name",
            "$.metadata.name",
            "{.metadata.name}",
            "{metadata.name}",
            " { .metadata.name } ",
        ] {
            assert_eq!(json_path(text).unwrap(), "{.metadata.name}", "{text}");
        }
        let filter = r#"{.status.addresses[?(@.type=="InternalIP")].address}"#;
        assert_eq!(json_path(filter).unwrap(), filter);
        assert_eq!(json_path("['metadata']").unwrap(), "{['metadata']}");
        for text in ["", "{}", "{.}", "{.a", ".a}", "{.a} {.b}", ".a[0"] {
            assert!(json_path(text).is_err(), "{text}");
        }
    }
}
