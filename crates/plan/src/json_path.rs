//! The paths with which Kubernetes names a field of an object:
//! `{.status.addresses[?(@.type=="InternalIP")].address}`.

use serde_json::Value;

/// No field of an object needs a longer path.
const LONGEST: usize = 1024;
/// How deep filters may stand in filters: reading and following them goes as deep.
const DEEPEST: usize = 4;

/// A path that was read.
#[derive(Debug, PartialEq)]
pub(crate) struct JsonPath(Vec<PathStep>);

#[derive(Debug, PartialEq)]
enum PathStep {
    /// `.name` or `['name']`.
    Name(String),
    /// `[0]`; below zero it counts from the end.
    Index(i64),
    /// `[*]`.
    All,
    /// `[?(@.name=="value")]`.
    Filter(JsonPath, Test),
}

/// What a filter asks of the field it names.
#[derive(Debug, PartialEq)]
enum Test {
    IsThere,
    Is(Value),
    IsNot(Value),
}

impl JsonPath {
    /// Reads a path, with or without its braces; else says what of it cannot be followed.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let length = text.len();
        if length > LONGEST {
            return Err(format!(
                "it has {length} bytes and the limit is {LONGEST}: write a shorter path"
            ));
        }
        let inner = text.trim();
        let inner = inner.strip_prefix('{').unwrap_or(inner);
        let inner = inner.strip_suffix('}').unwrap_or(inner);
        steps(inner.strip_prefix('$').unwrap_or(inner), 0).map(Self)
    }

    /// All that it leads to.
    pub(crate) fn find<'v>(&self, object: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![object];
        for step in &self.0 {
            found = found.into_iter().flat_map(|it| step.from(it)).collect();
        }
        found
    }
}

impl PathStep {
    fn from<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        match self {
            Self::Name(name) => value.get(name).into_iter().collect(),
            Self::Index(index) => {
                let list = value.as_array().map_or(&[][..], Vec::as_slice);
                let at = usize::try_from(index.unsigned_abs()).ok();
                let at = at.and_then(|at| {
                    if *index < 0 {
                        list.len().checked_sub(at)
                    } else {
                        Some(at)
                    }
                });
                at.and_then(|at| list.get(at)).into_iter().collect()
            }
            Self::All => match value {
                Value::Array(all) => all.iter().collect(),
                Value::Object(all) => all.values().collect(),
                _ => Vec::new(),
            },
            Self::Filter(path, test) => {
                let all = value.as_array().into_iter().flatten();
                all.filter(|it| test.holds(&path.find(it))).collect()
            }
        }
    }
}

impl Test {
    fn holds(&self, found: &[&Value]) -> bool {
        match self {
            Self::IsThere => !found.is_empty(),
            Self::Is(wanted) => found.contains(&wanted),
            Self::IsNot(other) => !found.is_empty() && !found.contains(&other),
        }
    }
}

fn steps(text: &str, depth: usize) -> Result<Vec<PathStep>, String> {
    let mut steps = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (inside, after) = until_closed(inner)?;
            steps.push(bracket(inside, depth)?);
            rest = after;
            continue;
        }
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if rest.starts_with('.') {
            return Err("`..` is not supported: write every field of the path".to_owned());
        }
        let (name, after) = name(rest);
        match name.as_str() {
            "" if after.starts_with('[') || after.is_empty() => {}
            "*" => steps.push(PathStep::All),
            _ => steps.push(PathStep::Name(name)),
        }
        rest = after;
    }
    Ok(steps)
}

/// A name up to the next dot or bracket; what follows a backslash belongs to it.
fn name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '.' | '[' => return (name, &text[at..]),
            '\\' => name.extend(letters.next().map(|(_, letter)| letter)),
            other => name.push(other),
        }
    }
    (name, "")
}

/// What stands before the bracket that closes, and after it. Brackets in quotes do not count.
fn until_closed(text: &str) -> Result<(&str, &str), String> {
    let mut depth = 1;
    for (at, letter) in unquoted(text) {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok((&text[..at], &text[at + 1..]));
        }
    }
    Err("a bracket is unbalanced".to_owned())
}

/// The letters that stand in no quotes, and where.
fn unquoted(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut quote = None;
    let mut is_escaped = false;
    text.char_indices().filter(move |(_, letter)| {
        if std::mem::take(&mut is_escaped) {
            return false;
        }
        match (*letter, quote) {
            ('\\', Some(_)) => is_escaped = true,
            (letter, Some(open)) if letter == open => quote = None,
            ('\'' | '"', None) => quote = Some(*letter),
            (_, Some(_)) => {}
            (_, None) => return true,
        }
        false
    })
}

fn bracket(inside: &str, depth: usize) -> Result<PathStep, String> {
    let inside = inside.trim();
    if inside == "*" {
        return Ok(PathStep::All);
    }
    if let Some(name) = quoted(inside) {
        return Ok(PathStep::Name(name));
    }
    if let Some(filter) = inside
        .strip_prefix("?(")
        .and_then(|it| it.strip_suffix(')'))
    {
        return filtered(filter, depth + 1);
    }
    let index = inside.parse();
    index.map(PathStep::Index).map_err(|_| {
        format!("[{inside}] is neither a number, a name in quotes, [*] nor [?(@.field==\"value\")]")
    })
}

