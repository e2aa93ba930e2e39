//! Wrong arguments: one line that names the option and what is allowed, exit code 2, and nothing written.

use std::fs;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use ringlab_experiments::presets;

/// What `ringlab` says on standard error when it refuses `arguments` in `folder`.
fn refused_in(folder: &Path, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } =
        Command::cargo_bin("ringlab").unwrap().current_dir(folder).args(arguments).output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{arguments:?}: {stderr}");
    assert!(stdout.is_empty() && stderr.starts_with("error: "), "{arguments:?}: {stderr}");
    stderr
}

fn refused(arguments: &[&str]) -> String {
    refused_in(&std::env::temp_dir(), arguments)
}

#[test]
fn negative_numbers_are_wrong_values_of_their_option() {
    for (command, option, value, allowed) in [
        ("simulate", "--seq", "-1", "is negative, expected a token count: counts go from 1 to 2048Mi tokens"),
        ("simulate", "--seq", "-1Ki", "is negative, expected a token count"),
        ("simulate", "--cp", "-1", "from 1 to 65536"),
        ("simulate", "--heads", "-2", "from 1 to 65536"),
        ("simulate", "--chunks", "-1", "from 1 to"),
        ("simulate", "--seed", "-1", "from 0 to 18446744073709551615"),
        ("simulate", "--straggler", "-1:2", "write RANK:FACTOR"),
        ("simulate", "--jitter", "-3%", "write 3% or normal:3%"),
        ("simulate", "--link-bandwidth", "-3 GB/s", "is negative, expected a bandwidth"),
        ("run", "--errors-over-cp", "1,-2", "from 1 to 65536"),
        ("run", "--gpus", "-1", "from 0 to"),
        ("run", "--sample-rows", "-1", "from 0 to"),
        ("run", "--timeout", "-1 s", "is negative, expected a time"),
        ("train", "--tp", "-2", "from 1 to 32768"),
        ("train", "--micro-batch", "-1", "from 1 to 64"),
        ("tune", "--tp", "-2", "from 1 to 32768"),
        ("bench", "--gpu", "-1", "from 0 to"),
    ] {
        let error = refused(&[command, option, value]);
        let line = error.lines().next().unwrap();
        assert!(line.contains(&format!("for '{option} <")) && line.contains(allowed), "{line}");
        assert!(error.lines().skip(1).all(|l| l.is_empty() || l.starts_with("For more")), "{error}");
    }
    let error = refused(&["simulate", "--seq", "--cp", "4"]);
    assert!(error.contains("a value is required for '--seq <SEQ>'"), "{error}");
    for (option, value) in [("--cp", "eight"), ("--cp", "0"), ("--cp", "99999999999"), ("--heads", "1.5")] {
        let error = refused(&["simulate", option, value]);
        assert!(error.contains("expected a whole number from 1 to 65536"), "{error}");
    }
}

#[test]
fn ranks_that_threads_cannot_run_are_refused_before_anything_runs() {
    let error = refused(&["run", "--errors-over-cp", "2,4,2"]);
    assert!(error.contains("--errors-over-cp names 2 twice"), "{error}");
    for ranks in [&["--cp", "513"][..], &["--errors-over-cp", "1,513"]] {
        let error = refused(&[&["run", "--seq", "1026"], ranks].concat());
        assert!(error.contains("513 threads, one a rank") && error.contains("at most 512"), "{error}");
        assert!(error.contains("`ringlab simulate`"), "{error}");
    }
}

#[test]
fn what_a_command_does_not_read_is_refused() {
    for option in [["--cluster", "dgx-h100"], ["--model", "llama-3-8b"], ["--seq", "1Mi"]] {
        let error = refused(&[&["paper", "distflashattn"], &option[..]].concat());
        assert!(error.contains(&format!("{} is for `ringlab paper audit` only", option[0])), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let error = refused_in(folder.path(), &["paper", "list", "--report", "list.html"]);
    assert!(error.contains("--report is for papers and the audit"), "{error}");
    let error = refused(&["tune", "--memory", "0 GB"]);
    assert!(error.contains("--memory must be more than 0 B"), "{error}");
}

#[test]
fn folders_where_files_are_needed_and_the_reverse_are_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    fs::write(folder.path().join("grid.toml"), "schedule = \"ring\"\nseq = \"64Ki\"\n").unwrap();
    let refused = |arguments: &str| {
        refused_in(folder.path(), &arguments.split_whitespace().collect::<Vec<_>>()).trim_end().to_owned()
    };
    for arguments in [
        "simulate --cluster folder",
        "simulate --run folder",
        "sweep folder",
        "sweep grid.toml --merge folder -o out.csv",
        "plot time folder -o out.svg",
    ] {
        assert_eq!(refused(arguments), "error: folder: is a folder, expected a file", "{arguments}");
    }
    for arguments in ["man -o file", "plot gallery -o file", "schema all -o file"] {
        assert_eq!(refused(arguments), "error: cannot write into file: it is a file; give a folder");
    }
    for arguments in ["simulate -o no/out", "sweep grid.toml -o no/out", "plot time file -o no/out.svg"] {
        assert!(refused(arguments).contains("there is no folder no; make it first"), "{arguments}");
    }
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 3, "nothing is written");
}

