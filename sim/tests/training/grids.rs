//! Illegal grids are refused with the legal ones.

use ringlab_sim::schedule::Schedule;
use ringlab_sim::training::{Grid, GridError, Training, TrainingError, legal_contexts, predict};

use crate::support::{cluster, llama_7b, model};

#[test]
fn forty_heads_on_sixteen_ranks() {
    // 40 = 8 * 5: sixteen does not divide it.
    assert_eq!(legal_contexts(40, 1, 16), [(1, 16), (2, 8), (4, 4), (8, 2)]);
    let m = model("layers = 4\nhidden = 5120\nheads = 40\nkv_heads = 8\nintermediate = 64\nvocab = 64\n");
    let error = Grid::ulysses(16).validate(&m, &cluster(2), false).unwrap_err().to_string();
    assert!(error.contains("1x16, 2x8, 4x4, 8x2"), "{error}");
    assert!(Grid { ulysses: 8, ring: 2, ..Grid::ulysses(16) }.validate(&m, &cluster(2), false).is_ok());
    assert!(Grid::ulysses(16).validate(&m, &cluster(2), true).is_ok(), "padding allows it");
}

#[test]
fn every_refusal_says_what_is_legal() {
    let m = llama_7b();
    let refuse = |grid: Grid, nodes: u32, text: &str| {
        let error = grid.validate(&m, &cluster(nodes), false).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    refuse(Grid { ulysses: 2, ring: 3, ..Grid::ring(8) }, 1, "ulysses 2 x ring 3 is not cp 8");
    refuse(Grid { ulysses: 2, ring: 3, ..Grid::ring(8) }, 1, "1x8, 2x4, 4x2, 8x1");
    refuse(Grid { tp: 2, ..Grid::ring(8) }, 1, "16 GPUs, but cluster `test` has 8");
    refuse(Grid { tp: 2, ..Grid::ring(2) }, 1, "legal dp: 2");
    refuse(Grid { dp: 1, ..Grid::tensor(3) }, 1, "legal");
    refuse(Grid { pp: 16, interleave: 3, ..Grid::ONE }, 2, "legal products: 1, 2, 4, 8, 16, 32");
    refuse(Grid { experts: 2, ..Grid::ring(8) }, 1, "experts");
    refuse(Grid { pp: 0, ..Grid::ONE }, 1, "pipeline degree must be at least 1");
}

#[test]
fn a_tensor_group_tiles_nodes() {
    let m = model("layers = 4\nhidden = 1536\nheads = 12\nintermediate = 64\nvocab = 64\n");
    let grid = Grid { dp: 2, ..Grid::tensor(12) };
    let error = grid.validate(&m, &cluster(3), false).unwrap_err();
    assert!(matches!(error, GridError::Nodes { .. }), "{error}");
    assert!(error.to_string().contains("1, 2, 4, 8"), "{error}");
}

#[test]
fn nothing_to_train_on_is_an_error() {
    let empty = Training { seq: 0, ..Training::new(Grid::ring(8), 1024, Schedule::Ring) };
    let error = predict(&llama_7b(), &cluster(1), &empty).unwrap_err();
    assert_eq!(error, TrainingError::Zero("the sequence"));
}
