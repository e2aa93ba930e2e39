//! Tables as a person reads them: rules between the lines, text to the left, figures to the right.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};

/// A table of `rows` below `header`; the first `text_columns` columns are text, the others figures.
pub fn grid<const N: usize>(
    header: [&str; N],
    text_columns: usize,
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(text_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}
