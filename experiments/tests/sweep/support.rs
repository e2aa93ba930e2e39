use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ringlab_experiments::sweep::Grid;

/// The binary, without colours.
pub fn ringlab(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringlab"));
    command.args(args).env("NO_COLOR", "1");
    command
}

/// What a good run writes to standard output.
pub fn stdout(args: &[&str]) -> String {
    let output = ringlab(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A folder of its own for a test, with a sweep file.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new(sweep: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("sweep.toml"), sweep).unwrap();
        Self(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

pub fn grid(text: &str) -> Grid {
    Grid::parse("sweep.toml", text).unwrap()
}

/// The columns of a CSV by name.
pub fn columns(csv: &str, names: &[&str]) -> Vec<Vec<String>> {
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let header = reader.headers().unwrap().clone();
    let at: Vec<usize> = names.iter().map(|n| header.iter().position(|h| h == *n).unwrap()).collect();
    reader.records().map(Result::unwrap).map(|r| at.iter().map(|&i| r[i].to_owned()).collect()).collect()
}

pub fn exists(path: &Path) -> bool {
    path.exists()
}
