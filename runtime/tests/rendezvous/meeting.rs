//! Real processes that meet, that wait for one that never comes, and that find what an earlier run left.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ringlab_runtime::rendezvous::Meeting;

const RUN: &str = "job 17";
/// As long as an NCCL unique id, and with a line break inside.
const ID: [u8; 128] = {
    let mut id = [7; 128];
    id[3] = b'\n';
    id[127] = 0;
    id
};

/// What [`a_process_of_a_run`] is told.
const PLACE: [&str; 5] = ["MEET_FOLDER", "MEET_PROCESS", "MEET_PROCESSES", "MEET_TIMEOUT_MS", "MEET_END"];

/// Started again by the tests below, as one process of a run: prints what the others sent.
#[test]
#[ignore = "a part of the other tests, which start it as processes of its own"]
fn a_process_of_a_run() {
    let [folder, process, processes, timeout, end] =
        PLACE.map(|name| std::env::var(name).unwrap_or_default());
    if folder.is_empty() {
        return;
    }
    let process: u32 = process.parse().unwrap();
    let timeout = Duration::from_millis(timeout.parse().unwrap());
    let meeting = match Meeting::join(Path::new(&folder), RUN, process, processes.parse().unwrap(), timeout) {
        Ok(meeting) => meeting,
        Err(error) => {
            println!("ERROR {error}");
            return;
        }
    };
    if process == 0 {
        meeting.publish("ids", &ID).unwrap();
    }
    assert_eq!(meeting.fetch("ids", 0).unwrap(), ID);
    match end.as_str() {
        "dies" => std::process::abort(),
        "fails" => return meeting.fail("no GPU here"),
        "panics" => panic!("on purpose"),
        _ => meeting.publish("result", format!("of {process}").as_bytes()).unwrap(),
    }
    match meeting.gather("result") {
        Ok(results) => println!(
            "RESULTS {}",
            results.iter().map(|r| String::from_utf8_lossy(r)).collect::<Vec<_>>().join(", ")
        ),
        Err(error) => {
            println!("ERROR {error}");
            return meeting.fail_with(&error);
        }
    }
    meeting.leave().unwrap();
}

fn start(folder: &Path, process: u32, processes: u32, timeout_ms: u64, end: &str) -> Child {
    let values = [
        folder.to_str().unwrap(),
        &process.to_string(),
        &processes.to_string(),
        &timeout_ms.to_string(),
        end,
    ];
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "meeting::a_process_of_a_run", "--ignored", "--nocapture"])
        .envs(PLACE.into_iter().zip(values))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The line that a process printed of how it ended.
fn ending(child: Child) -> String {
    let Output { stdout, .. } = child.wait_with_output().unwrap();
    let text = String::from_utf8(stdout).unwrap();
    // The test harness puts the test's name before the first line.
    let at = text.find("RESULTS ").or_else(|| text.find("ERROR "));
    at.map_or(String::new(), |at| text[at..].lines().next().unwrap().to_owned())
}

fn run_folder(folder: &Path) -> std::path::PathBuf {
    folder.join("ringlab-job_20_17")
}

#[test]
fn processes_meet_exchange_and_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    // The last first: who comes early must wait.
    let children: Vec<Child> = [2, 1, 0].map(|p| start(folder.path(), p, 3, 20_000, "")).into();
    for child in children {
        assert_eq!(ending(child), "RESULTS of 0, of 1, of 2");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn who_never_comes_is_named_by_all_within_the_time_out() {
    let folder = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let children: Vec<Child> = [0, 2].map(|p| start(folder.path(), p, 4, 600, "")).into();
    for child in children {
        let ending = ending(child);
        assert!(ending.contains("2 of 4 processes never came within 0.6 s: 1, 3;"), "{ending}");
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn what_an_earlier_run_left_is_not_taken_for_this_one() {
    let folder = tempfile::tempdir().unwrap();
    // An earlier run of the same id ends without cleaning up: process 1 dies.
    let earlier: Vec<Child> =
        [(0, ""), (1, "dies")].map(|(p, end)| start(folder.path(), p, 2, 500, end)).into();
    let endings: Vec<String> = earlier.into_iter().map(ending).collect();
    assert!(endings[0].contains("process 1 came, but did not publish its result"), "{endings:?}");
    fs::create_dir_all(run_folder(folder.path())).unwrap();
    let stale = |name: &str, text: &str| {
        fs::write(run_folder(folder.path()).join(name), format!("ringlab rendezvous 1\n{text}")).unwrap();
    };
    stale("present.1", "aa");
    stale("roll", "bb\nbb\naa");
    stale("ids.0", "bb\nwrong");
    stale("result.0", "bb\nwrong");
    stale("result.1", "bb\nwrong");
    stale("failed.1", "bb\nwrong");
    // Alone, process 0 must not believe the presence of 1.
    let ending_alone = ending(start(folder.path(), 0, 2, 400, ""));
    assert!(ending_alone.contains("never came within 0.4 s: 1;"), "{ending_alone}");
    let again: Vec<Child> = [0, 1].map(|p| start(folder.path(), p, 2, 20_000, "")).into();
    for child in again {
        assert_eq!(ending(child), "RESULTS of 0, of 1");
    }
    assert!(!run_folder(folder.path()).exists());
}

#[test]
fn who_fails_ends_the_wait_of_the_others_at_once() {
    for (end, expected) in [("fails", "no GPU here"), ("panics", "it ended before the run did")] {
        let folder = tempfile::tempdir().unwrap();
        let started = Instant::now();
        let children: Vec<Child> =
            [(0, ""), (1, end), (2, "")].map(|(p, end)| start(folder.path(), p, 3, 20_000, end)).into();
        let endings: Vec<String> = children.into_iter().map(ending).collect();
        for survivor in [0, 2] {
            assert_eq!(endings[survivor], format!("ERROR process 1 failed: {expected}"));
        }
        assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    }
}

#[test]
fn two_processes_of_one_rank_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let first = start(folder.path(), 1, 3, 20_000, "");
    let present = run_folder(folder.path()).join("present.1");
    while !present.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut second = start(folder.path(), 1, 3, 3_000, "");
    let ending = ending(first);
    assert!(ending.contains("two processes claim to be process 1 of run \"job 17\""), "{ending}");
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn a_foreign_file_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(run_folder(folder.path())).unwrap();
    fs::write(run_folder(folder.path()).join("present.1"), "something else").unwrap();
    let error = Meeting::join(folder.path(), RUN, 0, 2, Duration::from_secs(5)).unwrap_err().to_string();
    assert!(error.contains("present.1 is not a file of this program"), "{error}");
    let missing = folder.path().join("file");
    fs::write(&missing, "").unwrap();
    let error = Meeting::join(&missing, RUN, 0, 2, Duration::from_secs(5)).unwrap_err().to_string();
    assert!(error.contains("cannot make the folder"), "{error}");
}
