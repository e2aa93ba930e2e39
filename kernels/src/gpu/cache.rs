use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::GpuError;

/// A folder of compiled kernels, keyed by everything that went into them.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// A cache in `folder`, created when the first kernel is stored.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// `$RINGLAB_CACHE_DIR`, else `$XDG_CACHE_HOME/ringlab`, else `$HOME/.cache/ringlab`, else a folder below the
    /// system's temporary one.
    pub fn from_env() -> Self {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = set("RINGLAB_CACHE_DIR")
            .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("ringlab")))
            .or_else(|| set("HOME").map(|folder| folder.join(".cache/ringlab")))
            .unwrap_or_else(|| env::temp_dir().join("ringlab-cache"));
        Self::new(folder.join("kernels"))
    }

    /// Where the kernels lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The stored bytes of `key`, if any.
    pub(super) fn load(&self, key: &str) -> Result<Option<Vec<u8>>, GpuError> {
        let path = self.folder.join(key);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(GpuError::Cache { path, source }),
        }
    }

    /// Stores `bytes` under `key` in one step: a reader sees all of it or nothing.
    pub(super) fn store(&self, key: &str, bytes: &[u8]) -> Result<(), GpuError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| GpuError::Cache { path, source }
        };
        fs::create_dir_all(&self.folder).map_err(at(&self.folder))?;
        let temporary = self.folder.join(format!("{key}.{}.tmp", std::process::id()));
        fs::write(&temporary, bytes).map_err(at(&temporary))?;
        fs::rename(&temporary, self.folder.join(key)).map_err(at(&temporary))
    }
}

/// FNV-1a over 128 bits, in hex: the key of what `parts` describe, each part ended so that no two run together.
pub(super) fn digest(parts: &[&str]) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0100_0000_0000_0000_013b;
    let step = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    let hash = parts.iter().fold(OFFSET, |hash, part| part.bytes().chain([0xff]).fold(hash, step));
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_separates_parts() {
        // Published FNV-1a vector, 128 bits: the empty input followed by the 0xff that ends a part differs from it.
        assert_eq!(digest(&[]), "6c62272e07bb014262b821756295c58d");
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
    }

    #[test]
    fn stored_bytes_come_back_and_leave_no_temporary() {
        let folder = env::temp_dir().join(format!("ringlab-cache-test-{}", std::process::id()));
        let cache = Cache::new(&folder);
        assert_eq!(cache.load("kernel").unwrap(), None);
        cache.store("kernel", b"first").unwrap();
        cache.store("kernel", b"second").unwrap();
        assert_eq!(cache.load("kernel").unwrap().as_deref(), Some(&b"second"[..]));
        let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["kernel"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn unusable_folder_is_named_with_a_hint() {
        let error = Cache::new("/dev/null/nowhere").store("kernel", b"x").unwrap_err().to_string();
        assert!(error.contains("/dev/null/nowhere") && error.contains("RINGLAB_CACHE_DIR"), "{error}");
    }
}
