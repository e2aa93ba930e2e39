use std::fs;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::{Folder, command, exists, ringlab, stdout};

/// Takes some seconds on one thread.
const LONG: &str = "seq = { from = \"64Ki\", to = \"1Mi\", step = \"64Ki\" }\ncp = 8\nchunks = { from = 1, to = 24, step = 1 }\n\
                    schedule = [\"zigzag\", \"ring\"]\n";

/// Starts a sweep on one thread and waits until it has written `rows` rows.
fn start(folder: &Folder, rows: usize) -> Child {
    let child =
        command(&["sweep", &folder.at("sweep.toml"), "--threads", "1", "-o", &folder.at("out.csv")]).spawn();
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < Duration::from_secs(60), "no rows");
        let part = fs::read_to_string(folder.path("out.csv.part")).unwrap_or_default();
        if part.lines().count() > rows {
            return child.unwrap();
        }
        sleep(Duration::from_millis(2));
    }
}

fn resume(folder: &Folder) -> String {
    let output = ringlab(&["sweep", &folder.at("sweep.toml"), "-o", &folder.at("out.csv")]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{error}");
    assert!(!exists(&folder.path("out.csv.part")) && !exists(&folder.path("out.csv.resume")));
    error
}

#[test]
fn a_killed_sweep_resumes_to_the_same_bytes() {
    let folder = Folder::new(LONG);
    let mut child = start(&folder, 5);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!exists(&folder.path("out.csv")), "the finished file appears only when it is complete");
    let error = resume(&folder);
    assert!(error.contains("resuming after"), "{error}");
    assert!(folder.text("out.csv") == stdout(&["sweep", &folder.at("sweep.toml")]));
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_whole_rows_and_says_how_to_go_on() {
    for signal in ["-INT", "-TERM"] {
        let folder = Folder::new(LONG);
        let child = start(&folder, 5);
        let killed =
            std::process::Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{signal}");
        let part = folder.text("out.csv.part");
        assert!(part.ends_with('\n'));
        let columns = part.lines().next().unwrap().matches(',').count();
        assert!(part.lines().all(|line| line.matches(',').count() == columns), "rows are whole");
        resume(&folder);
        assert!(folder.text("out.csv") == stdout(&["sweep", &folder.at("sweep.toml")]));
    }
}

/// As under nohup: a terminal that went away ends nothing.
#[cfg(unix)]
#[test]
fn a_hangup_that_is_ignored_does_not_end_a_sweep() {
    let folder = Folder::new(LONG);
    let sweep = format!(
        "trap '' HUP; exec {} sweep {} -o {}",
        env!("CARGO_BIN_EXE_ringlab"),
        folder.at("sweep.toml"),
        folder.at("out.csv")
    );
    let mut child = std::process::Command::new("sh").args(["-c", &sweep]).spawn().unwrap();
    while !exists(&folder.path("out.csv.part")) && child.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(2));
    }
    let hung_up =
        std::process::Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap();
    assert!(hung_up.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(exists(&folder.path("out.csv")));
}

/// What is left of a part after a power cut, and of which the rest must be made again.
#[test]
fn torn_parts_are_cut_back_to_whole_rows() {
    let folder = Folder::new("seq = { from = 1024, to = 16384, step = 1024 }\n");
    let whole = stdout(&["sweep", &folder.at("sweep.toml")]);
    let resume_text = {
        let mut child = start_short(&folder);
        child.kill().ok();
        child.wait().unwrap();
        identity_of(&folder)
    };
    for cut in [0, 1, 200, whole.len() / 2, whole.len() - 1, whole.len()] {
        fs::write(folder.path("out.csv.part"), &whole[..cut]).unwrap();
        fs::write(folder.path("out.csv.resume"), &resume_text).unwrap();
        resume(&folder);
        assert!(folder.text("out.csv") == whole, "cut at {cut}");
    }
}

fn start_short(folder: &Folder) -> Child {
    command(&["sweep", &folder.at("sweep.toml"), "-o", &folder.at("out.csv")]).spawn().unwrap()
}

/// The resume file of the sweep in `folder`, whether it is finished or not: a part of one shard shows its form.
fn identity_of(folder: &Folder) -> String {
    let grid = crate::support::grid(&folder.text("sweep.toml"));
    let (print, end) = (grid.fingerprint(), grid.len);
    format!("{{\"version\":1,\"fingerprint\":\"{print:016x}\",\"first\":0,\"end\":{end}}}")
}

#[test]
fn parts_of_something_else_are_refused() {
    let folder = Folder::new("seq = { from = 1024, to = 16384, step = 1024 }\n");
    let whole = stdout(&["sweep", &folder.at("sweep.toml")]);
    let half = whole.split_inclusive('\n').take(8).collect::<String>();
    let identity = identity_of(&folder);
    let last = whole.lines().nth(7).unwrap();
    let swapped = half.replace("\n3,", "\n4,");
    let stale = half.replace(last, &last.replace("forward", "forwarD"));
    let cases = [
        (
            half.clone(),
            identity.replace("\"end\":16", "\"end\":17"),
            "rows of another sweep, shard or version",
        ),
        (half.clone(), "{}".to_owned(), "does not say what"),
        (swapped, identity.clone(), "row 3 is not where it belongs"),
        (half.replacen("row,", "line,", 1), identity.clone(), "columns are not those of this version"),
        (stale, identity.clone(), "row 6 differs"),
    ];
    for (part, resume, message) in cases {
        fs::write(folder.path("out.csv.part"), &part).unwrap();
        fs::write(folder.path("out.csv.resume"), resume).unwrap();
        let output = ringlab(&["sweep", &folder.at("sweep.toml"), "-o", &folder.at("out.csv")]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(error.contains(message) && error.contains("delete"), "{message}: {error}");
        assert!(folder.text("out.csv.part") == part, "{message}: left as it was");
    }
    assert!(!exists(&folder.path("out.csv")));
}

#[test]
fn unwritable_places_are_refused_before_anything_is_computed() {
    let folder = Folder::new(LONG);
    fs::create_dir(folder.path("out.csv")).unwrap();
    let output = ringlab(&["sweep", &folder.at("sweep.toml"), "-o", &folder.at("out.csv")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is a folder"));
}
