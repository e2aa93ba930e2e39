use super::*;
use std::collections::HashMap;
use std::mem::{offset_of, size_of};

/// Size of a struct and the offset of each of its fields, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Layout {
    size: usize,
    fields: Vec<(String, usize)>,
}

macro_rules! layouts {
    ($($type:ident = $name:literal { $($field:ident),* })*) => {
        vec![$((
            $name,
            Layout {
                size: size_of::<$type>(),
                fields: vec![$((stringify!($field).to_owned(), offset_of!($type, $field))),*],
            },
        )),*]
    };
}

/// Layouts of the structs of a header by C's rules, as far as `interface.cuh` uses them.
fn parse(header: &str) -> HashMap<String, Layout> {
    let code: String =
        header.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let mut layouts: HashMap<String, Layout> = HashMap::new();
    for definition in code.split("struct ").skip(1) {
        let (name, rest) = definition.split_once('{').expect("a struct has a body");
        let body = rest.split('}').next().expect("a body ends");
        let mut layout = Layout { size: 0, fields: Vec::new() };
        let mut largest = 1;
        for declaration in body.split(';').map(str::trim).filter(|text| !text.is_empty()) {
            let (first, others) = declaration.split_once(',').unwrap_or((declaration, ""));
            let (kind, first) = first.rsplit_once(' ').expect("a type and a name");
            let (size, align) = extent(kind, &layouts);
            largest = largest.max(align);
            for field in
                [first].into_iter().chain(others.split(',')).map(str::trim).filter(|name| !name.is_empty())
            {
                let offset = layout.size.next_multiple_of(align);
                layout.fields.push((field.to_owned(), offset));
                layout.size = offset + size;
            }
        }
        layout.size = layout.size.next_multiple_of(largest);
        layouts.insert(name.trim().to_owned(), layout);
    }
    layouts
}

/// Size and alignment of a type.
fn extent(kind: &str, known: &HashMap<String, Layout>) -> (usize, usize) {
    match kind {
        _ if kind.ends_with('*') => (8, 8),
        "int" | "u32" | "float" => (4, 4),
        "i64" | "u64" => (8, 8),
        _ => (known.get(kind).unwrap_or_else(|| panic!("unknown type {kind}")).size, 8),
    }
}

#[test]
fn structs_match_the_header() {
    let host = layouts! {
        TileRange = "TileRange" { first, full_first, full_last, last }
        Strides = "Strides" { batch, token, head }
        Segment = "Segment" { k, v, pos, ranges, ready, ready_value, len, kv, k_map, v_map }
        ForwardArgs = "ForwardArgs" {
            q, q_stride, q_map, q_lo, q_hi, order, segments, segment_count, batch, q_len, heads, kv_heads, scale,
            acc_o, acc_stride, acc_m, acc_l, carry_in, carry_out, o, o_stride, lse, error, spin_limit, work_counter,
            segment_major, head_section
        }
        BackwardArgs = "BackwardArgs" {
            q, q_stride, q_map, d_o, do_stride, do_map, lse, delta, q_lo, q_hi, segments, segment_count, q_ranges,
            order, batch, q_len, heads, kv_heads, scale, dq, dq_stride, dk, dv, dkv_stride, deterministic, start_dkv,
            heads_per_item, whole_items, last_parts, started, dq_turn, work_counter, error, spin_limit, dq_map
        }
        PreprocessArgs = "PreprocessArgs" { o, o_stride, d_o, do_stride, delta, batch, q_len, heads, dq, dq_stride }
        ConvertArgs = "ConvertArgs" { from, from_stride, to, to_stride, batch, tokens, heads, scale }
        AddArgs = "AddArgs" { to, from, to_pitch, from_pitch, rows, columns, aligned }
        StateArgs = "State" { o, o_stride, m, l }
        MergeArgs = "MergeArgs" { a, b, batch, q_len, heads }
        FinaliseArgs = "FinaliseArgs" { state, o, o_stride, lse, batch, q_len, heads }
    };
    let header = parse(include_str!("../../cuda/interface.cuh"));
    assert_eq!(header.len(), host.len());
    for (name, layout) in host {
        assert_eq!(header.get(name), Some(&layout), "{name}");
    }
}

#[test]
fn parser_lays_out_by_alignment() {
    let parsed = parse("struct A { int x; const void* p; }; // int no;\nstruct B { A a; float f, g; };");
    let fields =
        |list: &[(&str, usize)]| list.iter().map(|(name, at)| ((*name).to_owned(), *at)).collect::<Vec<_>>();
    assert_eq!(parsed["A"], Layout { size: 16, fields: fields(&[("x", 0), ("p", 8)]) });
    assert_eq!(parsed["B"], Layout { size: 24, fields: fields(&[("a", 0), ("f", 16), ("g", 20)]) });
}
