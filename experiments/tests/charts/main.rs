//! Charts: the data in them against the rows they were made of, wrong requests, and the gallery.

#[path = "../sweep/support.rs"]
#[allow(dead_code, reason = "each test target uses a part")]
mod support;

mod scatter;

use std::collections::BTreeMap;
use std::path::Path;

use support::{Folder, columns, ringlab, stdout};

const SWEEP: &str = "cp = [2, 4, 8]\nseq = { from = \"8Ki\", to = \"64Ki\", times = 2 }\nschedule = [\"ring\", \"zigzag\", \"dist-flash\"]\n";

/// A folder with the rows of a sweep in `rows.csv`.
fn swept(sweep: &str) -> Folder {
    let folder = Folder::new(sweep);
    stdout(&["sweep", &folder.at("sweep.toml"), "-o", &folder.at("rows.csv")]);
    folder
}

fn plot(folder: &Folder, args: &[&str]) {
    let (rows, out) = (folder.at("rows.csv"), folder.at("out.svg"));
    let mut all = vec!["plot", args[0], &rows, "-o", &out];
    all.extend(&args[1..]);
    stdout(&all);
}

/// The data beside a picture: series to points.
fn data(folder: &Folder) -> BTreeMap<String, Vec<(f64, f64)>> {
    let mut series = BTreeMap::<_, Vec<_>>::new();
    for row in columns(&folder.text("out.data.csv"), &["series", "x", "y"]) {
        series.entry(row[0].clone()).or_default().push((row[1].parse().unwrap(), row[2].parse().unwrap()));
    }
    series
}

#[test]
fn speed_ups_are_ratios_of_rows_and_bounds_the_published_fractions() {
    let folder = swept(SWEEP);
    plot(&folder, &["speedup", "--where", "cp=8"]);
    let names = ["cp", "seq_len", "schedule", "makespan_s"];
    let rows: BTreeMap<[String; 3], f64> = columns(&folder.text("rows.csv"), &names)
        .into_iter()
        .map(|r| ([r[0].clone(), r[1].clone(), r[2].clone()], r[3].parse().unwrap()))
        .collect();
    let data = data(&folder);
    for schedule in ["zigzag", "dist-flash"] {
        assert_eq!(data[schedule].len(), 4);
        for &(seq, ratio) in &data[schedule] {
            let time = |s: &str| rows[&["8".to_owned(), seq.to_string(), s.to_owned()]];
            assert!((ratio - time("ring") / time(schedule)).abs() < 1e-12);
        }
    }
    assert!(data["ring"].iter().all(|p| p.1 == 1.0));
    let bound = |name: &str| data[name].last().unwrap().1;
    assert!((bound("zigzag, bound") - (2.0 - 1.0 / 8.0)).abs() < 1e-3);
    assert!((bound("dist-flash, bound") - 7.5 / 4.5).abs() < 1e-3, "(P - 1/2) / (P/2 + 1/2)");
}

#[test]
fn a_map_names_the_fastest_of_each_pair() {
    let folder = swept(SWEEP);
    plot(&folder, &["winner"]);
    let mut fastest: BTreeMap<(u64, u64), (f64, String)> = BTreeMap::new();
    for r in columns(&folder.text("rows.csv"), &["cp", "seq_len", "makespan_s", "schedule"]) {
        let time: f64 = r[2].parse().unwrap();
        let entry = fastest
            .entry((r[0].parse().unwrap(), r[1].parse().unwrap()))
            .or_insert((f64::MAX, String::new()));
        if time < entry.0 {
            *entry = (time, r[3].clone());
        }
    }
    let cells = columns(&folder.text("out.data.csv"), &["series", "x", "y"]);
    assert_eq!(cells.len(), 12);
    for cell in cells {
        let seq = cell[1].trim_end_matches("Ki").parse::<u64>().unwrap() << 10;
        let winner = &fastest[&(cell[2].parse().unwrap(), seq)].1;
        assert!(cell[0].starts_with(winner.as_str()), "{cell:?} for {winner}");
    }
}

/// Seven full blocks: F/B with MHA and 16 bits, half the bandwidth for twice the block.
#[test]
fn the_minimum_block_is_where_the_ring_is_hidden() {
    let folder = swept(
        "model = \"llama-2-7b\"\nseq = \"32Ki\"\nschedule = \"ring\"\nlink_bandwidth = { from = \"40 GB/s\", to = \"640 GB/s\", times = 2 }\n",
    );
    plot(&folder, &["exposed"]);
    let svg = folder.text("out.svg");
    assert!(svg.contains("min. block, ring") && svg.contains("min. block, zigzag"));
    // 4096 tokens at 674.8 TFLOP/s need 165 GB/s.
    let points = &data(&folder)["ring"];
    let share = |bandwidth: f64| points.iter().find(|p| p.0 == bandwidth).unwrap().1;
    assert!(share(80e9) > 0.4 && share(160e9) < 0.08 && share(320e9) < 0.005);
}

