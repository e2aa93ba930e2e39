//! Kernel rows against the published rates they were fitted to, by a list scheduler of its own.

use ringlab_experiments::presets;
use ringlab_sim::config::Keyword;
use ringlab_sim::config::cluster::{Cluster, Dtype, KernelRow, Pass};

/// One published call: heads of all sequences together, sequence length, causal or not.
#[derive(Clone, Copy)]
struct Call {
    heads: usize,
    len: u32,
    causal: bool,
}

impl Call {
    /// The papers' sizes: 16K tokens, heads times dimension 2048.
    fn of_16k_tokens(len: u32, causal: bool, head_dim: u32) -> Self {
        Self { heads: ((16_384 / len).max(1) * 2048 / head_dim) as usize, len, causal }
    }

    fn flops(self, row: &KernelRow) -> f64 {
        let pairs = f64::from(self.len) * f64::from(self.len) * if self.causal { 0.5 } else { 1.0 };
        self.heads as f64 * pairs * operations(row)
    }
}

/// Operations of one query-key pair.
fn operations(row: &KernelRow) -> f64 {
    f64::from(row.head_dim) * if row.pass == Pass::Forward { 4.0 } else { 10.0 }
}

/// Seconds of each work item of one head, by looking at every tile.
fn items(row: &KernelRow, call: Call, sms: u32) -> Vec<f64> {
    let forward = row.pass == Pass::Forward;
    let (outer, inner) = if forward { (row.tile_q, row.tile_kv) } else { (row.tile_kv, row.tile_q) };
    let full = operations(row) * f64::from(outer) * f64::from(inner) * f64::from(sms) / row.rate.0;
    let fixed = (row.prologue + row.epilogue).as_secs_f64();
    let cost = |o: u32, i: u32| {
        let (q, kv) = if forward { (o, i) } else { (i, o) };
        let (q_size, kv_size) = (row.tile_q, row.tile_kv);
        let empty = call.causal && kv > q + q_size - 1;
        let cut = call.causal && kv + kv_size - 1 > q;
        match (empty, cut) {
            (true, _) => 0.0,
            (false, true) => full * row.partial_tile_cost,
            (false, false) => full,
        }
    };
    let starts = |size: u32| (0..call.len).step_by(size as usize);
    starts(outer).map(|o| fixed + starts(inner).map(|i| cost(o, i)).sum::<f64>()).collect()
}

/// Seconds of the call: items longest first, each on the SM that is free first.
fn seconds(row: &KernelRow, call: Call, sms: u32) -> f64 {
    let mut items = items(row, call, sms);
    items.sort_by(|a, b| b.total_cmp(a));
    let mut free = vec![0.0_f64; sms as usize];
    for item in items.iter().flat_map(|&item| std::iter::repeat_n(item, call.heads)) {
        let first = (0..free.len()).min_by(|&a, &b| free[a].total_cmp(&free[b])).expect("SMs");
        free[first] += item;
    }
    free.into_iter().fold(0.0, f64::max)
}

fn row(cluster: &Cluster, head_dim: u32, pass: Pass) -> &KernelRow {
    cluster.kernel(head_dim, Dtype::Bf16, pass).expect("a row")
}

fn assert_close(predicted: f64, published: f64, tolerance: f64, what: &str) {
    let error = predicted / published - 1.0;
    assert!(error.abs() < tolerance, "{what}: {predicted:.0} TFLOP/s against {published}");
}

/// Cluster, head dimension, pass, tolerance, and points (length, causal, TFLOP/s) of its figure.
type Figure = (&'static str, u32, Pass, f64, &'static [(u32, bool, f64)]);

const FIGURES: &[Figure] = &[
    // FlashAttention-3 paper, H100.
    (
        "dgx-h100",
        128,
        Pass::Forward,
        0.06,
        &[
            (512, false, 467.0),
            (4096, false, 638.0),
            (16384, false, 648.0),
            (512, true, 292.0),
            (16384, true, 616.0),
        ],
    ),
    ("dgx-h100", 64, Pass::Forward, 0.04, &[(512, false, 333.0), (16384, false, 497.0), (2048, true, 371.0)]),
    (
        "dgx-h100",
        256,
        Pass::Forward,
        0.13,
        &[(512, false, 482.0), (16384, false, 756.0), (16384, true, 642.0)],
    ),
    (
        "dgx-h100",
        128,
        Pass::Backward,
        0.03,
        &[(512, false, 316.0), (4096, false, 542.0), (16384, false, 561.0)],
    ),
    ("dgx-h100", 64, Pass::Backward, 0.03, &[(512, false, 272.0), (16384, false, 474.0)]),
    // FlashAttention-3 and -4 wheels measured on an H200.
    (
        "hgx-h200",
        128,
        Pass::Forward,
        0.06,
        &[
            (2048, false, 540.0),
            (16384, false, 675.0),
            (2048, true, 417.0),
            (16384, true, 662.0),
            (65536, true, 662.0),
        ],
    ),
    (
        "hgx-h200",
        128,
        Pass::Backward,
        0.035,
        &[(8192, false, 591.0), (65536, false, 624.0), (8192, true, 507.0)],
    ),
    ("hgx-h200", 64, Pass::Backward, 0.01, &[(16384, false, 510.0), (16384, true, 496.0)]),
];

#[test]
fn fitted_rows_reproduce_their_figures() {
    for &(name, head_dim, pass, tolerance, points) in FIGURES {
        let cluster = presets::cluster(name).expect(name);
        let row = row(&cluster, head_dim, pass);
        for &(len, causal, published) in points {
            let call = Call::of_16k_tokens(len, causal, head_dim);
            let predicted = call.flops(row) / seconds(row, call, cluster.device.sms) / 1e12;
            assert_close(
                predicted,
                published,
                tolerance,
                &format!("{name} {head_dim} {} {len} {causal}", pass.name()),
            );
        }
    }
}

#[test]
fn a100_rows_reproduce_both_passes_together() {
    let cluster = presets::cluster("dgx-a100-80gb").expect("preset");
    let figures = [
        (128, [(512, false, 151.0), (16384, false, 203.0), (512, true, 99.0), (16384, true, 189.0)]),
        (64, [(512, false, 132.0), (16384, false, 176.0), (512, true, 88.0), (16384, true, 171.0)]),
    ];
    for (head_dim, points) in figures {
        let passes = [Pass::Forward, Pass::Backward].map(|pass| row(&cluster, head_dim, pass));
        for (len, causal, published) in points {
            let call = Call::of_16k_tokens(len, causal, head_dim);
            let flops: f64 = passes.iter().map(|row| call.flops(row)).sum();
            let time: f64 = passes.iter().map(|row| seconds(row, call, cluster.device.sms)).sum();
            assert_close(flops / time / 1e12, published, 0.035, &format!("{head_dim} {len} {causal}"));
        }
    }
}

#[test]
fn b200_rows_reproduce_their_two_points() {
    let cluster = presets::cluster("dgx-b200").expect("preset");
    let published = [(Pass::Forward, 1534.8, 1418.1), (Pass::Backward, 1359.8, 1208.6)];
    for (pass, full, causal) in published {
        let row = row(&cluster, 128, pass);
        for (causal, published) in [(false, full), (true, causal)] {
            let call = Call { heads: 64, len: 8192, causal };
            let predicted = call.flops(row) / seconds(row, call, cluster.device.sms) / 1e12;
            assert_close(predicted, published, 0.005, &format!("{} {causal}", pass.name()));
        }
    }
}
