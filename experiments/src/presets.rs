//! Clusters and models by name or by path.
//!
//! A preset is TOML that ships inside the binary; a cluster is put together from parts, so that a device is
//! written down once. Names such as `h100-16x8-rail` are made from a base: 16 nodes of 8 GPUs.

mod sized;

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::config::model::Model;
use ringlab_sim::config::{ConfigError, nearest};

/// A name and the texts that make up its TOML.
type Preset = (&'static str, &'static [&'static str]);

macro_rules! part {
    ($name:literal) => {
        include_str!(concat!("../presets/parts/", $name, ".toml"))
    };
}

macro_rules! presets {
    ($folder:literal: $($name:literal $(+ $part:literal)*),* $(,)?) => {
        &[$((
            $name,
            &[include_str!(concat!("../presets/", $folder, "/", $name, ".toml")) $(, part!($part))*],
        )),*]
    };
}

/// Clusters, the smaller and older first.
const CLUSTERS: &[Preset] = presets!["clusters":
    "ideal",
    "pcie-8x-a100" + "a100-pcie" + "host-cuda" + "a100-kernels",
    "dgx-a100-80gb" + "a100-sxm" + "host-cuda" + "a100-nvlink" + "a100-kernels",
    "2x-dgx-a100-100g" + "a100-sxm" + "host-cuda" + "a100-nvlink" + "a100-kernels",
    "dgx-h100" + "h100-sxm" + "host-cuda" + "h100-nvlink" + "ib-ndr400" + "h100-kernels",
    "hgx-h200" + "host-cuda" + "ib-ndr400",
    "h200-nvl2-validated",
    "dgx-b200" + "host-cuda" + "ib-ndr400",
    "tpu-v4-4x4",
    "cpu-threads",
];

const MODELS: &[Preset] = presets!["models":
    "llama-2-7b", "llama-2-13b", "llama-2-70b",
    "llama-3-8b", "llama-3-70b", "llama-3-405b",
    "qwen2.5-7b", "qwen2.5-72b",
    "mistral-7b", "mixtral-8x7b", "gpt-neox-20b",
    "llama-7b", "llama-gqa", "llama-33h", "llama-16h", "llama-8h", "llama-4h", "llama-2h",
    "striped-1b", "striped-3b", "striped-7b",
];

/// Largest file that is read as a configuration.
const LARGEST: u64 = 4 << 20;

/// Names of the cluster presets, and the patterns of those made by size.
pub fn cluster_names() -> Vec<&'static str> {
    CLUSTERS.iter().map(|(name, _)| *name).chain(sized::PATTERNS.iter().copied()).collect()
}

/// Names of the model presets.
pub fn model_names() -> Vec<&'static str> {
    MODELS.iter().map(|(name, _)| *name).collect()
}

/// The complete TOML of the cluster preset `name`, with its comments where it is no name made by size.
pub fn cluster_text(name: &str) -> Option<String> {
    text_of(CLUSTERS, name).or_else(|| sized_cluster(name)?.ok().map(|cluster| cluster.to_toml()))
}

/// The TOML of the model preset `name`.
pub fn model_text(name: &str) -> Option<String> {
    text_of(MODELS, name)
}

/// A cluster by preset name, by size (`h100-16x8-rail`), or from a TOML file.
///
/// # Errors
/// A [`ConfigError`] for a name that is neither preset nor file, a file that cannot be read as text, or text
/// that is no cluster.
pub fn cluster(name: &str) -> Result<Cluster, ConfigError> {
    if let Some(cluster) = built_in_cluster(name) {
        return cluster;
    }
    let other = model_names().iter().any(|model| model.eq_ignore_ascii_case(name)).then_some("model");
    Cluster::parse(name, &read("cluster", name, &cluster_names(), other)?)
}

/// The file that [`cluster`] reads for `name`; `None` when it is built in.
pub fn cluster_file(name: &str) -> Option<PathBuf> {
    built_in_cluster(name).is_none().then(|| name.into())
}

/// A cluster by preset name or by size; `None` when there is none of this name.
pub fn built_in_cluster(name: &str) -> Option<Result<Cluster, ConfigError>> {
    match text_of(CLUSTERS, name) {
        Some(text) => Some(Cluster::parse(name, &text)),
        None => sized_cluster(name),
    }
}

/// The cluster of a name made by size; `None` when it is no such name.
fn sized_cluster(name: &str) -> Option<Result<Cluster, ConfigError>> {
    let made = sized::parse(name)?.and_then(|sized| {
        let text = text_of(CLUSTERS, sized.base).unwrap_or_default();
        let base = Cluster::parse(sized.base, &text)?;
        Ok(sized.apply(name, base))
    });
    Some(made)
}

