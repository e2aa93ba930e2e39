//! Tables as a person reads them: rules around the head and below, text to the left, figures to the right.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

const RULE: LineStyle = LineStyle::none().fill('─').junction('─');
const STYLE: TableStyle = TableStyle::new().top_border(RULE).header_separator(RULE).bottom_border(RULE);

/// A table of `rows` below `header`; the first `text_columns` columns are text, the others figures.
pub fn grid<const N: usize>(
    header: [&str; N],
    text_columns: usize,
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(text_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}
