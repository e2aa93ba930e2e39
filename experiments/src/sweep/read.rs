//! A grid from the text of a sweep file.

use std::path::PathBuf;

use ringlab_sim::config::cluster::{Cluster, NcclLimit};
use ringlab_sim::config::model::Model;
use ringlab_sim::config::{ConfigError, Entry, Field, Keys, Section, Source, nearest, parse_toml};
use ringlab_sim::disturb::{DisturbError, Jitter, LinkFault, Straggler};
use ringlab_sim::plan::Transport;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::{self, Route, Schedule};
use ringlab_sim::units::{BytesPerSec, Tokens};

use super::expand::{RANGE, values};
use super::grid::{Axis, Grid};
use super::point::{Mask, Setting};
use crate::documents::{self, MaskArg};
use crate::presets;
use crate::setup::Files;

/// Every field, with an example.
pub const FIELDS: Keys = &[
    ("cluster", "\"dgx-h100\""),
    ("link_bandwidth", "\"450 GB/s\""),
    ("nic_bandwidth", "\"50 GB/s\""),
    ("model", "\"llama-3-8b\""),
    ("heads", "32"),
    ("kv_heads", "8"),
    ("head_dim", "128"),
    ("dtype", "\"bf16\""),
    ("batch", "1"),
    ("seq", "\"128Ki\""),
    ("mask", "\"causal\""),
    ("cp", "8"),
    ("schedule", "[\"ring\", \"zigzag\"]"),
    ("stripe", "1"),
    ("pass", "\"forward\""),
    ("transport", "\"copy-engine\""),
    ("nccl_ctas", "8"),
    ("nccl_priority", "\"high\""),
    ("route", "\"neighbour\""),
    ("chunks", "1"),
    ("prefetch", "1"),
    ("needed_only", "false"),
    ("pad", "false"),
    ("straggler", "\"any:1.1\""),
    ("jitter", "\"3%\""),
    ("slow_link", "\"0-1:4\""),
    ("failed_link", "\"0-1\""),
    ("repeats", "100"),
    ("seed", "0"),
];

/// The most configurations: more would not be done in a life.
const MOST: u64 = 1 << 40;

const PASSES: [(&str, &[Pass]); 3] = [
    ("forward", &[Pass::Forward]),
    ("backward", &[Pass::Backward]),
    ("forward+backward", &[Pass::Forward, Pass::Backward]),
];
const TRANSPORTS: [(&str, Transport); 2] =
    [("copy-engine", Transport::CopyEngine), ("nccl", Transport::Nccl)];
const ROUTES: [(&str, Route); 2] = [("neighbour", Route::Neighbour), ("direct", Route::Direct)];

impl Grid {
    /// Reads the TOML form; `label` is the file's name in messages.
    ///
    /// # Errors
    /// A [`ConfigError`] with line and column at the first field or value that is unknown, malformed, of the wrong unit
    /// or empty.
    pub fn parse(label: &str, text: &str) -> Result<Self, ConfigError> {
        let source = Source { label, text };
        let document = parse_toml(source)?;
        let root = Section::root(source, &document, FIELDS)?;
        let mut reader = Reader::default();
        let mut len: u64 = 1;
        let mut axes = Vec::new();
        for key in root.given_keys() {
            let Some((key, _)) = FIELDS.iter().find(|(known, _)| *known == key) else { continue };
            let settings = reader.settings(key, &root.entries(key, RANGE)?)?;
            len = len.saturating_mul(settings.len() as u64);
            if len > MOST {
                return Err(ConfigError::whole(
                    label,
                    format!("the grid has more than {MOST} configurations"),
                ));
            }
            axes.push(Axis { key, settings });
        }
        reader.fill_in(label)?;
        let Reader { clusters, models, masks, stragglers, links, files } = reader;
        Ok(Self { clusters, models, masks, stragglers, links, axes, files, len })
    }
}

/// What settings name by index.
#[derive(Default)]
struct Reader {
    clusters: Vec<Cluster>,
    models: Vec<Model>,
    masks: Vec<Mask>,
    stragglers: Vec<Vec<Straggler>>,
    links: Vec<Vec<LinkFault>>,
    files: Vec<PathBuf>,
}

