//! Text as Windows takes and gives it: UTF-16, ended by a zero.

/// `text`, ended by a zero.
pub(super) fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// Several texts, each ended by a zero, and one more at the end.
pub(super) fn wide_list(texts: &[String]) -> Vec<u16> {
    let mut list: Vec<u16> = texts.iter().flat_map(|text| wide(text)).collect();
    if list.is_empty() {
        list.push(0);
    }
    list.push(0);
    list
}

/// The texts of a list that ends with an empty one.
pub(super) fn narrow_list(list: &[u16]) -> Vec<String> {
    list.split(|unit| *unit == 0)
        .take_while(|text| !text.is_empty())
        .map(String::from_utf16_lossy)
        .collect()
}

/// The text up to the first zero.
pub(super) fn narrow(units: &[u16]) -> String {
    let end = units.iter().position(|unit| *unit == 0);
    String::from_utf16_lossy(&units[..end.unwrap_or(units.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_survive_being_written_and_read() {
        let names = ["a".to_owned(), "bé".to_owned()];
        assert_eq!(narrow_list(&wide_list(&names)), names);
        assert_eq!(wide_list(&[]), [0, 0]);
        assert_eq!(narrow(&wide("x")), "x");
    }
}
