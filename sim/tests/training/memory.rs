//! Memory against published parameter counts and formulas.

use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::{
    AttentionKernel, Checkpointing, Context, Grid, Materialised, Moment, Passes, Sharding, Stack, Training,
    layer_activations, layer_kept, longest, memory, over_time, stage_memory, stage_weights,
};
use ringlab_sim::units::Bytes;

use crate::support::{cluster, llama_7b, model};

fn plain(grid: Grid, seq: u64) -> Training {
    Training::new(grid, seq, Schedule::Ring)
}

/// The final norm is the only weight that the model leaves out.
#[test]
fn published_parameter_counts() {
    let count =
        |m: &ringlab_sim::config::model::Model| stage_weights(m, &plain(Grid::ONE, 1024), 0) + m.hidden;
    assert_eq!(count(&llama_7b()), 6_738_415_616);
    let llama3 =
        "layers = 32\nhidden = 4096\nheads = 32\nkv_heads = 8\nintermediate = 14336\nvocab = 128256\n";
    assert_eq!(count(&model(llama3)), 8_030_261_248);
    let mixtral = "layers = 32\nhidden = 4096\nheads = 32\nkv_heads = 8\nintermediate = 14336\nvocab = 32000\n\
                   experts = { count = 8, active = 2 }\n";
    assert_eq!(count(&model(mixtral)), 46_702_792_704);
}

/// ZeRO (arXiv 1910.02054), figure 1: 7.5 B weights on 64 replicas need 120, 31.4, 16.6 and 1.88 GB.
#[test]
fn the_figures_of_zero() {
    let m =
        model("layers = 24\nhidden = 5120\nheads = 40\nintermediate = 20480\nvocab = 1\ngated_mlp = false\n");
    let weights = stage_weights(&m, &plain(Grid::ONE, 1024), 0) as f64;
    for (sharding, gigabytes) in [
        (Sharding::None, 120.0),
        (Sharding::Optimizer, 31.4),
        (Sharding::Gradients, 16.6),
        (Sharding::Weights, 1.88),
    ] {
        let training = Training { sharding, ..plain(Grid { dp: 64, ..Grid::ONE }, 1024) };
        let found = memory(&m, &cluster(8), &training).unwrap();
        let state = (found.weights + found.gradients + found.optimizer).0 as f64;
        let scaled = state / weights * 7.5;
        assert!((scaled - gigabytes).abs() < 0.02 * gigabytes, "{sharding:?}: {scaled} for {gigabytes}");
    }
}

/// Megatron (arXiv 2205.05198), table 2, for 22B: s 2048, b 4, h 6144, a 64.
#[test]
fn megatrons_activation_formulas() {
    let (s, b, h, a) = (2048, 4, 6144, 64);
    let m = model(
        "layers = 48\nhidden = 6144\nheads = 64\nintermediate = 24576\nvocab = 51200\ngated_mlp = false\n",
    );
    let kernel = AttentionKernel::Materialised(Materialised::MEGATRON);
    let of = |tp, sequence_parallel, checkpointing| Training {
        context: Context { kernel, ..Context::new(Schedule::Ring) },
        micro_batch: b,
        stack: Stack::MEGATRON,
        sequence_parallel,
        checkpointing,
        ..plain(Grid::tensor(tp), s)
    };
    let kept = |t: &Training| layer_kept(&m, t);
    let (sbh, scores) = (s * b * h, 5 * a * s * s * b);
    assert_eq!(kept(&of(1, false, Checkpointing::None)), 34 * sbh + scores);
    assert_eq!(kept(&of(8, false, Checkpointing::None)), sbh * 10 + (sbh * 24 + scores) / 8);
    assert_eq!(kept(&of(8, true, Checkpointing::None)), (34 * sbh + scores) / 8);
    assert_eq!(kept(&of(8, false, Checkpointing::Selective)), sbh * 10 + sbh * 24 / 8);
    assert_eq!(kept(&of(8, true, Checkpointing::Selective)), 34 * sbh / 8);
    assert_eq!(kept(&of(8, false, Checkpointing::FullLayer)), 2 * sbh);
    let full = of(8, true, Checkpointing::FullLayer);
    assert_eq!(layer_activations(&m, &full, s * b), (34 * sbh + scores) / 8, "a layer at work needs all");
}

