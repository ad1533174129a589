//! What a unit file looks like, as far as Ignition insists on it. What it means is systemd's business.

/// Bytes of a line from which on Ignition refuses it.
const MAX_LINE: usize = 2048;

/// Whether Ignition would take this as the text of a unit or a drop-in.
pub(super) fn judge(contents: &str) -> Result<(), String> {
    let lines = contents.split(['\r', '\n']);
    if let Some(length) = lines.map(str::len).find(|length| *length >= MAX_LINE) {
        return Err(format!(
            "a line has {length} bytes, and Ignition takes less than {MAX_LINE}: end it with a backslash and go on in the next line"
        ));
    }
    let mut reader = Reader {
        contents,
        rest: contents,
    };
    let mut in_section = false;
    loop {
        // Before the first section, only comments count.
        let rest = if in_section {
            reader.rest.trim_start()
        } else {
            let next = reader.rest.find(['[', '#', ';']);
            next.map_or("", |next| &reader.rest[next..])
        };
        reader.rest = rest;
        if rest.is_empty() {
            return Ok(());
        } else if let Some(section) = rest.strip_prefix('[') {
            reader.section(section)?;
            in_section = true;
        } else if let Some(comment) = rest.strip_prefix(['#', ';']) {
            reader.rest = comment;
            while {
                let line = reader.line();
                line.strip_suffix(' ').unwrap_or(line).ends_with('\\')
            } {}
        } else {
            reader.setting(rest)?;
        }
    }
}

struct Reader<'c> {
    contents: &'c str,
    rest: &'c str,
}

impl<'c> Reader<'c> {
    /// The rest of the line, which is then behind.
    fn line(&mut self) -> &'c str {
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        self.rest = rest;
        line
    }

    fn number(&self) -> usize {
        let before = self.contents.len() - self.rest.len();
        self.contents[..before].matches('\n').count() + 1
    }

    fn section(&mut self, header: &'c str) -> Result<(), String> {
        let number = self.number();
        let Some((name, rest)) = header.split_once(']') else {
            return Err(format!(
                "line {number} begins a section that does not end: close it with ]"
            ));
        };
        self.rest = rest;
        let garbage = self.line().trim();
        if garbage.is_empty() {
            return Ok(());
        }
        Err(format!(
            "line {number} has {garbage:?} after section [{name}]: remove it, or begin a new line with it"
        ))
    }

    fn setting(&mut self, rest: &'c str) -> Result<(), String> {
        let end = rest.find(['=', '\r', '\n']);
        let Some(end) = end.filter(|end| rest[*end..].starts_with('=')) else {
            return Err(format!(
                "line {} is neither a section nor NAME=VALUE: write one of them",
                self.number()
            ));
        };
        self.rest = &rest[end + 1..];
        // What follows a backslash belongs to the value.
        while self.line().ends_with('\\') {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers A04.
    #[test]
    fn a_unit_is_made_of_sections_and_settings() {
        for contents in [
            "",
            "\n\n",
            "# only a comment",
            "[Unit]\nDescription=a\n\n[Service]\nExecStart=/bin/a \\\n  --b\n; done\n",
            "[Service]\nEnvironment=\n",
            "[Service]\nExecStart=a \\\n[no section]\n",
            " [Unit]\n\tDescription = a\r\n",
            "[Unit]",
            "[Unit]\n# goes on \\\nhere\nA=b\n",
            "before the first section\n[Unit]\n",
        ] {
            assert_eq!(judge(contents), Ok(()), "{contents}");
        }
        let long = format!("[Unit]\nDescription={}\n", "x".repeat(2048));
        for (contents, words) in [
            (
                "[Unit] Description=a\n",
                "line 1 has \"Description=a\" after section [Unit]",
            ),
            ("[Unit]x", "after section [Unit]"),
            ("[Unit\nA=b\n", "does not end"),
            ("[Unit]\nDescription\n", "line 2 is neither"),
            ("[Unit]\n\nDescription", "line 3 is neither"),
            ("[Unit]\nA\rb=c\n", "line 2 is neither"),
            ("[Unit]\nA=b\\\r\nc\n", "line 3 is neither"),
            (long.as_str(), "a line has 2060 bytes"),
        ] {
            let message = judge(contents).unwrap_err();
            assert!(message.contains(words), "{contents}: {message}");
        }
    }
}
