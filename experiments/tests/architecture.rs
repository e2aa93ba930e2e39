//! Holds ARCHITECTURE.md: which crate may depend on which, where unsafe code may be, how long a file gets.

use std::fs;
use std::path::{Path, PathBuf};

const ARROWS: [(&str, &[&str]); 5] = [
    ("sim", &[]),
    ("kernels", &[]),
    ("plots", &["ringlab-sim"]),
    ("runtime", &["ringlab-kernels", "ringlab-sim"]),
    ("experiments", &["ringlab-plots", "ringlab-runtime", "ringlab-sim"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn rust_files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn sources(krate: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    rust_files(&root().join(krate).join("src"), &mut files);
    files.into_iter().map(|p| (p.clone(), fs::read_to_string(p).unwrap())).collect()
}

#[test]
fn crates_depend_only_along_the_arrows() {
    for (krate, allowed) in ARROWS {
        let manifest = fs::read_to_string(root().join(krate).join("Cargo.toml")).unwrap();
        let sections = manifest.split("\n[").filter(|s| s.contains("dependencies]"));
        let named = sections.flat_map(str::lines).filter(|l| l.starts_with("ringlab-"));
        for line in named {
            let name = line.split(['.', ' ', '=']).next().unwrap();
            assert!(allowed.contains(&name), "{krate} must not depend on {name}");
        }
    }
}

#[test]
fn sim_has_no_clock_no_threads_no_hash_order_no_unsafe() {
    for (path, text) in sources("sim") {
        let code = text.split("#[cfg(test)]").next().unwrap();
        for banned in ["std::time", "Instant", "SystemTime", "std::thread", "HashSet", "unsafe ", "std::fs"] {
            assert!(!code.contains(banned), "{} uses {banned}", path.display());
        }
        for line in code.lines().filter(|l| l.contains("HashMap")) {
            let iterates = [".iter()", ".keys()", ".values()", ".drain()"].iter().any(|i| line.contains(i));
            assert!(!iterates, "{} iterates in hash order: {line}", path.display());
        }
    }
}

#[test]
fn unsafe_code_is_only_in_the_gpu_parts() {
    for krate in ["sim", "plots", "experiments"] {
        for (path, text) in sources(krate) {
            assert!(!text.contains("allow(unsafe_code"), "{}", path.display());
        }
    }
}

#[test]
fn files_stay_readable() {
    for (krate, _) in ARROWS {
        for (path, text) in sources(krate) {
            let lines = text.lines().count();
            assert!(lines <= 450, "{} has {lines} lines", path.display());
        }
    }
}
