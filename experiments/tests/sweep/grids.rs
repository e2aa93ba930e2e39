use ringlab_experiments::sweep::{Grid, Setting};
use ringlab_sim::config::ConfigError;
use ringlab_sim::schedule::Schedule;

use crate::support::{Folder, grid, ringlab};

fn seqs(text: &str) -> Vec<u64> {
    let seq = |s: &Setting| match s {
        Setting::Seq(n) => *n,
        other => panic!("{other:?}"),
    };
    grid(text).axes[0].settings.iter().map(seq).collect()
}

#[test]
fn lists_ranges_and_single_values_say_the_same() {
    let doubling = [8192, 16384, 32768, 65536];
    assert_eq!(seqs(r#"seq = ["8Ki", "16Ki", "32Ki", "64Ki"]"#), doubling);
    assert_eq!(seqs(r#"seq = { from = "8Ki", to = "64Ki", times = 2 }"#), doubling);
    assert_eq!(
        seqs(r#"seq = ["8Ki", { from = "16Ki", to = "100Ki", times = 2 }]"#),
        doubling,
        "the last one in reach"
    );
    assert_eq!(seqs(r"seq = { from = 1000, to = 4000, step = 1500 }"), [1000, 2500, 4000]);
    assert_eq!(seqs(r"seq = { from = 1000, to = 2250, times = 1.5 }"), [1000, 1500, 2250]);
    assert_eq!(seqs(r#"seq = "8Ki""#), [8192]);
}

#[test]
fn the_first_key_varies_slowest() {
    let grid = grid("cp = [2, 4]\nschedule = [\"ring\", \"striped\"]\nseq = [1024, 2048, 4096]\n");
    assert_eq!(grid.len, 12);
    let mut index = 0;
    for cp in [2, 4] {
        for schedule in [Schedule::Ring, Schedule::Striped { block: 1 }] {
            for seq in [1024, 2048, 4096] {
                let point = grid.point(index);
                assert_eq!((point.cp, point.schedule, point.seq), (cp, schedule, Some(seq)), "{index}");
                index += 1;
            }
        }
    }
}

#[test]
fn a_stripe_is_for_striped_schedules_only() {
    let grid = grid("schedule = [\"striped\", \"ring\"]\nstripe = [16, \"1Ki\"]\n");
    let schedules: Vec<_> = (0..4).map(|i| grid.point(i).schedule().to_string()).collect();
    assert_eq!(schedules, ["striped:16", "striped:1024", "ring", "ring"]);
}

#[test]
fn an_empty_product_is_the_default_alone() {
    let grid = grid("# nothing\n");
    assert_eq!((grid.len, grid.point(0).cp), (1, 8));
}

/// Text, line and column, part of the message, part of the hint.
const WRONG: &[(&str, (usize, usize), &str, &str)] = &[
    ("seq = 1024\nsequence = 5\n", (2, 1), "unknown key `sequence`", "known keys"),
    ("schedul = \"ring\"\n", (1, 1), "unknown key `schedul`", "`schedule`"),
    ("link_bandwidth = \"400\"\n", (1, 18), "has no unit", "400 GB/s"),
    (
        "link_bandwidth = [\"1 GB/s\", \"5 us\"]\n",
        (1, 29),
        "`link_bandwidth[1]`: `us` is the unit of a time",
        "5 GB/s",
    ),
    ("seq = []\n", (1, 7), "empty list", ""),
    ("seq = [\n  1024,\n  \"8KB\",\n]\n", (3, 3), "`seq[1]`: `KB`", "8Ki"),
    ("cp = 0\n", (1, 6), "a whole number from 1 to 65536", ""),
    ("cp = \"8\"\n", (1, 6), "a whole number", "without quotes"),
    ("cp = { from = 8, to = 2, times = 2 }\n", (1, 23), "the range is empty", ""),
    ("cp = { from = 2, to = 8 }\n", (1, 6), "either `times` or `step`", ""),
    ("cp = { from = 2, to = 8, times = 2, step = 2 }\n", (1, 6), "either `times` or `step`", ""),
    ("cp = { from = 2, to = 8, times = 1 }\n", (1, 34), "`cp.times` is 1", ""),
    ("cp = { from = 2, to = 8, step = 0 }\n", (1, 33), "`cp.step` is 0", ""),
    ("cp = { from = 2, to = 9, times = 1.5 }\n", (1, 6), "4.5, which is not a whole number", ""),
    ("cp = { from = 2, too = 9, times = 2 }\n", (1, 18), "unknown key `cp.too`", "`to`"),
    ("seq = { from = 1, to = \"1024Mi\", step = 1 }\n", (1, 7), "more than 1000000 values", ""),
    ("schedule = \"rign\"\n", (1, 12), "no schedule \"rign\"", ""),
    ("schedule = { from = 1, to = 2, step = 1 }\n", (1, 12), "has names", "list of names"),
    ("pass = \"foreward\"\n", (1, 8), "foreward", "\"forward\""),
    ("pad = 1\n", (1, 7), "true or false", ""),
    ("dtype = \"int8\"\n", (1, 9), "int8", ""),
    ("cluster = [\"dgx-h100\", \"dgx-h101\"]\n", (1, 24), "no cluster preset", "dgx-h100"),
    ("mask = \"windw:5\"\n", (1, 8), "windw", ""),
    ("seq = 1\nseq = 2\n", (2, 1), "duplicate key", ""),
];

fn refused(text: &str) -> ConfigError {
    match Grid::parse("sweep.toml", text) {
        Ok(_) => panic!("{text} was read"),
        Err(error) => error,
    }
}

#[test]
fn wrong_files_are_refused_at_their_place() {
    for (text, place, message, hint) in WRONG {
        let error = refused(text);
        assert_eq!(error.position(), Some(*place), "{text}: {error}");
        assert!(error.message().contains(message), "{text}: {error}");
        assert!(error.hint().unwrap_or_default().contains(hint), "{text}: {error}");
    }
}

#[test]
fn a_grid_beyond_all_time_is_refused() {
    let axis = "{ from = 1, to = 20000, step = 1 }";
    let text = format!("cp = {axis}\nchunks = {axis}\nheads = {axis}\n");
    let error = refused(&text);
    assert!(error.message().contains("more than 1099511627776 configurations"), "{error}");
}

#[test]
fn grids_differ_in_their_fingerprints() {
    let texts = [
        "seq = 1024",
        "seq = 2048",
        "seq = [1024, 2048]",
        "cluster = \"hgx-h200\"",
        "model = \"llama-2-7b\"",
        "cp = 1024",
    ];
    let prints: Vec<u64> = texts.iter().map(|t| grid(t).fingerprint()).collect();
    for (i, a) in prints.iter().enumerate() {
        assert!(!prints[i + 1..].contains(a), "{}", texts[i]);
    }
    assert_eq!(grid("seq = \"1Ki\"  # the same").fingerprint(), prints[0]);
}

/// Each thread has its own memory and stack, so a slip of the finger must not start a hundred thousand.
#[test]
fn as_many_threads_as_no_machine_has_are_refused() {
    let folder = Folder::new("cp = 2\n");
    for threads in ["0", "100000"] {
        let output = ringlab(&["sweep", &folder.at("sweep.toml"), "--threads", threads]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("from 1 to 1024"), "{output:?}");
    }
}
