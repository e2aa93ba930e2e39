use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::super::LabError;

/// A log of clocks, power and temperature of every GPU, by `nvidia-smi`, until it is dropped.
#[derive(Debug)]
pub struct SmiLog(Child);

impl SmiLog {
    /// Starts a log to `path`, a line every 20 ms and GPU; `None` where there is no `nvidia-smi`.
    pub fn start(path: &Path) -> Result<Option<Self>, LabError> {
        Self::of("nvidia-smi", path)
    }

    fn of(name: &'static str, path: &Path) -> Result<Option<Self>, LabError> {
        const FIELDS: &str = "timestamp,index,clocks.sm,power.draw,temperature.gpu";
        let write = |source| LabError::Write { path: path.to_path_buf(), source };
        let mut file = File::create(path).map_err(write)?;
        writeln!(file, "{FIELDS}").map_err(write)?;
        let query = format!("--query-gpu={FIELDS}");
        let mut command = Command::new(name);
        command.args([&query, "--format=csv,noheader,nounits", "-lms", "20"]);
        match command.stdin(Stdio::null()).stdout(file).spawn() {
            Ok(child) => Ok(Some(Self(child))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(LabError::Program { name, source }),
        }
    }

    /// How it ended, if it has ended by itself: then the log has a gap.
    pub fn ended(&mut self) -> Option<String> {
        match self.0.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }
}

impl Drop for SmiLog {
    fn drop(&mut self) {
        // Neither fails but where the child has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_no_error_and_an_early_end_is_told() {
        let path = std::env::temp_dir().join(format!("ringlab-smi-{}.csv", std::process::id()));
        assert!(SmiLog::of("no-such-program-of-this-name", &path).unwrap().is_none());
        // Refuses the query, as an old nvidia-smi would.
        let mut log = SmiLog::of("false", &path).unwrap().unwrap();
        while log.ended().is_none() {
            std::thread::yield_now();
        }
        assert!(log.ended().unwrap().contains('1'));
        let header = std::fs::read_to_string(&path).unwrap();
        assert_eq!(header, "timestamp,index,clocks.sm,power.draw,temperature.gpu\n");
        std::fs::remove_file(path).unwrap();
    }
}