/// Two 16-bit tensors and a float a head instead of one tensor (arXiv 2310.03294, section 3.3).
#[test]
fn rematerialisation_aware_checkpoints_keep_one_output_more() {
    let (n, h) = (8 * 4096, 4096);
    let aware = Training { checkpointing: Checkpointing::RematAware, ..plain(Grid::ring(8), n) };
    let full = Training { checkpointing: Checkpointing::FullLayer, ..aware };
    assert_eq!(layer_kept(&llama_7b(), &full), 4096 * 2 * h);
    assert_eq!(layer_kept(&llama_7b(), &aware), 4096 * (2 * h + 2 * h + 4 * 32));
}

/// 1F1B keeps pp - stage micro-batches, the first stage of an interleaved pipeline 1 + (pp-1)/(pp v) times more
/// (arXiv 2205.05198, section 4.2.3).
#[test]
fn pipelines_hold_micro_batches_in_flight() {
    let of = |interleave| Training {
        micro_batches: 64,
        checkpointing: Checkpointing::FullLayer,
        ..plain(Grid { pp: 8, interleave, ..Grid::ONE }, 4096)
    };
    let activations =
        |t: &Training, stage| stage_memory(&llama_7b(), &cluster(1), t, stage).unwrap().activations.0;
    let layer = layer_kept(&llama_7b(), &of(1));
    assert_eq!(activations(&of(1), 0), 32 * layer);
    assert_eq!(activations(&of(1), 7), 4 * layer);
    let interleaved = activations(&of(4), 0) as f64 / (32 * layer) as f64;
    assert!((interleaved - (1.0 + 7.0 / 32.0)).abs() < 1e-9, "{interleaved}");
    let few = Training { micro_batches: 2, ..of(1) };
    assert_eq!(activations(&few, 0), 2 * 4 * layer, "never more than there are");
}

#[test]
fn the_longest_sequence_fits_and_the_next_does_not() {
    let (m, c) = (llama_7b(), cluster(1));
    for checkpointing in [Checkpointing::None, Checkpointing::FullLayer, Checkpointing::RematAware] {
        let training = Training { checkpointing, ..plain(Grid::ring(8), 0) };
        let found = longest(&m, &c, &training).unwrap();
        let over = |seq| memory(&m, &c, &Training { seq, ..training }).unwrap().over;
        assert_eq!(over(found.exact), None);
        assert!(over(found.exact + found.multiple).is_some());
        assert_eq!(over(found.power_of_two), None);
        assert!(over(2 * found.power_of_two).is_some());
        assert!(found.power_of_two.is_power_of_two() && found.exact >= found.power_of_two);
    }
}

#[test]
fn what_is_missing_is_the_total_over_the_capacity() {
    let training = plain(Grid::ring(8), 1 << 22);
    let found = memory(&llama_7b(), &cluster(1), &training).unwrap();
    let parts = found.weights + found.gradients + found.optimizer + found.activations + found.reserved;
    let phase = Bytes(found.logits.0.max(found.working.0 + found.attention.0));
    assert_eq!(found.total, parts + phase);
    assert_eq!(found.over, Some(Bytes(found.total.0 - 80_000_000_000)));
}

/// The largest moment is the peak; activations grow by a layer's and are gone at the end.
#[test]
fn memory_over_time_reaches_its_peak_once_and_goes_back() {
    let (m, c) = (llama_7b(), cluster(1));
    for checkpointing in
        [Checkpointing::None, Checkpointing::Selective, Checkpointing::FullLayer, Checkpointing::RematAware]
    {
        for passes in [Passes::Forward, Passes::ForwardBackward] {
            let base = Training::new(Grid::ring(8), 1 << 15, Schedule::Zigzag);
            let training = Training { checkpointing, passes, ..base };
            let moments = over_time(&m, &c, &training).unwrap();
            let peak = memory(&m, &c, &training).unwrap();
            let largest = moments.iter().map(Moment::total).max().unwrap();
            let trains = passes == Passes::ForwardBackward;
            if trains {
                assert_eq!(largest, peak.total, "{checkpointing:?}");
                assert_eq!(moments.len(), 1 + 32 + 1 + 32 + 1);
                assert_eq!(moments[0].total(), moments[66].total());
                assert_eq!(moments[32].activations.0, 32 * layer_kept(&m, &training));
            } else {
                assert!(largest <= peak.total);
            }
            assert!(moments.is_sorted_by_key(|m| m.at));
        }
    }
}