#[test]
fn a_chart_is_written_with_its_data_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("out.data.csv")).unwrap();
    let rows = "schedule,seq_len,makespan_s\nring,1024,0.1\nring,2048,0.3\n";
    fs::write(folder.path().join("rows.csv"), rows).unwrap();
    let error = refused_in(folder.path(), &["plot", "time", "rows.csv", "-o", "out.svg"]);
    assert!(error.contains("out.data.csv: it is a folder"), "{error}");
    assert!(!folder.path().join("out.svg").exists());
}

/// A folder with a file of every kind that is read.
fn inputs() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("c.toml", &presets::cluster_text("dgx-h100").unwrap());
    write("m.toml", &presets::model_text("llama-3-8b").unwrap());
    write("docs", "512,512\n");
    write("run.toml", "cluster = \"c.toml\"\nseq = \"1Ki\"\n");
    write("grid.toml", "cluster = \"c.toml\"\nmodel = \"m.toml\"\nmask = \"docs:docs\"\nseq = \"1Ki\"\n");
    write("grid.part", "seq = \"1Ki\"\n");
    write("rows.csv", "schedule,seq_len,makespan_s\nring,1024,0.1\nring,2048,0.3\n");
    write("rows.svg", "schedule,seq_len,makespan_s\nring,1024,0.1\nring,2048,0.3\n");
    write("rows.data.csv", "schedule,seq_len,makespan_s\nring,1024,0.1\nring,2048,0.3\n");
    fs::create_dir(folder.path().join("model")).unwrap();
    write("model/config.json", "{}");
    folder
}

#[test]
fn what_is_read_is_not_written_over() {
    let folder = inputs();
    let texts = |folder: &Path| {
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut texts: Vec<_> = files.filter_map(|path| Some((fs::read(&path).ok()?, path))).collect();
        texts.sort();
        texts
    };
    let before = texts(folder.path());
    for (arguments, file) in [
        ("simulate --cluster c.toml -o c.toml", "c.toml"),
        ("simulate --cluster c.toml --trace ./c.toml", "./c.toml"),
        ("simulate --model m.toml --spans model/../m.toml", "model/../m.toml"),
        ("simulate --model model --report model/config.json", "model/config.json"),
        ("simulate --mask docs:docs -o docs", "docs"),
        ("simulate --run run.toml -o run.toml", "run.toml"),
        ("simulate --run run.toml -o c.toml", "c.toml"),
        ("check --cluster c.toml -o c.toml", "c.toml"),
        ("layout --model m.toml -o m.toml", "m.toml"),
        ("run --cluster c.toml --timeline-csv c.toml", "c.toml"),
        ("run --cluster c.toml --metrics c.toml", "c.toml"),
        ("train --cluster c.toml -o c.toml", "c.toml"),
        ("tune --model m.toml -o m.toml", "m.toml"),
        ("paper audit --cluster c.toml --report c.toml", "c.toml"),
        ("sweep grid.toml -o grid.toml", "grid.toml"),
        ("sweep grid.toml -o c.toml", "c.toml"),
        ("sweep grid.toml -o m.toml", "m.toml"),
        ("sweep grid.toml -o docs", "docs"),
        ("sweep grid.part -o grid", "grid.part"),
        ("sweep grid.toml --merge rows.csv -o rows.csv", "rows.csv"),
        ("calibrate --base c.toml -o c.toml", "c.toml"),
        ("calibrate --base c.toml --samples c.toml", "c.toml"),
        ("validate --cluster c.toml --measured rows.csv -o c.toml", "c.toml"),
        ("bench --peers rows.csv -o rows.csv", "rows.csv"),
        ("plot time rows.svg -o rows.svg", "rows.svg"),
        ("plot time rows.data.csv -o rows.svg", "rows.data.csv"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let error = refused_in(folder.path(), &arguments);
        let expected = format!("error: {file} is read by this command; give the result another file\n");
        assert_eq!(error, expected, "{arguments:?}");
    }
    assert_eq!(texts(folder.path()), before);
}

#[cfg(unix)]
#[test]
fn other_names_of_what_is_read_are_refused_too() {
    let folder = inputs();
    let at = |name: &str| folder.path().join(name);
    std::os::unix::fs::symlink("c.toml", at("link")).unwrap();
    fs::hard_link(at("c.toml"), at("hard")).unwrap();
    for (read, written) in [("c.toml", "link"), ("link", "c.toml"), ("c.toml", "hard"), ("link", "hard")] {
        let error = refused_in(folder.path(), &["simulate", "--cluster", read, "-o", written]);
        let expected = format!("error: {written} is read by this command; give the result another file\n");
        assert_eq!(error, expected);
    }
    // A file that is only named as the preset that is read is another one.
    fs::write(at("dgx-h100"), "").unwrap();
    let simulate = ["simulate", "--cluster", "dgx-h100", "--schedule", "ring", "-o", "dgx-h100"];
    Command::cargo_bin("ringlab").unwrap().current_dir(folder.path()).args(simulate).assert().success();
}
