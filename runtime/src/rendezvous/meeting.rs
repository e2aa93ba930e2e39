//! Processes that meet through files in a folder that all of them see.
//!
//! Nothing listens on a port. A process announces itself by a file with a nonce that is new in every run; the first
//! process, once all are there, publishes a roll of all nonces, and each of the others goes on only when the roll has its
//! own. So what an earlier run left behind, even under the same run id, is never mistaken for this one: its files carry
//! other nonces. Every file is written under a temporary name and renamed, so that none is seen half-written; every wait
//! has a limit and ends with the processes that it waited for, by name; a process that fails says so in a file that ends
//! the waits of all others.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::error::MeetError;

/// How often a waiting process looks. Network folders show new files after their cache has expired, which takes longer.
const POLL: Duration = Duration::from_millis(10);
/// How long the first process waits for the others to leave before it removes the folder.
const LEAVE: Duration = Duration::from_secs(10);
/// First line of every file.
const MAGIC: &str = "ringlab rendezvous 1";

/// One process in the folder of its run.
#[derive(Debug)]
pub struct Meeting {
    folder: PathBuf,
    run: String,
    process: u32,
    processes: u32,
    timeout: Duration,
    nonce: String,
    /// Nonce of the first process, which names the run among all that used the folder.
    leader: String,
    left: bool,
}

impl Meeting {
    /// Announces the process and waits until all are there.
    ///
    /// `shared` is a folder that all processes see; the run has a folder of its own in it, named by `run`.
    ///
    /// # Errors
    /// [`MeetError::Absent`] with the processes that did not come within `timeout`; a folder that cannot be used; a
    /// second process that claims the same rank.
    pub fn join(
        shared: &Path,
        run: &str,
        process: u32,
        processes: u32,
        timeout: Duration,
    ) -> Result<Self, MeetError> {
        let folder = shared.join(format!("ringlab-{}", file_name(run)));
        fs::create_dir_all(&folder).map_err(io("make the folder", &folder))?;
        let nonce = nonce();
        let leader = if process == 0 { nonce.clone() } else { String::new() };
        let mut meeting =
            Self { folder, run: run.into(), process, processes, timeout, nonce, leader, left: false };
        meeting.write(&format!("present.{process}"), meeting.nonce.as_bytes())?;
        match if process == 0 { meeting.call_roll() } else { meeting.answer_roll() } {
            Ok(()) => Ok(meeting),
            Err(error) => {
                meeting.fail_with(&error);
                Err(error)
            }
        }
    }

