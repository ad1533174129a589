//! Durations as people write them in Kubernetes objects: `10s`, `5m`, `1h30m`, `500ms`.

use std::time::Duration;

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// The duration, or what would be one.
pub fn parse(text: &str) -> Result<Duration, String> {
    let refused = || format!("{text:?} is not a duration: write for example 10s, 5m or 1h30m");
    let mut rest = text;
    let mut milliseconds: u64 = 0;
    if rest.is_empty() {
        return Err(refused());
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .ok_or_else(refused)?;
        let (number, tail) = rest.split_at(digits);
        let end = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let scale = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(refused)?
            .1;
        let number: u64 = number.parse().map_err(|_| refused())?;
        let part = number.checked_mul(scale).ok_or_else(refused)?;
        milliseconds = milliseconds.checked_add(part).ok_or_else(refused)?;
        rest = tail;
    }
    Ok(Duration::from_millis(milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        for (text, milliseconds) in [
            ("0s", 0),
            ("10s", 10_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
        ] {
            assert_eq!(
                parse(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for text in [
            "",
            "10",
            "s",
            "10x",
            "-1s",
            "1.5s",
            "10 s",
            "99999999999999999999s",
            "9999999999999999h",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