impl Reader {
    fn settings(&mut self, key: &str, entries: &[Entry<'_, '_>]) -> Result<Vec<Setting>, ConfigError> {
        match key {
            "seq" => tokens(entries, Setting::Seq),
            "stripe" => tokens(entries, Setting::Stripe),
            "link_bandwidth" => rates(entries, Setting::LinkBandwidth),
            "nic_bandwidth" => rates(entries, Setting::NicBandwidth),
            "cp" => counts(entries, 1..=65536, Setting::Cp),
            "batch" => counts(entries, 1..=1_000_000, Setting::Batch),
            "heads" => counts(entries, 1..=65536, Setting::Heads),
            "kv_heads" => counts(entries, 1..=65536, Setting::KvHeads),
            "head_dim" => counts(entries, 1..=65536, Setting::HeadDim),
            "chunks" => counts(entries, 1..=65536, Setting::Chunks),
            "prefetch" => counts(entries, 0..=65536, Setting::Prefetch),
            "needed_only" => scalars(entries, |f| f.flag().map(Setting::NeededOnly)),
            "pad" => scalars(entries, |f| f.flag().map(Setting::Pad)),
            "dtype" => scalars(entries, |f| f.keyword().map(Setting::Dtype)),
            "pass" => scalars(entries, |f| name(f, &PASSES).map(Setting::Pass)),
            "transport" => scalars(entries, |f| name(f, &TRANSPORTS).map(Setting::Transport)),
            "nccl_ctas" => counts(entries, 1..=u64::from(NcclLimit::MOST_CTAS), Setting::NcclCtas),
            "nccl_priority" => scalars(entries, |f| f.keyword().map(Setting::NcclPriority)),
            "route" => scalars(entries, |f| name(f, &ROUTES).map(Setting::Route)),
            "schedule" => schedules(entries),
            "repeats" => counts(entries, 1..=1_000_000, Setting::Repeats),
            "seed" => counts(entries, 0..=u64::from(u32::MAX), |seed| Setting::Seed(u64::from(seed))),
            "jitter" => scalars(entries, |f| parsed(f).map(Setting::Jitter)),
            "straggler" => scalars(entries, |f| {
                self.stragglers.push(list(f, str::parse)?);
                Ok(Setting::Straggler(self.stragglers.len() - 1))
            }),
            "slow_link" => scalars(entries, |f| {
                self.links.push(list(f, LinkFault::slowed)?);
                Ok(Setting::SlowLink(self.links.len() - 1))
            }),
            "failed_link" => scalars(entries, |f| {
                self.links.push(list(f, LinkFault::failed)?);
                Ok(Setting::FailedLink(self.links.len() - 1))
            }),
            "cluster" => scalars(entries, |f| self.cluster(f)),
            "model" => scalars(entries, |f| self.model(f)),
            _ => scalars(entries, |f| self.mask(f)),
        }
    }

    fn cluster(&mut self, field: &Field<'_>) -> Result<Setting, ConfigError> {
        let name = field.text()?;
        self.clusters.push(presets::cluster(&name).map_err(|e| inside(field, &e))?);
        self.files.extend(presets::cluster_file(&name));
        Ok(Setting::Cluster(self.clusters.len() - 1))
    }

    fn model(&mut self, field: &Field<'_>) -> Result<Setting, ConfigError> {
        let name = field.text()?;
        self.models.push(presets::model(&name).map_err(|e| inside(field, &e))?);
        self.files.extend(presets::model_file(&name));
        Ok(Setting::Model(self.models.len() - 1))
    }

    fn mask(&mut self, field: &Field<'_>) -> Result<Setting, ConfigError> {
        let text = field.text()?;
        let MaskArg { pattern, documents } =
            MaskArg::parse(&text, Files::Read).map_err(|e| field.error(format!("`mask`: {e:#}")))?;
        self.files.extend(documents::file(&text));
        self.masks.push(Mask { text, pattern, documents });
        Ok(Setting::Mask(self.masks.len() - 1))
    }

