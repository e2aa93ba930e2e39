//! Writing results: data on standard output or into a file that appears whole or not at all.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::args::{Format, OutputArgs};

/// Version of the JSON and CSV formats; it grows when a field changes its meaning or goes away.
pub const FORMAT_VERSION: u32 = 1;

/// Writes `bytes` to `path` through a temporary file beside it. A link is followed; what is no ordinary file, such as
/// `/dev/null` or a pipe, cannot be replaced and is written into.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    write_file_with(path, |out| Ok(out.write_all(bytes)?))
}

/// As [`write_file`], what `write` writes.
pub fn write_file_with(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&std::fs::File>) -> Result<()>,
) -> Result<()> {
    check_target(path)?;
    let cannot = || format!("cannot write {}", path.display());
    if path.exists() && !path.is_file() {
        let device = std::fs::OpenOptions::new().write(true).open(path).with_context(cannot)?;
        let mut buffered = BufWriter::new(&device);
        write(&mut buffered).map_err(|error| placed(error, cannot))?;
        return buffered.flush().with_context(cannot);
    }
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let file = tempfile::Builder::new().suffix(".tmp").tempfile_in(folder(path)).with_context(cannot)?;
    let mut buffered = BufWriter::new(file.as_file());
    write(&mut buffered).map_err(|error| placed(error, cannot))?;
    buffered.flush().with_context(cannot)?;
    drop(buffered);
    set_usual_permissions(file.as_file()).with_context(cannot)?;
    file.persist(path).map_err(|e| e.error).with_context(cannot)?;
    Ok(())
}

/// An error while writing, with its place if it has none: what was to be written may have come from elsewhere.
fn placed(error: anyhow::Error, place: impl FnOnce() -> String) -> anyhow::Error {
    let is_bare = error.is::<std::io::Error>() && error.chain().len() == 1;
    if is_bare { error.context(place()) } else { error }
}

/// Makes the folder at `path` if it is not there.
pub fn make_folder(path: &Path) -> Result<()> {
    if path.exists() && !path.is_dir() {
        bail!("cannot write into {}: it is a file; give a folder", path.display());
    }
    std::fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))
}

/// Whether a result can be written to `path`, as far as that can be told before there is one.
pub fn check_target(path: &Path) -> Result<()> {
    let at = path.display();
    if path.as_os_str().is_empty() {
        bail!("the name of a file to write is empty; give one");
    }
    if path == Path::new("-") {
        bail!("`-` is not a file; without -o the result goes to standard output");
    }
    if path.is_dir() {
        bail!("cannot write {at}: it is a folder");
    }
    if !folder(path).is_dir() {
        bail!("cannot write {at}: there is no folder {}; make it first", folder(path).display());
    }
    Ok(())
}

/// Whether the temporary file that becomes `path` can be made, before hours of work are lost to a folder that takes none.
fn check_writable(path: &Path) -> Result<()> {
    if path.exists() && !path.is_file() {
        return Ok(());
    }
    let file = tempfile::Builder::new().suffix(".tmp").tempfile_in(folder(&Place::of(path).path));
    file.map(drop).with_context(|| format!("cannot write {}", path.display()))
}

/// Checks all files of one command; no two may be the same, whatever their names.
pub fn check_targets(paths: &[PathBuf]) -> Result<()> {
    let mut places = Vec::new();
    for path in paths {
        check_target(path)?;
        check_writable(path)?;
        let place = Place::of(path);
        if places.contains(&place) {
            bail!("{} is named for two results; give each its own file", path.display());
        }
        places.push(place);
    }
    Ok(())
}

/// Refuses to write over a file that the same command reads.
pub fn check_kept(written: &[PathBuf], read: &[PathBuf]) -> Result<()> {
    let read: Vec<Place> = read.iter().filter(|path| path.is_file()).map(|path| Place::of(path)).collect();
    match written.iter().find(|path| read.contains(&Place::of(path))) {
        Some(path) => bail!("{} is read by this command; give the result another file", path.display()),
        None => Ok(()),
    }
}

/// Where a file is, which need not be there yet: equal for all its names.
struct Place {
    path: PathBuf,
    /// Device and inode, which hard links share.
    inode: Option<(u64, u64)>,
}

