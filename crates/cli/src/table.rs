//! Tables and bars on a terminal.

use comfy_table::Table;
use comfy_table::presets::NOTHING;

use crate::output::Paint;

const BAR: usize = 20;

/// A table without lines, as `kubectl` has them.
pub(crate) fn table(head: &[&str], paint: Paint) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header(head.iter().map(|it| paint.bold(it)).collect::<Vec<_>>());
    table
}

/// The table's lines, without what is blank at their ends.
pub(crate) fn lines(table: &Table) -> String {
    let text = table.to_string();
    text.lines().fold(String::new(), |mut all, line| {
        // Each column begins with a blank of its own.
        let line = line.strip_prefix(' ').unwrap_or(line);
        all.push_str(line.trim_end());
        all.push('\n');
        all
    })
}

/// `[########------------]`
pub(crate) fn bar(done: usize, total: usize) -> String {
    let full = (BAR * done).checked_div(total).unwrap_or(BAR);
    format!(
        "[{}{}]",
        "#".repeat(full),
        "-".repeat(BAR.saturating_sub(full))
    )
}
