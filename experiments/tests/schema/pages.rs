//! `schema`, `completions` and `man` on the command line.

use ringlab_experiments::schema;

use crate::support::{Folder, ringlab, stdout};

const COMMANDS: [&str; 8] = ["simulate", "check", "run", "sweep", "plot", "tune", "schema", "man"];

#[test]
fn schemas_are_listed_printed_and_written() {
    let folder = Folder::new("");
    let listed = stdout(&["schema"]);
    stdout(&["schema", "all", "-o", &folder.at("schemas")]);
    for (name, _) in schema::list() {
        assert!(listed.contains(name));
        assert_eq!(stdout(&["schema", name]), folder.text(&format!("schemas/{name}.schema.json")));
    }
    let output = ringlab(&["schema", "clusters"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("did you mean cluster?"));
}

#[test]
fn help_names_every_schedule() {
    let help = stdout(&["simulate", "--help"]);
    let words: Vec<&str> = help.split(|c: char| c.is_whitespace() || ",.".contains(c)).collect();
    for schedule in ringlab_sim::schedule::ALL {
        assert!(words.contains(&schedule.to_string().as_str()), "{schedule}");
    }
}

#[test]
fn shells_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&["completions", shell]);
        assert!(COMMANDS.iter().all(|command| script.contains(command)), "{shell}");
        assert!(script.contains("price-per-gpu-hour"), "{shell}");
    }
    assert_eq!(ringlab(&["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn manual_pages_are_of_every_command() {
    let folder = Folder::new("");
    stdout(&["man", "-o", &folder.at("man1")]);
    let ringlab_page = folder.text("man1/ringlab.1");
    for command in COMMANDS {
        let page = folder.text(&format!("man1/ringlab-{command}.1"));
        assert_eq!(page, stdout(&["man", command]));
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH OPTIONS"), "{command}");
        assert!(ringlab_page.contains(&format!("ringlab\\-{command}")), "{command}");
    }
    let output = ringlab(&["man", "simulat"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("did you mean simulate?"));
}