impl Place {
    fn of(path: &Path) -> Self {
        let resolved = path.canonicalize().unwrap_or_else(|_| {
            let folder = folder(path).canonicalize().unwrap_or_else(|_| folder(path).to_owned());
            folder.join(path.file_name().unwrap_or_default())
        });
        Self { path: resolved, inode: inode(path) }
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path || self.inode.is_some() && self.inode == other.inode
    }
}

#[cfg(unix)]
fn inode(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    path.metadata().ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn inode(_: &Path) -> Option<(u64, u64)> {
    None
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Temporary files are private; a result is an ordinary file.
#[cfg(unix)]
fn set_usual_permissions(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn set_usual_permissions(_: &std::fs::File) -> std::io::Result<()> {
    Ok(())
}

/// Writes a command's result in the format that was asked for.
pub fn emit<Row: Serialize>(
    args: &OutputArgs,
    table: impl FnOnce() -> String,
    json: &impl Serialize,
    rows: &[Row],
) -> Result<()> {
    let text = match args.format {
        Format::Table => table(),
        Format::Json => serde_json::to_string_pretty(json)? + "\n",
        Format::Csv => csv_text(rows)?,
    };
    emit_text(args, &text)
}

/// Writes text as it is, whatever the format.
pub fn emit_text(args: &OutputArgs, text: &str) -> Result<()> {
    match &args.output {
        Some(path) => write_file(path, text.as_bytes()),
        None => print(text),
    }
}

/// Writes a line to standard error. Where nobody reads it there is nobody to tell.
pub fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// Writes text to standard output. A reader that went away, as `head` does, has what it wanted: what the command does besides
/// goes on.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Rows as CSV with a header.
pub fn csv_text<Row: Serialize>(rows: &[Row]) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.serialize(row)?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// An error with its causes, without those that the message before them ends with already.
pub fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

/// Whether a reader of standard output went away, as `head` does.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|e| e.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, symlink};

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("no driver").context("rank 0: no driver").context("ring did not finish");
        assert_eq!(message(&error), "ring did not finish: rank 0: no driver");
        assert_eq!(message(&anyhow::anyhow!("b").context("a")), "a: b");
    }

    #[test]
    fn two_names_of_one_file_are_one_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        let check = |names: [&str; 2]| check_targets(&names.map(|name| folder.path().join(name)));
        assert!(check(["a", "b"]).is_ok() && check(["a", "sub/a"]).is_ok());
        for same in [["a", "a"], ["a", "./a"], ["a", "sub/../a"], ["sub/a", "sub/../sub/a"]] {
            let refused = check(same).unwrap_err().to_string();
            assert!(refused.ends_with("is named for two results; give each its own file"), "{refused}");
        }
        std::fs::write(folder.path().join("a"), "").unwrap();
        symlink(folder.path().join("a"), folder.path().join("link")).unwrap();
        std::fs::hard_link(folder.path().join("a"), folder.path().join("hard")).unwrap();
        assert!(check(["a", "link"]).is_err() && check(["a", "hard"]).is_err());
        assert!(check_target(Path::new("")).unwrap_err().to_string().contains("empty"));
    }

    /// `/proc` takes no files, whoever asks.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_folder_that_takes_no_file_is_refused_before_there_is_a_result() {
        let refused = check_targets(&["/proc/result.toml".into()]).unwrap_err();
        assert!(message(&refused).starts_with("cannot write /proc/result.toml: "), "{refused:?}");
        let folder = tempfile::tempdir().unwrap();
        check_targets(&[folder.path().join("a")]).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left of the attempt");
    }

    #[test]
    fn devices_stay_devices_and_links_stay_links() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link, null) =
            (folder.path().join("file"), folder.path().join("link"), folder.path().join("null"));
        symlink(&file, &link).unwrap();
        symlink("/dev/null", &null).unwrap();
        write_file(&file, b"old").unwrap();
        write_file(&link, b"new").unwrap();
        write_file(&null, b"gone").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(std::fs::metadata(&null).unwrap().file_type().is_char_device());
        assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }
}
