//! The CUDA sources, embedded, with their includes resolved so that one string is one translation unit.

use std::collections::HashSet;

/// Sources by their path below `cuda/`.
const FILES: &[(&str, &str)] = &[
    ("common/add.cu", include_str!("../cuda/common/add.cu")),
    ("common/convert.cu", include_str!("../cuda/common/convert.cu")),
    ("common/elements.cuh", include_str!("../cuda/common/elements.cuh")),
    ("common/merge.cu", include_str!("../cuda/common/merge.cu")),
    ("common/preprocess.cu", include_str!("../cuda/common/preprocess.cu")),
    ("hopper/bwd_accumulate.cuh", include_str!("../cuda/hopper/bwd_accumulate.cuh")),
    ("hopper/bwd_consumer.cuh", include_str!("../cuda/hopper/bwd_consumer.cuh")),
    ("hopper/bwd_kernel.cu", include_str!("../cuda/hopper/bwd_kernel.cu")),
    ("hopper/bwd_producer.cuh", include_str!("../cuda/hopper/bwd_producer.cuh")),
    ("hopper/bwd_score.cuh", include_str!("../cuda/hopper/bwd_score.cuh")),
    ("hopper/bwd_tile.cuh", include_str!("../cuda/hopper/bwd_tile.cuh")),
    ("hopper/bwd_writer.cuh", include_str!("../cuda/hopper/bwd_writer.cuh")),
    ("hopper/fwd_epilogue.cuh", include_str!("../cuda/hopper/fwd_epilogue.cuh")),
    ("hopper/fwd_kernel.cu", include_str!("../cuda/hopper/fwd_kernel.cu")),
    ("hopper/fwd_load.cuh", include_str!("../cuda/hopper/fwd_load.cuh")),
    ("hopper/fwd_mainloop.cuh", include_str!("../cuda/hopper/fwd_mainloop.cuh")),
    ("hopper/fwd_mask.cuh", include_str!("../cuda/hopper/fwd_mask.cuh")),
    ("hopper/fwd_schedule.cuh", include_str!("../cuda/hopper/fwd_schedule.cuh")),
    ("hopper/fwd_softmax.cuh", include_str!("../cuda/hopper/fwd_softmax.cuh")),
    ("hopper/fwd_tile.cuh", include_str!("../cuda/hopper/fwd_tile.cuh")),
    ("hopper/ptx.cuh", include_str!("../cuda/hopper/ptx.cuh")),
    ("hopper/wgmma.cuh", include_str!("../cuda/hopper/wgmma.cuh")),
    ("interface.cuh", include_str!("../cuda/interface.cuh")),
    ("portable/backward.cu", include_str!("../cuda/portable/backward.cu")),
    ("portable/forward.cu", include_str!("../cuda/portable/forward.cu")),
    ("portable/mma.cuh", include_str!("../cuda/portable/mma.cuh")),
];

/// `path` with every `#include "..."` replaced by the file it names, each file once.
///
/// A name is looked up beside the including file, then at the root. `#line` directives keep compiler messages on the
/// files they speak of. The name of a missing file is the error.
pub fn unit(path: &str) -> Result<String, String> {
    let text = file(path).ok_or_else(|| path.to_owned())?;
    let mut out = String::new();
    inline(path, text, &mut HashSet::from([path.to_owned()]), &mut out)?;
    Ok(out)
}

fn inline(path: &str, text: &str, seen: &mut HashSet<String>, out: &mut String) -> Result<(), String> {
    let mark = |line: usize| format!("#line {line} \"{path}\"\n");
    out.push_str(&mark(1));
    for (index, line) in text.lines().enumerate() {
        if line.trim() == "#pragma once" {
            out.push('\n');
        } else if let Some(name) = included(line) {
            let (found, body) = resolve(path, name).ok_or_else(|| format!("{name} (from {path})"))?;
            if seen.insert(found.clone()) {
                inline(&found, body, seen, out)?;
            }
            out.push_str(&mark(index + 2));
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
    Ok(())
}

fn included(line: &str) -> Option<&str> {
    line.trim().strip_prefix("#include")?.trim().strip_prefix('"')?.split('"').next()
}

fn resolve(from: &str, name: &str) -> Option<(String, &'static str)> {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    [normalised(folder, name), normalised("", name)]
        .into_iter()
        .find_map(|path| Some((path.clone(), file(&path)?)))
}

fn normalised(folder: &str, name: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in name.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

fn file(path: &str) -> Option<&'static str> {
    FILES.iter().find(|(name, _)| *name == path).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn unit_of(name: &str, text: &str) -> Result<String, String> {
        let mut out = String::new();
        inline(name, text, &mut HashSet::new(), &mut out)?;
        Ok(out)
    }

    #[test]
    fn includes_are_resolved_once_and_lines_kept() {
        let text = "#include \"interface.cuh\"\n#include \"interface.cuh\"\n#include <cuda.h>\nint x;\n";
        let unit = unit_of("probe.cu", text).unwrap();
        assert_eq!(unit.matches("struct BackwardArgs").count(), 1);
        assert!(unit.ends_with("#line 3 \"probe.cu\"\n#include <cuda.h>\nint x;\n"));
        assert!(!unit.contains("#pragma once"));
    }

    #[test]
    fn missing_files_are_named() {
        assert_eq!(unit("nowhere.cu"), Err("nowhere.cu".into()));
        assert_eq!(
            unit_of("portable/probe.cu", "#include \"../nowhere.cuh\""),
            Err("../nowhere.cuh (from portable/probe.cu)".into())
        );
    }

    #[test]
    fn every_source_is_embedded() {
        fn walk(folder: &Path, root: &Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, root, found);
                } else {
                    found.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
        let mut found = Vec::new();
        walk(&root, &root, &mut found);
        found.sort();
        let mut embedded: Vec<&str> = FILES.iter().map(|(path, _)| *path).collect();
        embedded.sort_unstable();
        assert_eq!(found, embedded);
    }
}
