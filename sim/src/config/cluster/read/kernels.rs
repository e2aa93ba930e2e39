//! The table of kernels.

use super::{RATE, SOURCE, TIME};
use crate::config::cluster::{Device, Dtype, Grid, Items, KernelRow, KernelUse, Sections};
use crate::config::error::ConfigError;
use crate::config::field::Keyword;
use crate::config::section::{Keys, Section};
use crate::units::{FlopsPerSec, SimTime};

const KERNEL: Keys = &[
    ("name", "\"FlashAttention-3\""),
    ("head_dim", "128"),
    ("dtype", "\"bf16\""),
    ("pass", "\"forward\""),
    ("tile_q", "128"),
    ("tile_kv", "128"),
    ("rate", RATE),
    ("partial_tile_cost", "1.0"),
    ("prologue", TIME),
    ("epilogue", TIME),
    ("call", TIME),
    ("carry", TIME),
    ("boost", "1.127"),
    ("linked", "1.02"),
    ("items", "\"query-tiles\""),
    ("grid", "\"persistent\""),
    SOURCE,
    ("use", "{ min_keys = 32768, or_visited = 0.9, above_keys = 2048 }"),
    ("sections", "{ cache = \"32 MiB\", items_an_sm = 4 }"),
];
const SECTIONS: Keys = &[("cache", "\"32 MiB\""), ("items_an_sm", "4")];
const USE: Keys = &[("min_keys", "32768"), ("or_visited", "0.9"), ("above_keys", "2048")];

/// Most keys of a call.
const KEYS: u64 = 1 << 40;

