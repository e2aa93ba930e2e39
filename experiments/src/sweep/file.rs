//! A sweep's file while it grows: `OUT.part` holds the rows so far and `OUT.resume` what they are rows of. When all rows
//! are there, `OUT.part` is renamed to `OUT`. A run that was interrupted, or killed in the middle of a row, is resumed
//! by the same command.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::row::HEADER;
use crate::output;

/// What a file's rows are rows of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Version of this form and of the columns.
    pub version: u32,
    /// The grid's, in hexadecimal.
    pub fingerprint: String,
    /// The first row of the shard.
    pub first: u64,
    /// Behind its last row.
    pub end: u64,
}

/// A file that grows.
#[derive(Debug)]
pub struct Part {
    out: PathBuf,
    file: File,
    /// Rows that it holds already.
    pub done: u64,
    /// Its last row, if it was resumed and has one.
    pub last: Option<String>,
}

/// What `out` grows in: its rows so far, and what they are rows of.
pub fn growing(out: &Path) -> [PathBuf; 2] {
    [beside(out, ".part"), beside(out, ".resume")]
}

fn beside(out: &Path, ending: &str) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

impl Part {
    /// Opens the part of `out`, or starts one.
    ///
    /// # Errors
    /// A part of another sweep, rows that are not where they belong, or a file that cannot be read or written.
    pub fn open(out: &Path, identity: &Identity) -> Result<Self> {
        let [part, resume] = growing(out);
        let cannot = || format!("cannot write {}", part.display());
        if !check(&resume, &part, identity)? {
            let mut file = File::create(&part).with_context(cannot)?;
            file.write_all(format!("{HEADER}\n").as_bytes()).with_context(cannot)?;
            output::write_file(&resume, serde_json::to_string_pretty(identity)?.as_bytes())?;
            return Ok(Self { out: out.to_owned(), file, done: 0, last: None });
        }
        let mut file = OpenOptions::new().read(true).write(true).open(&part).with_context(cannot)?;
        let whole = scan(&file, &(identity.first..identity.end))
            .with_context(|| format!("{} cannot be resumed; delete it to start over", part.display()))?;
        file.set_len(whole.bytes).with_context(cannot)?;
        file.seek(SeekFrom::End(0)).with_context(cannot)?;
        if whole.bytes == 0 {
            file.write_all(format!("{HEADER}\n").as_bytes()).with_context(cannot)?;
        }
        Ok(Self { out: out.to_owned(), file, done: whole.rows, last: whole.last })
    }

    /// Appends whole lines.
    ///
    /// # Errors
    /// A disk that is full, say.
    pub fn append(&mut self, lines: &str) -> Result<()> {
        self.file
            .write_all(lines.as_bytes())
            .with_context(|| format!("cannot write {}", beside(&self.out, ".part").display()))
    }

    /// Gives the complete file its name.
    ///
    /// # Errors
    /// A file that cannot be written or renamed.
    pub fn finish(self) -> Result<()> {
        let cannot = || format!("cannot write {}", self.out.display());
        self.file.sync_all().with_context(cannot)?;
        fs::rename(beside(&self.out, ".part"), &self.out).with_context(cannot)?;
        fs::remove_file(beside(&self.out, ".resume")).with_context(cannot)
    }
}

/// Whether there is a part to resume.
fn check(resume: &Path, part: &Path, identity: &Identity) -> Result<bool> {
    let text = match fs::read_to_string(resume) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", resume.display())),
    };
    if !part.exists() {
        return Ok(false);
    }
    let advice = || format!("finish it with its own command, or delete {} to start over", part.display());
    match serde_json::from_str::<Identity>(&text) {
        Ok(found) if found == *identity => Ok(true),
        Ok(_) => bail!("{} holds rows of another sweep, shard or version; {}", part.display(), advice()),
        Err(_) => bail!("{} does not say what {} holds; {}", resume.display(), part.display(), advice()),
    }
}

/// The whole lines at the beginning of a part.
struct Whole {
    bytes: u64,
    rows: u64,
    last: Option<String>,
}

/// Reads a part line by line; what follows the last line break was not written to its end.
fn scan(file: &File, expected: &Range<u64>) -> Result<Whole> {
    let mut reader = BufReader::new(file);
    let mut whole = Whole { bytes: 0, rows: 0, last: None };
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 || line.last() != Some(&b'\n') {
            return Ok(whole);
        }
        let text = std::str::from_utf8(&line[..line.len() - 1]).context("it is not text")?;
        if whole.bytes == 0 {
            if text != HEADER {
                bail!("its columns are not those of this version");
            }
        } else {
            let row = expected.start + whole.rows;
            if row_number(text) != Some(row) || row >= expected.end {
                bail!("row {row} is not where it belongs");
            }
            whole.rows += 1;
            whole.last = Some(text.to_owned());
        }
        whole.bytes += line.len() as u64;
    }
}

/// The number that a row begins with.
pub fn row_number(line: &str) -> Option<u64> {
    line.split(',').next()?.parse().ok()
}
