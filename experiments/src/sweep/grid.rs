//! The grid: fields with their values, and the configuration at an index.

use std::path::PathBuf;

use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::config::model::Model;
use ringlab_sim::disturb::{Disturbance, LinkFault, Straggler};

use super::point::{Mask, Point, Setting};
use crate::disturbance::Repeats;

/// A field and its values.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The field's key.
    pub key: &'static str,
    /// Its values in the order of the file; never empty.
    pub settings: Vec<Setting>,
}

/// The product of all fields. The first axis varies slowest.
#[derive(Debug, Clone)]
pub struct Grid {
    /// Clusters that settings name by index.
    pub clusters: Vec<Cluster>,
    /// Models that settings name by index.
    pub models: Vec<Model>,
    /// Masks that settings name by index.
    pub masks: Vec<Mask>,
    /// Stragglers that settings name by index.
    pub stragglers: Vec<Vec<Straggler>>,
    /// Slow and failed links that settings name by index.
    pub links: Vec<Vec<LinkFault>>,
    /// The fields in the order of the file.
    pub axes: Vec<Axis>,
    /// Files that the sweep names: of clusters, models and documents.
    pub files: Vec<PathBuf>,
    /// Number of configurations.
    pub len: u64,
}

impl Grid {
    /// The configuration at `index`, counted from 0.
    pub fn point(&self, index: u64) -> Point {
        let mut point = Point::default();
        let mut rest = index;
        for axis in self.axes.iter().rev() {
            let count = axis.settings.len() as u64;
            point.set(axis.settings[(rest % count) as usize]);
            rest /= count;
        }
        point
    }

    /// The cluster of a configuration, with the rates of its file.
    pub fn cluster(&self, point: &Point) -> &Cluster {
        &self.clusters[point.cluster]
    }

    /// The model of a configuration.
    pub fn model(&self, point: &Point) -> &Model {
        &self.models[point.model]
    }

    /// The mask of a configuration, if the sweep names it.
    pub fn mask(&self, point: &Point) -> Option<&Mask> {
        point.mask.map(|i| &self.masks[i])
    }

    /// The stragglers of a configuration.
    pub fn stragglers(&self, point: &Point) -> &[Straggler] {
        point.trouble.straggler.map_or(&[], |i| &self.stragglers[i])
    }

    /// The slow links of a configuration.
    pub fn slow_links(&self, point: &Point) -> &[LinkFault] {
        point.trouble.slow_link.map_or(&[], |i| &self.links[i])
    }

    /// The failed links of a configuration.
    pub fn failed_links(&self, point: &Point) -> &[LinkFault] {
        point.trouble.failed_link.map_or(&[], |i| &self.links[i])
    }

    /// What is repeated, if anything goes wrong.
    pub fn repeats(&self, point: &Point) -> Option<Repeats> {
        let disturbance = Disturbance {
            stragglers: self.stragglers(point).to_vec(),
            jitter: point.trouble.jitter,
            links: [self.slow_links(point), self.failed_links(point)].concat(),
        };
        // Repeats of what is not random are all the same.
        let count = if disturbance.is_random() { point.trouble.repeats } else { 1 };
        (!disturbance.is_calm()).then_some(Repeats { disturbance, count, seed: point.trouble.seed })
    }

    /// A number that differs between grids that give different rows: FNV-1a of everything that goes in, which is what the
    /// files hold and not where they are.
    pub fn fingerprint(&self) -> u64 {
        let grid = Self { files: Vec::new(), ..self.clone() };
        let text = format!("{} {grid:?}", env!("CARGO_PKG_VERSION"));
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}
