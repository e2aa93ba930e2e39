//! What a rank sends, in closed form.

use ringlab_sim::plan::{OpKind, Partials, Tensor};
use ringlab_sim::problem::{Dtype, Pass, Shape};
use ringlab_sim::schedule::{Options, Route, Schedule, build};

use crate::support::{Terms, causal, plan, sent, shape};

/// Tokens a rank, a multiple of what every layout needs.
const C: u64 = 48;

#[test]
fn the_ring_passes_on_all_keys_and_gets_its_gradients_home() {
    for p in 1..=9 {
        let s = shape(8, 2);
        let t = Terms::of(&s, C);
        for schedule in [Schedule::Ring, Schedule::Zigzag, Schedule::Striped { block: 1 }] {
            let problem = causal(s, C * u64::from(p));
            let (forward, backward) =
                (plan(schedule, &problem, p, Pass::Forward), plan(schedule, &problem, p, Pass::Backward));
            for r in 0..p {
                let hops = u64::from(p) - 1;
                assert_eq!(forward.bytes_sent(r).0, hops * t.kv);
                let home = if p > 1 { u64::from(p) * t.dkv } else { 0 };
                assert_eq!(backward.bytes_sent(r).0, hops * t.kv + home);
            }
        }
    }
}

#[test]
fn dist_flash_sends_what_the_paper_lists() {
    #[derive(serde::Deserialize)]
    struct Row {
        rank: u32,
        kv_sends: usize,
        q_sends: usize,
        o_returns: usize,
    }
    let table = include_bytes!("../../../experiments/papers/distflashattn/sends_p8.csv");
    let rows = csv::Reader::from_reader(&table[..]).into_deserialize().map(Result::unwrap);
    let plan = plan(Schedule::DistFlash, &causal(shape(8, 8), C * 8), 8, Pass::Forward);
    let count = |rank, tensor| plan.messages.iter().filter(|m| m.from == rank && m.tensor == tensor).count();
    let rows: Vec<Row> = rows.collect();
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert_eq!(count(row.rank, Tensor::KeyValue), row.kv_sends, "keys of rank {}", row.rank);
        assert_eq!(count(row.rank, Tensor::Query), row.q_sends, "queries of rank {}", row.rank);
        assert_eq!(count(row.rank, Tensor::State), row.o_returns, "results of rank {}", row.rank);
    }
}

#[test]
fn ulysses_sends_all_but_its_own_share() {
    for (heads, kv_heads, p) in
        [(8, 8, 1), (8, 8, 2), (24, 12, 3), (32, 8, 8), (32, 8, 4), (32, 8, 16), (16, 1, 16)]
    {
        let s = shape(heads, kv_heads);
        let t = Terms::of(&s, C);
        let problem = causal(s, C * u64::from(p));
        let (forward, backward) = (
            plan(Schedule::Ulysses, &problem, p, Pass::Forward),
            plan(Schedule::Ulysses, &problem, p, Pass::Backward),
        );
        let p = u64::from(p);
        let copies = (p / u64::from(kv_heads)).max(1);
        let share = |bytes: u64| (p - 1) * bytes / p;
        for r in 0..p as u32 {
            assert_eq!(forward.bytes_sent(r).0, share(2 * t.qo + t.lse + copies * t.kv));
            assert_eq!(sent(&forward, r, Tensor::KeyValue), share(copies * t.kv));
            assert_eq!(backward.bytes_sent(r).0, share(t.qo + t.dq + copies * t.dkv));
        }
    }
}

