// What the host passes to every attention kernel. Mirrored field by field in src/abi.rs.
//
// Shapes. q, o, do, dq: [batch][q_len][heads][D]; k, v, dk, dv: [batch][kv_len][kv_heads][D]; strides in elements, the
// last dimension dense. lse, m, l, delta: fp32 [batch][heads][q_len], dense.
//
// Positions. Every mask of the project (full, causal, window, documents, padding) is, for one query, an interval of key
// positions: key k is attended by query q iff lo(q) <= pos(k) <= hi(q); an empty interval (lo > hi) is a query without
// keys. pos is strictly increasing over the slots of one segment; lo and hi are non-decreasing over the slots of the
// queries. So for each query tile the key tiles that are not empty are one range, and the full ones a range inside it.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// Key tiles [first, last) of one query tile hold unmasked pairs; [full_first, full_last) of them need no mask.
// full_first == full_last where none is full. first == last where all are empty.
struct TileRange { int first, full_first, full_last, last; };

// Query tiles [first, last) of one key tile, for the backward; the same meaning with the sides exchanged.
typedef TileRange QueryTileRange;

struct Strides { i64 batch, token, head; };

// One run of keys and values: what a rank holds at one ring step.
struct Segment {
    const void* k; const void* v;
    const int* pos;                  // [len]: position of each key
    const TileRange* ranges;         // [ceil(q_len / tile_q)]; pos and ranges are valid at launch, ready or not
    const u32* ready;                // null, or a counter that must reach ready_value before k and v are read
    u32 ready_value;
    int len;
    Strides kv;
    // Tensor maps (CUtensorMap, 128 bytes, in device memory) of k and v for the Hopper path; null elsewhere.
    const void* k_map; const void* v_map;
};

struct ForwardArgs {
    const void* q; Strides q_stride;
    const void* q_map;               // CUtensorMap of q in device memory (Hopper path)
    const int* q_lo; const int* q_hi; // [q_len]
    const int* order;                // [ceil(q_len / tile_q)]: query tiles, longest first
    const Segment* segments; int segment_count;
    int batch, q_len, heads, kv_heads;
    float scale;                     // 1/sqrt(D) unless told otherwise
    // State, fp32: o unnormalised [batch][q_len][heads][D], m (natural-log scale) and l. Read if carry_in, written if carry_out.
    // o and l are relative to exp(m); m is -inf where no key was seen.
    float* acc_o; Strides acc_stride; float* acc_m; float* acc_l; int carry_in, carry_out;
    // Final result (null if not wanted): o in the input dtype, normalised; lse = m + ln(l), -inf where no key.
    void* o; Strides o_stride; float* lse;
    int* error;                      // set to 1 + segment where a ready flag did not come within spin_limit
    u64 spin_limit;                  // nanoseconds of globaltimer
    int* work_counter;               // zeroed before launch: the dynamic scheduler's next item
    // 0: a work item is a query tile over all segments. 1: all items of segment 0, then of segment 1, ..., the state
    // carried in acc_o, acc_m and acc_l (not null) between them, so that work starts before late segments are ready.
    int segment_major;
    // Heads (times batch) whose query tiles are worked on together, so that their keys and values stay in L2: 1 .. heads *
    // batch, a multiple of heads / kv_heads. Make the sections equal, of at least four work items an SM: a small last one
    // leaves long items for the end.
    int head_section;
};

struct BackwardArgs {
    const void* q; Strides q_stride; const void* q_map;
    const void* d_o; Strides do_stride; const void* do_map;
    const float* lse; const float* delta; // delta = rowsum(o * do)
    const int* q_lo; const int* q_hi;
    const Segment* segments; int segment_count;   // one segment a launch in stepwise mode
    const QueryTileRange* q_ranges;  // [ceil(kv_len / tile_kv)]
    const int* order;                // key tiles, longest first
    int batch, q_len, heads, kv_heads;
    float scale;
    // fp32 accumulators: dq [batch][q_len][heads][D], dk, dv [batch][kv_len][kv_heads][D]. Added to; with start_dkv, dk
    // and dv are written instead, whatever they held.
    float* dq; Strides dq_stride; float* dk; float* dv; Strides dkv_stride;
    int deterministic;               // 1: dq contributions are added in key-tile order
    int start_dkv;
    // Hopper path. A work item is a key tile with so many query heads: all that share its kv head, or one. Items from
    // whole_items on are cut into last_parts parts by their query tiles: none in deterministic mode, and only where each
    // key tile has as many query tiles, last_parts at least.
    int heads_per_item, whole_items, last_parts;
    int* started;                    // [items - whole_items][8], zeroed: whether warps of a first part have written dk and dv
    int* dq_turn;                    // [batch][heads][q tiles], zeroed: whose turn it is in deterministic mode
    int* work_counter;               // zeroed before launch
    int* error; u64 spin_limit;      // as in ForwardArgs
    const void* dq_map;              // CUtensorMap of dq, fp32, in device memory (Hopper path)
};

// delta[batch][heads][q_len] = rowsum(o * do); dq, shaped like o, is zeroed unless it is null.
struct PreprocessArgs {
    const void* o; Strides o_stride;
    const void* d_o; Strides do_stride;
    float* delta;
    int batch, q_len, heads;
    float* dq; Strides dq_stride;
};

// to = from * scale, fp32 to the 16-bit type; [batch][tokens][heads][D].
struct ConvertArgs {
    const float* from; Strides from_stride;
    void* to; Strides to_stride;
    int batch, tokens, heads;
    float scale;
};

// to += from; rows and pitches in elements. aligned: every row of both starts on 16 bytes, which the 16-bit type needs, as
// it needs columns in eights.
struct AddArgs {
    void* to; const void* from;
    i64 to_pitch, from_pitch;
    int rows, columns, aligned;
};

// A forward state, as ForwardArgs carries it.
struct State { float* o; Strides o_stride; float* m; float* l; };

// a = a merged with b, which saw other keys.
struct MergeArgs { State a, b; int batch, q_len, heads; };

// The final result of a state, as ForwardArgs writes it.
struct FinaliseArgs {
    State state;
    void* o; Strides o_stride; float* lse;
    int batch, q_len, heads;
};