fn filtered(text: &str, depth: usize) -> Result<PathStep, String> {
    if depth > DEEPEST {
        return Err(format!(
            "filters are nested more than {DEEPEST} deep: write a simpler path"
        ));
    }
    let compares = |at: &usize| text[*at..].starts_with("==") || text[*at..].starts_with("!=");
    let operator = unquoted(text).map(|(at, _)| at).find(compares);
    let (path, test) = match operator {
        None => (text, Test::IsThere),
        Some(at) => {
            let value = literal(text[at + 2..].trim())?;
            let test = if text[at..].starts_with("==") {
                Test::Is(value)
            } else {
                Test::IsNot(value)
            };
            (&text[..at], test)
        }
    };
    let Some(path) = path.trim().strip_prefix('@') else {
        return Err(format!("the filter {text} does not begin with @"));
    };
    if path.contains(['<', '>', '=', '&', '|', '~', ' ']) {
        return Err(format!(
            "the filter {text} has an operator other than == or !="
        ));
    }
    Ok(PathStep::Filter(JsonPath(steps(path, depth)?), test))
}

/// A text in quotes, a number, `true` or `false`.
fn literal(text: &str) -> Result<Value, String> {
    if let Some(text) = quoted(text) {
        return Ok(Value::String(text));
    }
    match serde_json::from_str(text) {
        Ok(value @ (Value::Number(_) | Value::Bool(_))) => Ok(value),
        _ => Err(format!("{text} is neither a string in quotes nor a number")),
    }
}

/// What stands in quotes, if all of `text` does.
fn quoted(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|it| matches!(it, '\'' | '"'))?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut read = String::new();
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => read.push(letters.next()?),
            letter if letter == quote => return None,
            other => read.push(other),
        }
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_leads_to_everything_that_kubernetes_means_by_it() {
        let object = json!({
            "a": [{ "n": "x", "v": 1, "b.c/d": true }, { "n": "y]", "v": 2 }, { "v": 3 }],
            "it's": "q",
        });
        for (path, found) in [
            ("{.a[0].v}", json!([1])),
            ("$.a[-1].v", json!([3])),
            ("a[*].v", json!([1, 2, 3])),
            (".a.*.v", json!([1, 2, 3])),
            (".a[9].v", json!([])),
            (".a[-9].v", json!([])),
            (r#".a[?(@.n=="y]")].v"#, json!([2])),
            (r".a[?(@.n != 'x')].v", json!([2])),
            (".a[?(@.n)].v", json!([1, 2])),
            (".a[?(@.v==3)].v", json!([3])),
            (".a[?(@['b.c/d'] == true)].v", json!([1])),
            (r".a[0].b\.c/d", json!([true])),
            (r"['it\'s']", json!(["q"])),
            (".it's", json!(["q"])),
            ("{.a[0]['b.c/d']}", json!([true])),
            ("{}", json!([object])),
        ] {
            let read = JsonPath::read(path);
            let read = read.unwrap_or_else(|why| panic!("{path}: {why}"));
            let all = json!(read.find(&object));
            assert_eq!(all, found, "{path}");
        }
    }

    #[test]
    fn what_it_cannot_follow_it_names() {
        for (path, words) in [
            ("{.a[0}", "a bracket is unbalanced"),
            ("{..name}", "`..` is not supported"),
            ("{.a[1:2]}", "[1:2] is neither"),
            ("{.a[0,1]}", "[0,1] is neither"),
            ("{.a[?(@.v>1)]}", "an operator other than =="),
            ("{.a[?(v==1)]}", "does not begin with @"),
            ("{.a[?(@.n==x)]}", "x is neither a string"),
            ("{.a['x]}", "a bracket is unbalanced"),
        ] {
            let refused = JsonPath::read(path).unwrap_err();
            assert!(refused.contains(words), "{path}: {refused}");
        }
    }

    /// Covers S13.
    #[test]
    fn a_path_of_any_length_and_depth_is_answered_and_only_sensible_ones_are_followed() {
        let nested = |depth: usize| {
            let (open, close) = ("[?(@.a".repeat(depth), ")]".repeat(depth));
            format!(".a{open}{close}")
        };
        assert!(JsonPath::read(&nested(DEEPEST)).is_ok());
        let deep = JsonPath::read(&nested(DEEPEST + 1)).unwrap_err();
        assert!(deep.contains("more than 4 deep"), "{deep}");
        assert!(JsonPath::read(&".a".repeat(LONGEST / 2)).is_ok());
        for long in [
            nested(200_000),
            ".a".repeat(1_000_000),
            "[".repeat(1_000_000),
        ] {
            let why = JsonPath::read(&long).unwrap_err();
            assert!(why.contains("the limit is 1024"), "{why}");
        }
    }
}
