//! The kernel families against the bars that they were fitted on.

use ringlab_experiments::presets;
use ringlab_sim::config::cluster::Cluster;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::{Context, Grid, KernelFamily, Training, attention};
use serde::Deserialize;

#[derive(Deserialize)]
struct Bar {
    gpu: String,
    r#impl: String,
    head_dim: u64,
    causal: String,
    pass: String,
    seq: String,
    #[serde(rename = "TFLOPs")]
    printed: String,
}

fn bars(text: &str) -> Vec<Bar> {
    csv::Reader::from_reader(text.as_bytes()).deserialize().map(Result::unwrap).collect()
}

/// Printed over predicted minus one, for 16K tokens of heads that make up 2048.
fn error(cluster: &Cluster, bar: &Bar) -> f64 {
    let seq: u64 = bar
        .seq
        .strip_suffix('k')
        .map_or_else(|| bar.seq.parse().unwrap(), |k| k.parse::<u64>().unwrap() << 10);
    let mut model = presets::model("llama-7b").unwrap();
    (model.heads, model.kv_heads, model.head_dim) = (2048 / bar.head_dim, 2048 / bar.head_dim, bar.head_dim);
    let causal = bar.causal == "yes";
    let training = Training {
        context: Context { causal, ..Context::new(Schedule::Ring) },
        micro_batch: 16384 / seq,
        ..Training::new(Grid::ONE, seq, Schedule::Ring)
    };
    let pass = if bar.pass == "fwd" { Pass::Forward } else { Pass::Backward };
    let time = attention::time(&model, cluster, &training, pass).unwrap().compute.as_secs_f64();
    let products = if bar.pass == "fwd" { 4.0 } else { 10.0 };
    let flops = products * 2048.0 * (seq * 16384) as f64 * if causal { 0.5 } else { 1.0 };
    flops / time / 1e12 / bar.printed.trim_end_matches('?').parse::<f64>().unwrap() - 1.0
}

#[test]
fn families_are_near_their_bars() {
    let all = bars(include_str!("../../papers/kernels/flash_attention_3.csv"));
    let h100 = presets::cluster("dgx-h100").unwrap();
    for (family, name) in [(KernelFamily::FlashAttention2H100, "FA2"), (KernelFamily::CudnnH100, "cuDNN")] {
        let cluster = family.on(&h100);
        let has = |bar: &&Bar| {
            bar.gpu == "H100"
                && bar.r#impl == name
                && (bar.head_dim < 256 || name == "cuDNN" && bar.pass == "fwd")
        };
        let errors: Vec<f64> = all.iter().filter(has).map(|bar| error(&cluster, bar)).collect();
        let rms = (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt();
        assert!(errors.len() >= 36 && rms < 0.06, "{name}: {} bars, rms {rms:.3}", errors.len());
    }
}

/// A cluster with another family reads back as itself: rates stay below the device's peak, sources are there.
#[test]
fn families_make_valid_clusters() {
    for (family, preset) in [
        (KernelFamily::FlashAttention1A100, "dgx-a100-80gb"),
        (KernelFamily::FlashAttention2H100, "dgx-h100"),
        (KernelFamily::CudnnH100, "dgx-h100"),
        (KernelFamily::CudnnH200, "hgx-h200"),
    ] {
        let cluster = family.on(&presets::cluster(preset).unwrap());
        assert_eq!(Cluster::parse("test", &cluster.to_toml()).unwrap(), cluster, "{}", family.name());
    }
}
