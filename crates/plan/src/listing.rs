//! A list that a person reads: the first few, and how many there are more.

/// The first `most` of `items` with `between` between them, and how many there are more.
pub fn listed<T: ToString>(
    items: impl IntoIterator<Item = T>,
    most: usize,
    between: &str,
) -> String {
    let mut items = items.into_iter();
    let named: Vec<String> = items.by_ref().take(most).map(|it| it.to_string()).collect();
    let named = named.join(between);
    match items.count() {
        0 => named,
        more => format!("{named}{between}and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_few_are_named_and_the_others_counted() {
        assert_eq!(listed(["a", "b"], 2, ", "), "a, b");
        assert_eq!(listed(["a", "b", "c", "d"], 2, "; "), "a; b; and 2 more");
        assert_eq!(listed(Vec::<String>::new(), 2, ", "), "");
    }
}