    /// The defaults, where the file names none.
    fn fill_in(&mut self, label: &str) -> Result<(), ConfigError> {
        let missing = |e: &ConfigError| ConfigError::whole(label, e.message().to_owned());
        if self.clusters.is_empty() {
            self.clusters.push(presets::cluster("dgx-h100").map_err(|e| missing(&e))?);
        }
        if self.models.is_empty() {
            self.models.push(presets::model("llama-3-8b").map_err(|e| missing(&e))?);
        }
        Ok(())
    }
}

/// The error of another file, at the place that names it.
fn inside(field: &Field<'_>, error: &ConfigError) -> ConfigError {
    let place = error.position().map_or(String::new(), |(line, column)| format!(":{line}:{column}"));
    let own = field.error(format!("`{}`: {}{place}: {}", field.path, error.label(), error.message()));
    match error.hint() {
        Some(hint) => own.with_hint(hint),
        None => own,
    }
}

fn parsed(field: &Field<'_>) -> Result<Jitter, ConfigError> {
    field.text()?.parse().map_err(|e: DisturbError| field.error(format!("`{}`: {e}", field.path)))
}

/// Items apart by commas; `none` is no item.
fn list<T>(field: &Field<'_>, read: fn(&str) -> Result<T, DisturbError>) -> Result<Vec<T>, ConfigError> {
    let text = field.text()?;
    if text == "none" {
        return Ok(Vec::new());
    }
    let item = |item: &str| read(item.trim()).map_err(|e| field.error(format!("`{}`: {e}", field.path)));
    text.split(',').map(item).collect()
}

fn no_range(section: &Section<'_, '_>) -> ConfigError {
    section.error("ranges are for numbers, but this field has names").with_hint("write a list of names")
}

fn scalars(
    entries: &[Entry<'_, '_>],
    mut read: impl FnMut(&Field<'_>) -> Result<Setting, ConfigError>,
) -> Result<Vec<Setting>, ConfigError> {
    let scalar = |entry: &Entry<'_, '_>| match entry {
        Entry::Scalar(field) => read(field),
        Entry::Table(section) => Err(no_range(section)),
    };
    entries.iter().map(scalar).collect()
}

fn tokens(entries: &[Entry<'_, '_>], setting: fn(u64) -> Setting) -> Result<Vec<Setting>, ConfigError> {
    let read = |field: &Field<'_>| field.amount::<Tokens>().map(|t| t.0);
    Ok(values(entries, read)?.into_iter().map(setting).collect())
}

fn rates(
    entries: &[Entry<'_, '_>],
    setting: fn(BytesPerSec) -> Setting,
) -> Result<Vec<Setting>, ConfigError> {
    let read = |field: &Field<'_>| field.amount::<BytesPerSec>().map(|r| r.0);
    Ok(values(entries, read)?.into_iter().map(|rate| setting(BytesPerSec(rate))).collect())
}

fn counts(
    entries: &[Entry<'_, '_>],
    range: std::ops::RangeInclusive<u64>,
    setting: fn(u32) -> Setting,
) -> Result<Vec<Setting>, ConfigError> {
    let all = values(entries, |field| field.count(range.clone()))?;
    Ok(all.into_iter().map(|count| setting(count as u32)).collect())
}

fn schedules(entries: &[Entry<'_, '_>]) -> Result<Vec<Setting>, ConfigError> {
    let mut all = Vec::new();
    for entry in entries {
        let field = match entry {
            Entry::Scalar(field) => field,
            Entry::Table(section) => return Err(no_range(section)),
        };
        let text = field.text()?;
        if text == "all" {
            all.extend(schedule::ALL);
        } else {
            let unknown = |e: schedule::UnknownSchedule| field.error(e.to_string());
            all.push(text.parse::<Schedule>().map_err(unknown)?);
        }
    }
    Ok(all.into_iter().map(Setting::Schedule).collect())
}

fn name<T: Copy>(field: &Field<'_>, names: &[(&'static str, T)]) -> Result<T, ConfigError> {
    let text = field.text()?;
    let known = || names.iter().map(|(name, _)| *name);
    if let Some((_, value)) = names.iter().find(|(name, _)| *name == text) {
        return Ok(*value);
    }
    let error = field.error(format!("`{}` is \"{}\"", field.path, text.escape_debug()));
    Err(match nearest(&text, known()) {
        Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
        None => error.with_hint(format!("choose from {}", known().collect::<Vec<_>>().join(", "))),
    })
}