#[test]
fn all_gather_sends_every_share_once_and_twice_in_the_backward() {
    for p in 1..=9 {
        for route in [Route::Neighbour, Route::Direct] {
            for zigzag in [false, true] {
                let bf16 = shape(8, 2);
                for s in [bf16, Shape { dtype: Dtype::Fp32, ..bf16 }] {
                    let (t, hops) = (Terms::of(&s, C), u64::from(p) - 1);
                    let [forward, backward] = [Pass::Forward, Pass::Backward].map(|pass| {
                        let options = Options { route, ..Options::new(pass) };
                        build(Schedule::AllGather { zigzag }, &causal(s, C * u64::from(p)), p, &options)
                            .unwrap()
                    });
                    for r in 0..p {
                        assert_eq!(forward.bytes_sent(r).0, hops * t.kv);
                        assert_eq!(backward.bytes_sent(r).0, hops * (t.kv + t.dkv));
                        if s.dtype == Dtype::Fp32 {
                            assert_eq!(
                                backward.bytes_sent(r).0,
                                2 * hops * t.kv,
                                "2 (P-1) kv in one element type"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn windows_add_a_hop_of_gradients_each() {
    for (p, w) in [(1, 1), (8, 8), (8, 2), (12, 3), (6, 1)] {
        for rail in [false, true] {
            let (s, windows) = (shape(8, 2), p / w);
            let t = Terms::of(&s, C);
            let schedule = Schedule::DoubleRing { window: Some(w), rail };
            let [forward, backward] = [Pass::Forward, Pass::Backward]
                .map(|pass| plan(schedule, &causal(s, C * u64::from(p)), p, pass));
            let around_windows = if w > 1 { p } else { 0 };
            let between_windows = if windows > 1 { windows } else { 0 };
            for r in 0..p {
                let keys = u64::from(p - 1) * t.kv;
                assert_eq!(forward.bytes_sent(r).0, keys, "P {p} w {w}");
                let home = u64::from(around_windows + between_windows) * t.dkv;
                assert_eq!(backward.bytes_sent(r).0, keys + home, "P {p} w {w}");
                let node = |rank: u32| rank / w;
                let leaves = forward.messages.iter().filter(|m| m.from == r && node(m.from) != node(m.to));
                assert_eq!(leaves.map(|m| m.bytes.0).sum::<u64>(), u64::from(windows - 1) * t.kv);
            }
        }
    }
}

#[test]
fn a_grid_sends_what_its_all_to_all_and_its_ring_send() {
    for (u, ring, kv_heads) in [(1, 8, 8), (8, 1, 8), (2, 4, 8), (4, 2, 2), (3, 2, 12), (8, 2, 4)] {
        for across in [false, true] {
            let (s, p) = (shape(24, kv_heads), u * ring);
            let t = Terms::of(&s, C);
            let schedule = Schedule::Usp { grid: Some((u, ring)), across };
            let [forward, backward] = [Pass::Forward, Pass::Backward]
                .map(|pass| plan(schedule, &causal(s, C * u64::from(p)), p, pass));
            let copies = u64::from((u / kv_heads).max(1));
            let (u, ring) = (u64::from(u), u64::from(ring));
            let share = |bytes: u64| (u - 1) * bytes / u;
            let home = if ring > 1 { ring * copies * t.dkv } else { 0 };
            for r in 0..p {
                let keys = (ring - 1) * copies * t.kv;
                assert_eq!(forward.bytes_sent(r).0, share(2 * t.qo + t.lse + copies * t.kv) + keys);
                assert_eq!(backward.bytes_sent(r).0, share(t.qo + t.dq + copies * t.dkv) + keys + home);
            }
        }
    }
}

#[test]
fn megatron_moves_whole_tokens_twice_each_way() {
    for (heads, kv_heads, p) in [(8, 8, 8), (32, 8, 4), (33, 33, 8), (33, 33, 16), (7, 1, 3), (5, 5, 1)] {
        for route in [Route::Neighbour, Route::Direct] {
            let s = shape(heads, kv_heads);
            let tokens = C * u64::from(p);
            let hidden = tokens * u64::from(heads * s.head_dim) * s.dtype.size().0;
            for pass in [Pass::Forward, Pass::Backward] {
                let options = Options { route, ..Options::new(pass) };
                let plan = build(Schedule::MegatronSp, &causal(s, tokens), p, &options).unwrap();
                for r in 0..p {
                    assert_eq!(plan.bytes_sent(r).0, 2 * (u64::from(p) - 1) * hidden / u64::from(p));
                }
            }
        }
    }
}

#[test]
fn megatron_says_how_many_heads_it_pads() {
    let notes =
        |heads, p| plan(Schedule::MegatronSp, &causal(shape(heads, heads), C * 16), p, Pass::Forward).notes;
    let said = |heads, p, text: &str| notes(heads, p).iter().any(|n| n.starts_with(text));
    assert!(said(33, 8, "33 heads are padded to 40, a multiple of 8: 17.5%"));
    assert!(said(33, 16, "33 heads are padded to 48, a multiple of 16: 31.2%"));
    assert!(!notes(32, 8).iter().any(|n| n.contains("padded")));
}

/// The busiest rank has as many heads as padding would give every rank.
#[test]
fn megatron_takes_the_time_of_padded_heads() {
    for (heads, p) in [(33, 8), (33, 16), (32, 8), (9, 2)] {
        let plan =
            plan(Schedule::MegatronSp, &causal(shape(heads, heads), C * u64::from(p)), p, Pass::Forward);
        let of_op = |kind: &OpKind| match *kind {
            OpKind::Attend { q_block, .. } => plan.block(q_block).heads.count,
            _ => 0,
        };
        let most = plan
            .programs
            .iter()
            .map(|program| program.ops.iter().map(|op| of_op(&op.kind)).sum::<u32>())
            .max();
        assert_eq!(most, Some(heads.div_ceil(p)));
    }
}

/// q-side tensors travel whole, dq all the way round.
fn burst(t: &Terms, p: u64) -> u64 {
    let delta = t.lse;
    (p - 1) * (2 * t.qo + t.lse + delta) + p * t.dq
}

#[test]
fn burst_moves_queries_instead_of_keys() {
    for p in 2..=9 {
        for zigzag in [false, true] {
            let s = shape(8, 2);
            let t = Terms::of(&s, C);
            let problem = causal(s, C * u64::from(p));
            let plan = plan(Schedule::Burst { zigzag }, &problem, p, Pass::Backward);
            for r in 0..p {
                assert_eq!(plan.bytes_sent(r).0, burst(&t, u64::from(p)));
            }
        }
    }
}

/// In one element type `(P-1) 2 qo + P qo` is 3.1 times the `2 (P-1) kv` of a backward that moves keys, at four query
/// heads a kv head; without grouping it is less.
#[test]
fn grouped_heads_turn_burst_around() {
    let ratio = |kv_heads| {
        let s = Shape { dtype: Dtype::Fp32, head_dim: 128, ..shape(32, kv_heads) };
        let problem = causal(s, C * 8);
        let sent = |schedule| plan(schedule, &problem, 8, Pass::Backward).bytes_sent(0).0 as f64;
        sent(Schedule::Burst { zigzag: false }) / sent(Schedule::AllGather { zigzag: false })
    };
    // lse and delta are a number a row each, 1/128 of qo and so 1/64 of kv.
    assert!((ratio(8) - (44.0 / 14.0 + 1.0 / 64.0)).abs() < 1e-9, "3.1x: {}", ratio(8));
    assert!(ratio(16) > 1.0 && ratio(32) < 1.0, "cheaper only from K/H = 3/4 on");
}

#[test]
fn ring_self_attention_passes_on_keys_then_values() {
    for p in 1..=9u64 {
        let s = shape(8, 2);
        let t = Terms::of(&s, C);
        let problem = causal(s, C * p);
        let [forward, backward] = [Pass::Forward, Pass::Backward]
            .map(|pass| plan(Schedule::RingSelfAttention, &problem, p as u32, pass));
        for r in 0..p as u32 {
            for tensor in [Tensor::Key, Tensor::Value] {
                assert_eq!(sent(&forward, r, tensor), (p - 1) * t.kv / 2);
                assert_eq!(sent(&backward, r, tensor), (p - 1) * t.kv / 2);
            }
            assert_eq!(forward.bytes_sent(r).0, (p - 1) * t.kv);
            assert_eq!(
                backward.bytes_sent(r).0,
                (p - 1) * (t.kv + t.dkv),
                "a reduce-scatter of dk and of dv"
            );
        }
    }
}

/// c N numbers a head forward; backward those of the probabilities and of their gradients.
#[test]
fn ring_self_attention_keeps_whole_rows() {
    for p in [1u64, 4, 8] {
        let s = shape(8, 2);
        let problem = causal(s, C * p);
        let rows = |pass| -> u64 {
            let plan = plan(Schedule::RingSelfAttention, &problem, p as u32, pass);
            let all = plan.programs[0].buffers.iter().filter(|b| matches!(b.tensor, Tensor::Scores { .. }));
            all.map(|b| b.bytes.0).sum()
        };
        let elements = C * C * p * 8;
        assert_eq!((rows(Pass::Forward), rows(Pass::Backward)), (4 * elements, 8 * elements));
        let whole = plan(Schedule::RingSelfAttention, &problem, p as u32, Pass::Forward);
        let ring = plan(Schedule::Ring, &problem, p as u32, Pass::Forward);
        let peak = |plan: &ringlab_sim::plan::Plan| plan.programs[0].peak_memory().0;
        assert_eq!(
            peak(&whole) - peak(&ring),
            4 * elements,
            "keys and values take the room of keys with values"
        );
    }
}

/// o, dq, dk and dv in two bytes instead of four; statistics, keys and queries as before.
#[test]
fn partial_results_halve_in_the_element_type() {
    let (s, p) = (shape(8, 2), 8);
    let problem = causal(s, C * u64::from(p));
    let bytes = |schedule, pass, partials, tensor| {
        let plan = build(schedule, &problem, p, &Options { partials, ..Options::new(pass) }).unwrap();
        ringlab_sim::check::prove(&plan).expect("a correct plan");
        plan.messages.iter().filter(|m| m.tensor == tensor).map(|m| m.bytes.0).sum::<u64>()
    };
    let both = |schedule, pass, tensor| {
        [Partials::Fp32, Partials::Element].map(|partials| bytes(schedule, pass, partials, tensor))
    };
    let [whole, half] = both(Schedule::DistFlash, Pass::Forward, Tensor::State);
    let d = u64::from(s.head_dim);
    assert_eq!(whole * (2 * d + 8), half * (4 * d + 8));
    for (schedule, tensor) in [
        (Schedule::Ring, Tensor::KeyValueGrad),
        (Schedule::DistFlash, Tensor::QueryGrad),
        (Schedule::RingSelfAttention, Tensor::ValueGrad),
    ] {
        let [whole, half] = both(schedule, Pass::Backward, tensor);
        assert_eq!(whole, 2 * half, "{schedule}");
    }
    let [whole, half] = both(Schedule::Ring, Pass::Backward, Tensor::KeyValue);
    assert_eq!(whole, half);
}
