use crate::support::{Folder, exists, ringlab, stdout};

const SWEEP: &str = "cluster = [\"dgx-h100\", \"pcie-8x-a100\"]\nlink_bandwidth = { from = \"10 GB/s\", to = \"160 GB/s\", times = 2 }\n\
                     cp = [2, 3, 8, 9]\nseq = [1000, { from = 1024, to = \"32Ki\", times = 2 }]\nschedule = \"all\"\n";

#[test]
fn the_number_of_threads_shows_nowhere() {
    let folder = Folder::new(SWEEP);
    let file = folder.at("sweep.toml");
    let one = stdout(&["sweep", &file, "--threads", "1"]);
    assert_eq!(one.lines().count(), 1 + 2 * 5 * 4 * 7 * ringlab_sim::schedule::ALL.len());
    for threads in ["2", "8"] {
        assert!(one == stdout(&["sweep", &file, "--threads", threads]), "{threads} threads");
    }
    stdout(&["sweep", &file, "-o", &folder.at("out.csv")]);
    assert!(one == folder.text("out.csv"));
    assert!(!exists(&folder.path("out.csv.part")) && !exists(&folder.path("out.csv.resume")));
}

#[test]
fn shards_merge_to_the_same_bytes() {
    let folder = Folder::new(SWEEP);
    let file = folder.at("sweep.toml");
    let whole = stdout(&["sweep", &file]);
    let names: Vec<String> = (1..=5).map(|i| folder.at(&format!("shard-{i}.csv"))).collect();
    for (i, name) in names.iter().enumerate() {
        stdout(&["sweep", &file, "--shard", &format!("{}/5", i + 1), "-o", name]);
    }
    // In any order.
    let order = [3, 0, 4, 2, 1].map(|i| names[i].as_str());
    let mut args = vec!["sweep", &file, "--merge"];
    args.extend(order);
    assert!(whole == stdout(&args));
    let merged = folder.at("merged.csv");
    args.extend(["-o", &merged]);
    stdout(&args);
    assert!(whole == folder.text("merged.csv"));
}

#[test]
fn shards_that_do_not_make_the_grid_are_refused() {
    let folder = Folder::new("seq = { from = 1024, to = 8192, step = 1024 }\n");
    let file = folder.at("sweep.toml");
    let shard = |part: &str, name: &str| {
        let path = folder.at(name);
        stdout(&["sweep", &file, "--shard", part, "-o", &path]);
        path
    };
    let (a, b, half) = (shard("1/2", "a.csv"), shard("2/2", "b.csv"), shard("2/4", "half.csv"));
    let other = Folder::new("seq = { from = 2048, to = 16384, step = 2048 }\n");
    let foreign = other.at("b.csv");
    stdout(&["sweep", &other.at("sweep.toml"), "--shard", "2/2", "-o", &foreign]);
    std::fs::write(folder.path("no.csv"), "a,b\n1,2\n").unwrap();
    let no = folder.at("no.csv");
    let cases: [(&[&str], &str); 6] = [
        (&[&a], "rows 4 to 7 are in no file"),
        (&[&b], "rows 0 to 3 are in no file"),
        (&[&a, &half, &b], "which another file has too"),
        (&[&a, &foreign], "of another sweep or version"),
        (&[&a, &no], "is no file of a sweep"),
        (&[&a, "absent.csv"], "cannot read absent.csv"),
    ];
    for (files, message) in cases {
        let mut args = vec!["sweep", &file, "--merge"];
        args.extend(files);
        let output = ringlab(&args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{files:?}");
        assert!(error.contains(message), "{files:?}: {error}");
    }
}