pub(super) fn kernels(root: &Section<'_, '_>, device: &Device) -> Result<Vec<KernelRow>, ConfigError> {
    let mut rows: Vec<KernelRow> = Vec::new();
    for section in root.sections("kernels", KERNEL)? {
        let row = kernel(&section, device)?;
        if rows.iter().any(|earlier| earlier.title() == row.title()) {
            return Err(section.error(format!("a second kernel for {}", row.title())));
        }
        let general = KernelRow { used_for: None, ..row.clone() };
        let is_missing =
            row.used_for.is_some() && !rows.iter().any(|earlier| earlier.title() == general.title());
        if is_missing {
            let error =
                section.error(format!("no kernel before it for all other calls of {}", general.title()));
            return Err(error.with_hint("put the row without `use` first"));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// The calls that a row is for, if it says.
fn used_for(section: &Section<'_, '_>) -> Result<Option<KernelUse>, ConfigError> {
    let Some(section) = section.optional_section("use", USE)? else { return Ok(None) };
    let min_keys = section.required("min_keys")?.count(1..=KEYS)?;
    let above = section.required("above_keys")?;
    let above_keys = above.count(0..=KEYS)?;
    if above_keys >= min_keys {
        return Err(above
            .error(format!("`{}` is {above_keys}, expected less than `min_keys`, {min_keys}", above.path)));
    }
    let or_visited = section.required("or_visited")?.real(0.0..=1.0)?;
    Ok(Some(KernelUse { min_keys, or_visited, above_keys }))
}

/// The order of a row's queue, if it says.
fn sections(
    section: &Section<'_, '_>,
    (items, grid): (Items, Grid),
) -> Result<Option<Sections>, ConfigError> {
    let Some(table) = section.optional_section("sections", SECTIONS)? else { return Ok(None) };
    if items != Items::QueryTiles || grid == Grid::Persistent {
        let error = table.error("only query tiles that are taken one by one go in sections of heads");
        return Err(error.with_hint(
            "they are those of items = \"query-tiles\" and grid = \"persistent-queue\" or \"per-item\"",
        ));
    }
    let cache = table.required("cache")?.amount()?;
    Ok(Some(Sections { cache, items_an_sm: table.required("items_an_sm")?.small_count(0..=1 << 16)? }))
}

fn kernel(section: &Section<'_, '_>, device: &Device) -> Result<KernelRow, ConfigError> {
    let dtype: Dtype = section.required("dtype")?.keyword()?;
    let rate_field = section.required("rate")?;
    let rate: FlopsPerSec = rate_field.amount()?;
    if let Some(peak) = device.peak.of(dtype).filter(|peak| rate > *peak) {
        let message =
            format!("`{}` is {rate}, more than the device's {} peak, {peak}", rate_field.path, dtype.name());
        return Err(rate_field.error(message).with_hint("peaks are dense, without sparsity"));
    }
    let items = section.optional("items").map_or(Ok(Items::default()), |field| field.keyword())?;
    let grid = section.required("grid")?.keyword()?;
    Ok(KernelRow {
        name: section.required("name")?.text()?,
        head_dim: section.required("head_dim")?.small_count(1..=4096)?,
        dtype,
        pass: section.required("pass")?.keyword()?,
        tile_q: section.required("tile_q")?.small_count(1..=1 << 16)?,
        tile_kv: section.required("tile_kv")?.small_count(1..=1 << 16)?,
        rate,
        partial_tile_cost: section.required("partial_tile_cost")?.real(0.01..=100.0)?,
        prologue: section.required("prologue")?.amount()?,
        epilogue: section.required("epilogue")?.amount()?,
        call: section.optional("call").map_or(Ok(SimTime::ZERO), |field| field.amount())?,
        carry: section.optional("carry").map_or(Ok(SimTime::ZERO), |field| field.amount())?,
        boost: section.optional("boost").map(|field| field.real(1.0..=10.0)).transpose()?,
        linked: section
            .optional("linked")
            .map(|field| field.real(1.0..=KernelRow::MOST_LINKED))
            .transpose()?,
        items,
        grid,
        source: section.required("source")?.text()?,
        used_for: used_for(section)?,
        sections: sections(section, (items, grid))?,
    })
}

#[cfg(test)]
mod tests {
    use crate::config::cluster::{Cluster, Dtype, KernelUse, Pass, Sections, test_text};
    use crate::units::Bytes;

    /// A second forward kernel for heads of 128, for the calls `used_for`.
    fn text(used_for: &str) -> String {
        test_text(&format!(
            r#"
            [[kernels]]
            name = "wide"
            head_dim = 128
            dtype = "bf16"
            pass = "forward"
            tile_q = 128
            tile_kv = 176
            rate = "750 TFLOP/s"
            partial_tile_cost = 1.5
            prologue = "1 us"
            epilogue = "1 us"
            grid = "persistent"
            source = "test"
            {used_for}"#
        ))
    }

    #[test]
    fn a_row_with_a_condition_stands_beside_the_row_for_all_others() {
        let cluster = text("use = { min_keys = 32768, or_visited = 0.9, above_keys = 2048 }");
        let cluster = Cluster::parse("c.toml", &cluster).unwrap();
        let general = cluster.kernel(128, Dtype::Bf16, Pass::Forward).unwrap();
        assert_eq!((general.tile_kv, general.used_for), (128, None));
        let wide = cluster.conditional_kernel(general).unwrap();
        let used_for = KernelUse { min_keys: 32768, or_visited: 0.9, above_keys: 2048 };
        assert_eq!((wide.tile_kv, wide.used_for), (176, Some(used_for)));
        let other = cluster.kernel(64, Dtype::Bf16, Pass::Forward).unwrap();
        assert_eq!(cluster.conditional_kernel(other), None);
        assert_eq!(Cluster::parse("again", &cluster.to_toml()).unwrap(), cluster);
    }

    #[test]
    fn conditions_that_make_no_sense_are_refused() {
        let error = |used_for: &str| Cluster::parse("c.toml", &text(used_for)).unwrap_err().to_string();
        assert!(error("").contains("a second kernel for forward bf16 128"), "{}", error(""));
        let twice = text("use = { min_keys = 9, or_visited = 0.9, above_keys = 2 }");
        let twice = format!("{twice}\n{}", &twice[twice.rfind("[[kernels]]").unwrap()..]);
        let message = Cluster::parse("c.toml", &twice).unwrap_err().to_string();
        assert!(message.contains("a second kernel for forward bf16 128 (conditional)"), "{message}");
        let crossed = error("use = { min_keys = 9, or_visited = 0.9, above_keys = 9 }");
        assert!(crossed.contains("expected less than `min_keys`, 9"), "{crossed}");
        let share = error("use = { min_keys = 9, or_visited = 90, above_keys = 2 }");
        assert!(share.contains("a number from 0 to 1"), "{share}");
        let alone = text("use = { min_keys = 9, or_visited = 0.9, above_keys = 2 }");
        let alone = alone.replace("head_dim = 128\n            dtype", "head_dim = 96\n            dtype");
        let message = Cluster::parse("c.toml", &alone).unwrap_err().to_string();
        assert!(message.contains("no kernel before it for all other calls of forward bf16 96"), "{message}");
    }

    #[test]
    fn sections_are_read_and_written_back() {
        let used_for = "use = { min_keys = 32768, or_visited = 0.9, above_keys = 2048 }\n";
        let text = text(&format!("{used_for}sections = {{ cache = \"32 MiB\", items_an_sm = 4 }}"));
        let cluster =
            Cluster::parse("c.toml", &text.replace("\"persistent\"", "\"persistent-queue\"")).unwrap();
        let general = cluster.kernel(128, Dtype::Bf16, Pass::Forward).unwrap();
        let wide = cluster.conditional_kernel(general).unwrap();
        let expected = Sections { cache: Bytes(33_554_432), items_an_sm: 4 };
        assert_eq!((general.sections, wide.sections), (None, Some(expected)));
        let written = cluster.to_toml();
        assert!(
            written.contains("[kernels.sections]\ncache = \"33.554432 MB\"\nitems_an_sm = 4\n"),
            "{written}"
        );
        assert_eq!(Cluster::parse("again", &written).unwrap(), cluster);
    }

    #[test]
    fn sections_that_make_no_sense_are_refused() {
        let error = |grid: &str, rest: &str| {
            let used_for = "use = { min_keys = 9, or_visited = 0.9, above_keys = 2 }\n";
            let text = text(&format!("{used_for}{rest}")).replace("grid = \"persistent\"", grid);
            let line = text.lines().position(|line| line.contains("sections")).unwrap() + 1;
            let message = Cluster::parse("c.toml", &text).unwrap_err().to_string();
            assert!(message.contains(&format!("--> c.toml:{line}:")), "{line}: {message}");
            message
        };
        let queue = "grid = \"persistent-queue\"";
        let good = "sections = { cache = \"32 MiB\", items_an_sm = 4 }";
        for (grid, rest, expected) in [
            ("grid = \"persistent\"", good, "only query tiles that are taken one by one"),
            (
                "grid = \"per-item\"\nitems = \"key-tiles\"",
                good,
                "only query tiles that are taken one by one",
            ),
            (queue, "sections = { cache = \"32 MiB\" }", "missing `kernels[4].sections.items_an_sm`"),
            (queue, "sections = { cache = 32, items_an_sm = 4 }", "`32` has no unit"),
            (queue, "sections = { cache = \"32 MiB\", items_an_sm = 0.5 }", "a whole number from 0 to 65536"),
            (queue, "sections = { cache = \"32 MiB\", items_an_sm = 4, head = 1 }", "unknown key"),
            (queue, "sections = 4", "expected a table"),
        ] {
            let message = error(grid, rest);
            assert!(message.contains(expected), "{rest}: {message}");
        }
    }
}