    /// The folder of this run.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Leaves `payload` for whoever asks this process for `key`. A second one under the same key is an error of the
    /// caller's: others may have read the first.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn publish(&self, key: &str, payload: &[u8]) -> Result<(), MeetError> {
        let mut bytes = format!("{}\n", self.leader).into_bytes();
        bytes.extend_from_slice(payload);
        self.write(&format!("{key}.{}", self.process), &bytes)
    }

    /// Removes what this process published under `key`, once all that need it have it.
    pub fn withdraw(&self, key: &str) {
        // What stays behind goes with the folder.
        let _ = fs::remove_file(self.folder.join(format!("{key}.{}", self.process)));
    }

    /// What process `from` publishes under `key`; waits for it.
    ///
    /// # Errors
    /// [`MeetError::Silent`] after the time-out, [`MeetError::Failed`] as soon as any process has failed.
    pub fn fetch(&self, key: &str, from: u32) -> Result<Vec<u8>, MeetError> {
        let name = format!("{key}.{from}");
        let silent =
            |after| MeetError::Silent { silent: vec![from], what: format!("publish its {key}"), after };
        self.wait(silent, || self.published(&name))
    }

    /// What every process publishes under `key`, by process, this one included; waits for all.
    ///
    /// # Errors
    /// As [`Meeting::fetch`], with all that are missing.
    pub fn gather(&self, key: &str) -> Result<Vec<Vec<u8>>, MeetError> {
        let mut found: Vec<Option<Vec<u8>>> = vec![None; self.processes as usize];
        let result = self.wait(
            |after| MeetError::Silent { silent: Vec::new(), what: format!("publish its {key}"), after },
            || {
                for (process, slot) in found.iter_mut().enumerate().filter(|(_, s)| s.is_none()) {
                    *slot = self.published(&format!("{key}.{process}"))?;
                }
                Ok(found.iter().all(Option::is_some).then_some(()))
            },
        );
        match result {
            Err(MeetError::Silent { what, after, .. }) => {
                let missing = (0..).zip(&found).filter(|(_, f)| f.is_none()).map(|(p, _)| p);
                Err(MeetError::Silent { silent: missing.collect(), what, after })
            }
            other => other.map(|()| found.into_iter().flatten().collect()),
        }
    }

    /// Waits until every process has come to the barrier of this name.
    ///
    /// # Errors
    /// As [`Meeting::gather`].
    pub fn barrier(&self, name: &str) -> Result<(), MeetError> {
        self.publish(name, b"")?;
        self.gather(name).map(drop)
    }

    /// Tells the others that this process gives up and why, so that they do not wait for it. The folder stays, so that
    /// they can read it; the next run of the same id uses and removes it.
    pub fn fail(self, message: &str) {
        let process = self.process;
        self.blame(process, message);
    }

    /// As [`Meeting::fail`], because of `error`: if another process failed first, that one stays to blame.
    pub fn fail_with(self, error: &MeetError) {
        match error {
            MeetError::Failed { process, message } => self.blame(*process, message),
            other => self.fail(&other.to_string()),
        }
    }

    fn blame(mut self, process: u32, message: &str) {
        self.left = true;
        if !self.leader.is_empty() {
            // The process ends with an error of its own already.
            let _ = self.publish("failed", format!("{process}\n{message}").as_bytes());
        }
    }

    /// Leaves. The first process waits for the others a while, then removes the folder of the run.
    ///
    /// # Errors
    /// A folder that cannot be written or removed.
    pub fn leave(mut self) -> Result<(), MeetError> {
        self.left = true;
        let left = self.publish("left", b"");
        if self.process > 0 {
            // The first process may have waited long enough and removed the folder.
            return if self.folder.exists() { left } else { Ok(()) };
        }
        left?;
        let start = Instant::now();
        let all_left =
            || (0..self.processes).all(|p| matches!(self.published(&format!("left.{p}")), Ok(Some(_))));
        while !all_left() && start.elapsed() < LEAVE.min(self.timeout) {
            thread::sleep(POLL);
        }
        fs::remove_dir_all(&self.folder).map_err(io("remove", &self.folder))
    }

    /// The first process: waits for all presences, publishes them, and waits until each has seen itself among them.
    fn call_roll(&mut self) -> Result<(), MeetError> {
        let mut present: Vec<Option<String>> = vec![None; self.processes as usize];
        let mut seen = vec![false; self.processes as usize];
        seen[0] = true;
        let result = self.wait(
            |after| MeetError::Silent { silent: Vec::new(), what: String::new(), after },
            || {
                let now = (0..self.processes).map(|p| self.presence(p)).collect::<Result<Vec<_>, _>>()?;
                if now != present && now.iter().all(Option::is_some) {
                    let nonces: Vec<&str> = now.iter().flatten().map(String::as_str).collect();
                    self.write("roll", format!("{}\n{}", self.nonce, nonces.join("\n")).as_bytes())?;
                }
                present = now;
                self.claim(0)?;
                for (process, seen) in seen.iter_mut().enumerate().skip(1) {
                    *seen = self.published(&format!("seen.{process}"))?.is_some();
                }
                Ok(seen.iter().all(|s| *s).then_some(()))
            },
        );
        match result {
            Err(MeetError::Silent { after, .. }) => Err(self.absent(&seen, after)),
            other => other,
        }
    }

    /// Who never came. A presence file alone may be an old one; only who has answered the roll is here for sure, but where
    /// presences are missing there was no roll to answer, and those are the ones to name.
    fn absent(&self, seen: &[bool], after: Duration) -> MeetError {
        let without = |p: &u32| matches!(self.presence(*p), Ok(None));
        let mut missing: Vec<u32> = (0..self.processes).filter(without).collect();
        if missing.is_empty() {
            missing = (0..self.processes).filter(|p| !seen[*p as usize]).collect();
        }
        MeetError::Absent { missing, processes: self.processes, after, folder: self.folder.clone() }
    }

    /// Any other process: waits for a roll that has its own nonce.
    fn answer_roll(&mut self) -> Result<(), MeetError> {
        let result = self.wait(
            |after| MeetError::Silent { silent: Vec::new(), what: String::new(), after },
            || {
                self.claim(self.process)?;
                let Some(roll) = self.read("roll")? else { return Ok(None) };
                let roll =
                    String::from_utf8(roll).map_err(|_| MeetError::Foreign(self.folder.join("roll")))?;
                let mut lines = roll.lines();
                let leader = lines.next().unwrap_or_default().to_owned();
                let own = lines.nth(self.process as usize);
                Ok((own == Some(self.nonce.as_str())).then_some(leader))
            },
        );
        self.leader = match result {
            Err(MeetError::Silent { after, .. }) => {
                let mut here = vec![true; self.processes as usize];
                here[0] = false;
                return Err(self.absent(&here, after));
            }
            other => other?,
        };
        self.publish("seen", b"")
    }

    fn presence(&self, process: u32) -> Result<Option<String>, MeetError> {
        let bytes = self.read(&format!("present.{process}"))?;
        Ok(bytes.map(|b| String::from_utf8_lossy(&b).into_owned()))
    }

    /// That the presence is still this process's own.
    fn claim(&self, process: u32) -> Result<(), MeetError> {
        match self.presence(process)? {
            Some(nonce) if nonce != self.nonce => Err(MeetError::Taken { process, run: self.run.clone() }),
            _ => Ok(()),
        }
    }

    /// A payload of this run; what other runs left is as good as nothing.
    fn published(&self, name: &str) -> Result<Option<Vec<u8>>, MeetError> {
        let Some(mut bytes) = self.read(name)? else { return Ok(None) };
        let line = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
        if bytes[..line] != *self.leader.as_bytes() {
            return Ok(None);
        }
        bytes.drain(..(line + 1).min(bytes.len()));
        Ok(Some(bytes))
    }

    fn wait<T>(
        &self,
        silent: impl Fn(Duration) -> MeetError,
        mut ready: impl FnMut() -> Result<Option<T>, MeetError>,
    ) -> Result<T, MeetError> {
        let start = Instant::now();
        loop {
            if let Some(value) = ready()? {
                return Ok(value);
            }
            self.failure()?;
            if start.elapsed() >= self.timeout {
                return Err(silent(self.timeout));
            }
            thread::sleep(POLL);
        }
    }

    /// The failure of another process, if one has said so.
    ///
    /// # Errors
    /// [`MeetError::Failed`].
    pub fn failure(&self) -> Result<(), MeetError> {
        if self.leader.is_empty() {
            return Ok(());
        }
        for process in (0..self.processes).filter(|p| *p != self.process) {
            if let Some(payload) = self.published(&format!("failed.{process}"))? {
                let text = String::from_utf8_lossy(&payload);
                let (culprit, message) = text.split_once('\n').unwrap_or(("", &text));
                let process = culprit.parse().unwrap_or(process);
                return Err(MeetError::Failed { process, message: message.to_owned() });
            }
        }
        Ok(())
    }

    fn write(&self, name: &str, payload: &[u8]) -> Result<(), MeetError> {
        let (path, temporary) = (self.folder.join(name), self.folder.join(format!(".{name}.{}", self.nonce)));
        let mut bytes = format!("{MAGIC}\n").into_bytes();
        bytes.extend_from_slice(payload);
        fs::write(&temporary, bytes).map_err(io("write", &temporary))?;
        fs::rename(&temporary, &path).map_err(io("rename a file to", &path))
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, MeetError> {
        let path = self.folder.join(name);
        match fs::read(&path) {
            Ok(bytes) => match bytes.strip_prefix(format!("{MAGIC}\n").as_bytes()) {
                Some(payload) => Ok(Some(payload.to_vec())),
                None => Err(MeetError::Foreign(path)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(MeetError::Io { what: "read", path, error }),
        }
    }
}

impl Drop for Meeting {
    /// A process that ends without a word leaves one, so that nobody waits for it.
    fn drop(&mut self) {
        if !self.left && !self.leader.is_empty() {
            let message = format!("{}\nit ended before the run did", self.process);
            let _ = self.publish("failed", message.as_bytes());
        }
    }
}

fn io<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> MeetError + 'a {
    move |error| MeetError::Io { what, path: path.to_owned(), error }
}

/// The run id as a part of a file's name: other characters than letters, digits, dots and dashes are written as their
/// code, so that two ids never share a name.
fn file_name(run: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    run.chars().map(|c| if plain(c) { c.to_string() } else { format!("_{:x}_", u32::from(c)) }).collect()
}

/// A word that no other process has: the standard library's keys are drawn from the system's randomness.
fn nonce() -> String {
    let state = RandomState::new();
    format!("{:016x}{:016x}", state.hash_one(std::process::id()), state.hash_one(Instant::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ids_become_names_of_files_and_stay_apart() {
        assert_eq!(file_name("prterun-node1-4242@1"), "prterun-node1-4242_40_1");
        assert_eq!(file_name("../x"), ".._2f_x");
        assert_ne!(file_name("a/b"), file_name("a_b"));
        assert_ne!(file_name("_2f_"), file_name("/"));
    }

    #[test]
    fn no_two_nonces_are_alike() {
        let all: std::collections::BTreeSet<String> = (0..1000).map(|_| nonce()).collect();
        assert_eq!(all.len(), 1000);
    }
}
