//! Arguments of the commands that explore: sweep, plot, explore.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::numbers::whole;
use crate::charts::Kind;
use crate::sweep::Shard;

#[derive(Args)]
#[command(
    after_help = "Fields of FILE: cluster, link_bandwidth, nic_bandwidth, model, heads, kv_heads, head_dim, dtype, batch, \
seq, mask, cp, schedule, stripe, pass, transport, nccl_ctas, nccl_priority, route, chunks, prefetch, needed_only, pad, straggler, \
jitter, slow_link, failed_link, repeats, seed. Each has one value, a list, or a \
range { from = .., to = .., times = .. } or { from = .., to = .., step = .. }. The first field varies slowest.

Examples:
  ringlab sweep lengths.toml -o lengths.csv
  ringlab sweep lengths.toml --shard 2/8 -o lengths-2.csv
  ringlab sweep lengths.toml --merge lengths-*.csv -o lengths.csv"
)]
pub struct SweepArgs {
    /// TOML file of the grid.
    #[arg(value_name = "FILE.toml")]
    pub file: PathBuf,
    /// Write the rows to a file that appears when it is complete; the same command resumes after a stop.
    #[arg(short, long, value_name = "FILE.csv")]
    pub output: Option<PathBuf>,
    /// Threads to compute with; the rows do not depend on it [default: all cores].
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=1024))]
    pub threads: Option<u16>,
    /// Only the i-th of n equal parts of the grid.
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// Join the files of all shards instead of computing.
    #[arg(long, value_name = "FILE.csv", num_args = 1.., conflicts_with_all = ["shard", "threads"])]
    pub merge: Vec<PathBuf>,
}

#[derive(Args)]
#[command(after_help = "Examples:
  ringlab explore
  ringlab explore --port 8080")]
pub struct ExploreArgs {
    /// TCP port; 0 takes a free one. The page's address is printed.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// IP address to listen on. The page has no password: whoever reaches the address can use it.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDR")]
    pub listen: IpAddr,
}

#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Beside OUT.svg, OUT.data.csv holds the data in the picture.

Examples:
  ringlab plot speedup lengths.csv -o speedup.svg
  ringlab plot time lengths.csv --x cp --where seq_len=128Ki -o time.png
  ringlab plot winner grid.csv --x seq_len --y link_bandwidth_bytes_per_s -o winner.svg
  ringlab plot validate validation.json -o validation.svg
  ringlab paper striped --format csv -o rows.csv && ringlab plot paper rows.csv --by table -o striped.svg
  ringlab plot gallery -o docs/gallery"
)]
pub struct PlotArgs {
    #[command(subcommand)]
    pub command: Option<PlotCommand>,
    #[command(flatten)]
    pub chart: Option<ChartArgs>,
}

#[derive(Subcommand)]
pub enum PlotCommand {
    /// Make every kind of picture, its data and a page that shows them.
    Gallery {
        /// Folder of the pictures.
        #[arg(short, long, value_name = "FOLDER")]
        output: PathBuf,
    },
}

#[derive(Args)]
pub struct ChartArgs {
    /// What to draw.
    #[arg(value_enum)]
    pub kind: Kind,
    /// Rows of `ringlab sweep`, of a kernel benchmark or of a paper, or the points of `ringlab validate`.
    #[arg(value_name = "FILE.csv|FILE.json")]
    pub file: PathBuf,
    /// Picture to write: SVG or PNG by its ending.
    #[arg(short, long, value_name = "FILE.svg|FILE.png")]
    pub output: PathBuf,
    /// Column along the picture [default: seq_len; link_bandwidth_bytes_per_s for exposed].
    #[arg(long, value_name = "COLUMN")]
    pub x: Option<String>,
    /// Column up a map [default: cp].
    #[arg(long, value_name = "COLUMN")]
    pub y: Option<String>,
    /// Column whose values are lines [default: schedule].
    #[arg(long, value_name = "COLUMN")]
    pub by: Option<String>,
    /// Only rows of this value; numbers may have a suffix, such as 128Ki.
    #[arg(long = "where", value_name = "COLUMN=VALUE", value_parser = condition)]
    pub only: Vec<(String, String)>,
    /// Above the picture [default: what all rows have in common].
    #[arg(long)]
    pub title: Option<String>,
}

impl ChartArgs {
    /// Where the data in the picture go.
    pub fn data(&self) -> PathBuf {
        self.output.with_extension("data.csv")
    }
}

fn condition(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((column, value)) if !column.is_empty() => Ok((column.to_owned(), value.to_owned())),
        _ => Err("write COLUMN=VALUE, such as cp=8".into()),
    }
}
