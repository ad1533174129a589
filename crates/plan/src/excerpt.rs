//! A text that somebody else wrote, short enough for an object that others write to, too.

/// How many bytes of a foreign text are kept, with the note that it was cut.
pub const LONGEST: usize = 1024;

const CUT: &str = " … (cut)";

/// As much of `text` as anybody gets to see: 1 KiB at most, without control characters, and with a note if it was cut.
pub fn excerpt(text: &str) -> String {
    shortened(text, LONGEST)
}

/// The same, with `longest` bytes at most. The note itself takes ten.
pub fn shortened(text: &str, longest: usize) -> String {
    let is_fine = text.len() <= longest && !text.contains(char::is_control);
    if is_fine {
        return text.to_owned();
    }
    // Whoever sends a gigabyte is not read to its end.
    let enough = text.char_indices().take_while(|(at, _)| *at <= longest);
    let plain = enough.map(|(_, it)| if it.is_control() { ' ' } else { it });
    let mut plain: String = plain.collect();
    if text.len() > longest {
        plain.truncate(plain.floor_char_boundary(longest.saturating_sub(CUT.len())));
        plain.push_str(CUT);
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Covers S12.
    #[test]
    fn a_long_text_is_cut_between_characters_and_says_so() {
        assert_eq!(excerpt("its disk is full"), "its disk is full");
        assert_eq!(excerpt("a\r\nb\0c"), "a  b c");
        let whole = "x".repeat(LONGEST);
        assert_eq!(excerpt(&whole), whole);
        let cut = excerpt(&"ü".repeat(LONGEST));
        assert!(
            cut.len() <= LONGEST && cut.len() > LONGEST - 8,
            "{}",
            cut.len()
        );
        assert!(cut.ends_with("ü … (cut)"), "{cut}");
    }

    proptest! {
        #[test]
        fn whatever_comes_no_more_than_a_kibibyte_goes_on(text in "(?s).{0,2000}") {
            let seen = excerpt(&text);
            prop_assert!(seen.len() <= LONGEST);
            prop_assert!(!seen.contains(char::is_control));
            prop_assert_eq!(excerpt(&seen), seen.clone());
            // As JSON it is at most twice as long.
            prop_assert!(serde_json::json!(seen).to_string().len() <= 2 * LONGEST + 2);
        }
    }
}
