use super::*;
use ringlab_sim::config::cluster::{Dtype, Grid, KernelUse};
use ringlab_sim::tiles::TileShape;

fn kernel(kv: u64, used_for: Option<KernelUse>) -> MachineKernel {
    MachineKernel {
        name: "test".into(),
        head_dim: 128,
        dtype: Dtype::Bf16,
        pass: Pass::Forward,
        tile: TileShape { q: 128, kv },
        items: Items::QueryTiles,
        grid: Grid::Persistent,
        used_for,
        sections: None,
        fitted_above: 0,
    }
}

#[test]
fn tiles_that_cannot_be_told_apart_count_the_same() {
    // Call, item, full, partial, carry; partial tiles take `partial` times as long as full ones.
    let samples = |partial: f64| -> Vec<Sample> {
        let factors = [
            [1.0, 1.0, 10.0, 1.0, 0.0],
            [1.0, 2.0, 10.0, 8.0, 2.0],
            [1.0, 4.0, 80.0, 3.0, 0.0],
            [3.0, 4.0, 200.0, 90.0, 4.0],
            [1.0, 9.0, 20.0, 1.0, 0.0],
            [1.0, 1.0, 90.0, 50.0, 0.0],
        ];
        let constants = [5.0, 2.0, 1.0, partial, 0.5];
        let time = |f: &[f64; 5]| f.iter().zip(constants).map(|(f, c)| f * c).sum::<f64>();
        let sample = |f: &[f64; 5]| Sample {
            probe: String::new(),
            factors: f.to_vec(),
            seconds: time(f),
            spread: 0.0,
        };
        factors.iter().map(sample).collect()
    };
    let (fit, are_apart) = fitted(&samples(1.5)).unwrap();
    assert!(are_apart && (fit.constants[PARTIAL] - 1.5).abs() < 1e-9, "{fit:?}");
    let (fit, are_apart) = fitted(&samples(-0.2)).unwrap();
    assert!(!are_apart && fit.constants[PARTIAL] == fit.constants[FULL] && fit.constants[FULL] > 0.0);
    assert_eq!(fit.constants.len(), 5);
}

#[test]
fn every_row_is_fitted_from_its_own_calls() {
    let used_for = KernelUse { min_keys: 32 << 10, or_visited: 0.9, above_keys: 2 << 10 };
    let kernels = [kernel(128, None), kernel(176, Some(used_for))];
    let sizes = [1, 2, 4, 8, 16, 32].map(|ki: u64| ki << 10);
    let [narrow, wide] = [0, 1].map(|i| {
        let probes = probes_of(&kernels, &kernels[i], &sizes);
        let sizes = |probe| -> Vec<u64> {
            probes.iter().filter(|(p, _)| *p == probe).map(|(_, tokens)| tokens >> 10).collect()
        };
        [Probe::Call(Pattern::Full), Probe::Call(Pattern::Causal), Probe::FewKeys, Probe::Carried].map(sizes)
    });
    // Full above 2Ki keys and causal from 32Ki on are wide; of few keys there is an eighth of the tokens.
    assert_eq!(narrow, [vec![1, 2], vec![1, 2, 4, 8, 16], vec![1, 2, 4, 8, 16], vec![1, 2]]);
    assert_eq!(wide, [vec![4, 8, 16, 32], vec![32, 48, 64], vec![32], vec![4, 8, 16, 32]]);
    // Without a second row every call is the first one's.
    let all = probes_of(&kernels[..1], &kernels[0], &sizes);
    assert_eq!(all.len(), 4 * sizes.len());
    // What runs another kernel up to 1Ki keys is not measured there: of few keys not up to 8Ki tokens.
    let short = MachineKernel { fitted_above: 1 << 10, ..kernel(128, None) };
    let left = probes_of(std::slice::from_ref(&short), &short, &sizes);
    let is_left_out =
        |&(probe, tokens): &(Probe, u64)| tokens == 1 << 10 || (probe == Probe::FewKeys && tokens <= 8 << 10);
    assert_eq!(left, all.into_iter().filter(|probe| !is_left_out(probe)).collect::<Vec<_>>());
}

#[test]
fn calls_of_shared_keys_are_fitted_where_items_surely_go_through_their_heads() {
    let backward = MachineKernel { pass: Pass::Backward, items: Items::KeyTiles, ..kernel(128, None) };
    let of = |tokens| probes_of(std::slice::from_ref(&backward), &backward, &[tokens]);
    let [full, causal] = [Pattern::Full, Pattern::Causal];
    let all = |tokens| [Probe::Call(full), Probe::Call(causal)].map(|probe| (probe, tokens)).to_vec();
    assert_eq!(of(8 << 10), all(8 << 10));
    let grouped = [Probe::Grouped(full), Probe::Grouped(causal)].map(|probe| (probe, 16 << 10));
    assert_eq!(of(16 << 10), [all(16 << 10), grouped.to_vec()].concat());
}
