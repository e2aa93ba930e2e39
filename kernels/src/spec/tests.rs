use super::*;

const LO: [i32; 4] = [0; 4];
const HI: [i32; 4] = [0, 1, 2, 3];
const POS: [i32; 4] = [0, 1, 2, 3];

fn dims() -> Dims {
    Dims { dtype: Dtype::Bf16, head_dim: HeadDim::D64, heads: 4, kv_heads: 2, batch: 1 }
}

fn tensor(ptr: u64, heads: usize) -> Tensor {
    Tensor { ptr, strides: Strides::dense(4, heads, 64) }
}

fn segment() -> KeySegment<'static> {
    KeySegment { k: 0x2000, v: 0x3000, strides: Strides::dense(4, 2, 64), positions: &POS, ready: None }
}

fn forward() -> ForwardSpec<'static> {
    ForwardSpec {
        dims: dims(),
        scale: 0.125,
        q: tensor(0x1000, 4),
        mask: Intervals { lo: &LO, hi: &HI },
        segments: vec![segment()],
        order: WorkOrder::QueryMajor,
        carry: Carry::default(),
        output: Some(Finished { o: tensor(0x4000, 4), lse: 0x5000 }),
    }
}

fn backward() -> BackwardSpec<'static> {
    BackwardSpec {
        dims: dims(),
        scale: 0.125,
        q: tensor(0x1000, 4),
        d_o: tensor(0x4000, 4),
        lse: 0x5000,
        delta: 0x6000,
        mask: Intervals { lo: &LO, hi: &HI },
        segment: segment(),
        dq: tensor(0x7000, 4),
        dk: tensor(0x8000, 2),
        dv: 0x9000,
        start_dkv: false,
        deterministic: false,
    }
}

fn refused(change: impl Fn(&mut ForwardSpec<'static>)) -> SpecError {
    let mut spec = forward();
    change(&mut spec);
    spec.validate().expect_err("the spec is wrong")
}

#[test]
fn sound_specs_pass() {
    assert_eq!(forward().validate(), Ok(()));
    assert_eq!(backward().validate(), Ok(()));
}

#[test]
fn head_dimensions_without_kernels_are_named() {
    assert_eq!(HeadDim::try_from(128), Ok(HeadDim::D128));
    assert_eq!(
        HeadDim::try_from(96).unwrap_err().to_string(),
        "no kernel for head dimension 96; 64 and 128 have kernels"
    );
}

#[test]
fn sizes_are_checked() {
    assert_eq!(refused(|s| s.dims.kv_heads = 3), SpecError::Heads { heads: 4, kv_heads: 3 });
    assert_eq!(refused(|s| s.dims.kv_heads = 0), SpecError::Empty("kv_heads"));
    assert_eq!(refused(|s| s.mask = Intervals { lo: &[], hi: &[] }), SpecError::Empty("q_len"));
    assert_eq!(refused(|s| s.segments[0].positions = &[]), SpecError::Empty("segment length"));
    assert_eq!(refused(|s| s.segments.clear()), SpecError::Empty("segments"));
    assert_eq!(
        refused(|s| s.dims.batch = 40_000),
        SpecError::TooLarge { name: "batch", value: 40_000, limit: 32_768 }
    );
}

#[test]
fn addresses_and_strides_are_checked() {
    assert_eq!(refused(|s| s.q.ptr = 0), SpecError::Null("q"));
    assert_eq!(refused(|s| s.segments[0].v = 0x3008), SpecError::Misaligned { name: "v", value: 0x3008 });
    assert_eq!(refused(|s| s.q.strides.token = 260), SpecError::Misaligned { name: "q", value: 520 });
    assert_eq!(
        refused(|s| s.q.strides.token = 32),
        SpecError::Overlap { name: "q", axis: "token", value: 32, needed: 64 }
    );
    assert!(matches!(refused(|s| s.q.strides.batch = -8), SpecError::Overlap { axis: "batch", .. }));
    let ready = Some(ReadyFlag { ptr: 0x10_0002, value: 1, limit: Duration::from_secs(1) });
    assert!(matches!(refused(|s| s.segments[0].ready = ready), SpecError::Misaligned { name: "ready", .. }));
}

#[test]
fn masks_and_positions_are_checked() {
    let mask = |lo, hi| Intervals { lo, hi };
    assert_eq!(refused(|s| s.mask = mask(&LO, &[0, 1])), SpecError::MaskLength { lo: 4, hi: 2 });
    assert_eq!(refused(|s| s.mask = mask(&LO, &[0, 2, 1, 3])), SpecError::MaskOrder(2));
    assert_eq!(
        refused(|s| s.segments[0].positions = &[0, 1, 1, 3]),
        SpecError::PositionOrder { segment: 0, slot: 2 }
    );
    let twice = KeySegment { positions: &[3, 4, 5, 6], ..segment() };
    assert_eq!(refused(|s| s.segments.push(twice)), SpecError::PositionTwice(3));
    let mut interleaved = forward();
    interleaved.segments[0].positions = &[0, 2, 4, 6];
    interleaved.segments.push(KeySegment { positions: &[1, 3, 5, 7], ..segment() });
    assert_eq!(interleaved.validate(), Ok(()));
}

#[test]
fn scale_and_results_are_checked() {
    assert_eq!(refused(|s| s.scale = -1.0), SpecError::Scale("-1".into()));
    assert_eq!(refused(|s| s.scale = f32::NAN), SpecError::Scale("NaN".into()));
    assert_eq!(refused(|s| s.output = None), SpecError::NoResult);
    assert_eq!(refused(|s| s.carry.read = true), SpecError::NoState);
    assert_eq!(refused(|s| s.order = WorkOrder::SegmentMajor), SpecError::NoState);
}

#[test]
fn backward_tensors_are_checked() {
    let refused = |change: fn(&mut BackwardSpec<'static>)| {
        let mut spec = backward();
        change(&mut spec);
        spec.validate().expect_err("the spec is wrong")
    };
    assert_eq!(refused(|s| s.dims.kv_heads = 3), SpecError::Heads { heads: 4, kv_heads: 3 });
    assert_eq!(refused(|s| s.segment.k = 0x2008), SpecError::Misaligned { name: "k", value: 0x2008 });
    assert_eq!(refused(|s| s.dv = 0), SpecError::Null("dv"));
    assert_eq!(refused(|s| s.delta = 0x6002), SpecError::Misaligned { name: "delta", value: 0x6002 });
    assert_eq!(refused(|s| s.dq.ptr = 0x7004), SpecError::Misaligned { name: "dq", value: 0x7004 });
    assert!(matches!(
        refused(|s| s.dk.strides.head = 8),
        SpecError::Overlap { name: "dk", axis: "head", .. }
    ));
}