#[test]
fn kinds_draw_their_columns() {
    let folder = swept(SWEEP);
    for (kind, column) in [
        ("time", "makespan_s"),
        ("bubble", "bubble_ratio"),
        ("memory", "peak_memory_bytes"),
        ("rate", "tflops_per_gpu"),
    ] {
        plot(&folder, &[kind, "--x", "cp", "--where", "seq_len=64Ki", "--where", "schedule=zigzag"]);
        let rows = columns(&folder.text("rows.csv"), &["schedule", "seq_len", "cp", column]);
        let wanted = rows.iter().filter(|r| r[0] == "zigzag" && r[1] == "65536");
        let expected: Vec<(f64, f64)> =
            wanted.map(|r| (r[2].parse().unwrap(), r[3].parse().unwrap())).collect();
        assert_eq!(data(&folder)["zigzag"], expected, "{kind}");
    }
}

#[test]
fn wrong_requests_say_what_is_wrong() {
    let folder = swept(SWEEP);
    std::fs::write(folder.path("empty.csv"), "a,b\n").unwrap();
    let (rows, empty, out) = (folder.at("rows.csv"), folder.at("empty.csv"), folder.at("o.svg"));
    let absent = folder.at("absent.csv");
    let cases: [(&[&str], &str); 9] = [
        (&["time", &rows], "cp is 2 in some rows and 4 in others; choose with --where cp=2"),
        (&["time", &rows, "--where", "cp=3"], "cp is never 3; its values are 2, 4, 8"),
        (&["time", &rows, "--where", "cpp=3"], "did you mean cp?"),
        (&["time", &rows, "--x", "seq", "--where", "cp=2"], "no column \"seq\""),
        (&["winner", &rows, "--x", "cp"], "two different columns"),
        (&["winner", &rows, "--x", "dtype", "--where", "seq_len=8Ki"], "is not a number"),
        (&["kernels", &rows], "no column \"implementation\""),
        (&["time", &empty], "has no rows"),
        (&["time", &absent], "cannot read"),
    ];
    for (args, message) in cases {
        let mut all = vec!["plot"];
        all.extend(args);
        all.extend(["-o", &out]);
        let output = ringlab(&all);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(error.contains(message), "{args:?}: {error}");
        assert!(!Path::new(&out).exists());
    }
}

#[test]
fn rates_of_kernels_are_positive_numbers() {
    let folder = Folder::new("");
    let (rows, out) = (folder.at("rows.csv"), folder.at("o.svg"));
    for (cell, fine) in
        [("-5", false), ("0", false), ("nan", false), ("inf", false), ("x", false), ("", true)]
    {
        let text = format!(
            "implementation,pass,mask,tflops,len\na,forward,full,5,1024\nb,forward,full,{cell},1024\n"
        );
        std::fs::write(folder.path("rows.csv"), text).unwrap();
        for more in [&[][..], &["--x", "len"]] {
            let output = ringlab(&[&["plot", "kernels", &rows, "-o", &out], more].concat());
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(if fine { 0 } else { 2 }), "{cell}: {error}");
            let message = format!("row 2: tflops is {cell}, expected a positive number");
            assert!(fine || error.contains(&message), "{error}");
            assert_eq!(Path::new(&out).exists(), fine, "{cell}");
            let _ = std::fs::remove_file(&out);
        }
    }
}

#[test]
fn of_two_rates_of_one_bar_none_is_chosen_silently() {
    let folder = Folder::new("");
    let (rows, out) = (folder.at("rows.csv"), folder.at("o.svg"));
    let text = "implementation,pass,mask,tflops,len\na,forward,full,5,1024\na,forward,full,6,1024\n";
    std::fs::write(folder.path("rows.csv"), text).unwrap();
    let output = ringlab(&["plot", "kernels", &rows, "-o", &out]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("a has several rates of forward, full"), "{error}");
}

/// The committed gallery is what the program makes.
#[test]
fn the_gallery_is_up_to_date() {
    let folder = Folder::new("");
    stdout(&["plot", "gallery", "-o", &folder.at("gallery")]);
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/gallery");
    let names = |path: &Path| {
        let entries = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        entries.collect::<std::collections::BTreeSet<_>>()
    };
    let made = names(&folder.path("gallery"));
    assert_eq!(made, names(&committed), "make it anew: ringlab plot gallery -o docs/gallery");
    let page = folder.text("gallery/README.md");
    for name in &made {
        let (new, old) = (folder.path("gallery").join(name), committed.join(name));
        let equal = std::fs::read(new).unwrap() == std::fs::read(old).unwrap();
        assert!(equal, "{name} has changed; make it anew: ringlab plot gallery -o docs/gallery");
        assert!(name == "README.md" || page.contains(name.as_str()), "{name} is not on the page");
    }
}