/// A model by preset name, or from a TOML file or a HuggingFace `config.json`; a folder stands for the
/// `config.json` in it.
///
/// # Errors
/// As for [`cluster`].
pub fn model(name: &str) -> Result<Model, ConfigError> {
    if let Some(model) = built_in_model(name) {
        return model;
    }
    let path = at(name).to_string_lossy().into_owned();
    let other = cluster_text(name).map(|_| "cluster");
    Model::parse(&path, &read("model", &path, &model_names(), other)?)
}

/// The file that [`model`] reads for `name`; `None` when it is built in.
pub fn model_file(name: &str) -> Option<PathBuf> {
    text_of(MODELS, name).is_none().then(|| at(name))
}

/// Where the model `name`, which is not built in, is read from.
fn at(name: &str) -> PathBuf {
    let inside = Path::new(name).join("config.json");
    if inside.is_file() { inside } else { name.into() }
}

/// A model by preset name; `None` when there is none of this name.
pub fn built_in_model(name: &str) -> Option<Result<Model, ConfigError>> {
    text_of(MODELS, name).map(|text| Model::parse(name, &text))
}

/// Preset names are met in any case: `Llama-3-8B` is `llama-3-8b`.
fn text_of(presets: &[Preset], name: &str) -> Option<String> {
    presets.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, parts)| parts.concat())
}

/// The text of the file `name`, which is no preset of its kind but may be one of the `other`.
fn read(what: &str, name: &str, presets: &[&str], other: Option<&str>) -> Result<String, ConfigError> {
    match (Path::new(name).try_exists(), other) {
        (Ok(false), Some(other)) => Err(ConfigError::whole(name, format!("is a {other}, expected a {what}"))
            .with_hint(format!("give it as the {other}, with --{other}"))),
        (Ok(false), None) => Err(unknown(what, name, presets)),
        _ => read_text(Path::new(name)),
    }
}

/// The text of the file at `path`, without a byte order mark. Besides files, standard input and other open
/// descriptors are read (`/dev/stdin`, `/dev/fd/63`).
///
/// # Errors
/// A [`ConfigError`] for a file that is absent, a folder, a pipe, socket or device by its own name, larger than
/// 4 MiB, or no text.
pub fn read_text(path: &Path) -> Result<String, ConfigError> {
    let fail = |message: String| ConfigError::whole(path.to_string_lossy(), message);
    let unreadable = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => fail("there is no such file".to_owned()),
        _ => fail(format!("cannot be read: {error}")),
    };
    // Opening a pipe would wait for someone to write to it.
    let kind = path.metadata().map_err(unreadable)?.file_type();
    refuse_folder(path)?;
    if !kind.is_file() && !is_open_descriptor(path) {
        let error = fail("is a pipe, a socket or a device, expected a file".to_owned());
        return Err(error.with_hint("to read from a pipe, give /dev/stdin"));
    }
    let bytes = read_bytes(path).map_err(unreadable)?;
    if bytes.len() as u64 > LARGEST {
        return Err(fail(format!("is larger than {} MiB, expected a small text file", LARGEST >> 20)));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        fail(format!("is not text: byte {place} is not UTF-8"))
    })?;
    match text.find('\0') {
        Some(place) => Err(fail(format!("is not text: byte {place} is zero"))),
        None => Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text)),
    }
}

/// # Errors
/// `path` is a folder.
pub fn refuse_folder(path: &Path) -> Result<(), ConfigError> {
    if path.is_dir() {
        return Err(ConfigError::whole(path.to_string_lossy(), "is a folder, expected a file"));
    }
    Ok(())
}

/// Whether `path` names what this process has open, which cannot wait for a writer to come.
fn is_open_descriptor(path: &Path) -> bool {
    path == Path::new("/dev/stdin") || path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd")
}

/// The bytes of a file, or just more than [`LARGEST`] of an endless one.
fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// `name` is neither a preset nor a file.
fn unknown(what: &str, name: &str, presets: &[&str]) -> ConfigError {
    let label = if name.is_empty() { "\"\"" } else { name };
    let error =
        ConfigError::whole(label, format!("no {what} preset has this name, and there is no such file"));
    match nearest(name, presets.iter().copied()) {
        Some(near) => error.with_hint(format!("did you mean {near}?")),
        None => error.with_hint(format!("presets: {}", presets.join(", "))),
    }
}
