// Tiles, shared memory and work items of the Hopper backward.
//
// A CTA owns one tile of keys and walks over the query tiles that see it. Warpgroup 0 loads, and adds dQ to global
// memory; warpgroups 1 and 2 own 64 keys each. Scores are held transposed, keys x queries, so that P and dS are A
// operands where they are computed.
#pragma once

#include "wgmma.cuh"

namespace bwd {

typedef unsigned short u16;
DEVICE float infinity() { return __int_as_float(0x7f800000); }

constexpr int tile_kv = 128;

template <int D> struct Tile {
    static constexpr int kv = tile_kv;
    // Queries a tile, as many as registers allow: D a thread for dK and dV; q / 2 each for S, for dP, and for P and dS
    // in 16 bits.
    static constexpr int q = D == 128 ? 64 : 128;
    static constexpr int stages = 3;           // of Q and dO
    static constexpr bool last_apart = D == 128;  // the last query tile has code of its own (registers allow it)
    static constexpr int column_blocks = D / 64;
    static constexpr int score_registers = q / 2, gradient_registers = D / 2;
};

constexpr int warpgroup_threads = 128, consumer_groups = 2, consumer_threads = consumer_groups * warpgroup_threads;
constexpr int consumer_warps = consumer_threads / 32, threads = consumer_threads + warpgroup_threads;
constexpr int scores_barrier = 1;                   // named barrier
constexpr int dq_block_columns = 32, dq_block_bytes = 64 * dq_block_columns * 4, dq_blocks = 2;  // a consumer group
constexpr int item_slots = 2, stats_threads = 64;

// The kernel's P is p_factor times the true one. With the softmax scale in it, dS is scaled too and dQ and dK need no
// factor; in fp16 that would cost small P their precision.
#ifdef DTYPE_FP16
constexpr bool scaled_p = false;
#else
constexpr bool scaled_p = true;
#endif
DEVICE float p_factor(const BackwardArgs& args) { return scaled_p ? args.scale : 1.0f; }
// What dQ and dK are still to be multiplied by.
DEVICE float ds_factor(const BackwardArgs& args) { return scaled_p ? 1.0f : args.scale; }

// Per query of a stage. `lse` is in base-2 units, less log2 of the factor of P, and +inf for queries that attend
// nothing, which makes their P zero. `lo` and `hi` are there where the tile is masked.
template <int Q> struct alignas(16) Stats {
    float lse[Q], delta[Q];
    int lo[Q], hi[Q];
    int masked;                                // whether a pair of the tile may be masked
};

struct Pipeline { u64 full, empty; };

// One key tile with the query heads [head, head + heads) that the CTA runs through. No tile is left where tile < 0.
// The query tiles of each head are taken from `start` on by `step` = 1 or -1, from one end round to the other.
struct Item {
    int tile, batch, kv_head, head, heads, start, step;
    QueryTileRange queries;
#ifdef SPLIT_LAST
    int part, cut;                             // which part of an item that is cut, and of which of these; cut < 0: whole
#endif

    DEVICE int count() const { return queries.last - queries.first; }
    DEVICE int after(int query_tile) const {
        const int next = query_tile + step;
        return next == queries.last ? queries.first : next < queries.first ? queries.last - 1 : next;
    }
};

// The order of the items, each of which covers all query heads of a key head or one. Those of `together` heads share the
// L2 cache and run side by side.
struct Schedule {
    u32 tiles, heads_per_item, units_per_batch, units_per_kv_head, units, together;
    float log2_factor;                         // of P

    template <int D> DEVICE static Schedule of(const BackwardArgs& args) {
        Schedule s;
        const u32 group = args.heads / args.kv_heads;
        s.tiles = (args.segments[0].len + Tile<D>::kv - 1) / Tile<D>::kv;
        s.heads_per_item = args.heads_per_item;
        s.units_per_batch = args.heads / s.heads_per_item;
        s.units_per_kv_head = group / s.heads_per_item;
        s.units = s.units_per_batch * args.batch;
        const i64 l2_budget = 16 << 20, bytes = i64{8} * D * args.q_len * s.heads_per_item;  // Q, dO, fp32 dQ
        s.together = static_cast<u32>(max(i64{1}, min(i64{s.units}, l2_budget / max(bytes, i64{1}))));
        s.log2_factor = log2f(p_factor(args));
        return s;
    }

    // Fills `item` with the index-th of the launch.
    DEVICE void decode(Item& item, const BackwardArgs& args, u32 index) const {
#ifdef SPLIT_LAST
        item.cut = -1;
        item.part = 0;
        const u32 whole = args.whole_items, cut = tiles * units - whole;
        if (cut && index >= whole) {  // first parts of all, then second parts
            item.part = (index - whole) / cut;
            item.cut = index - whole - item.part * cut;
            index = item.part < args.last_parts ? whole + item.cut : ~0u;
        }
#endif
        item.tile = -1;
        if (index >= tiles * units) return;
        const u32 pack_items = tiles * together, pack = index / pack_items;
        const u32 here = min(together, units - pack * together);
        const u32 rest = index - pack * pack_items, rank = rest / here;
        u32 unit = rest - rank * here + pack * together;
        // The turns of deterministic mode are in key order, so later keys must not start first.
        const int tile = args.deterministic ? rank : args.order[rank];
        item.tile = tile;
        item.queries = args.q_ranges[tile];
        if ((tile + 1) * tile_kv > args.segments[0].len) item.queries.full_last = item.queries.full_first;
#ifdef SPLIT_LAST
        if (item.cut >= 0) {
            const int first = item.queries.first, count = item.count();
            item.queries.first = first + count * item.part / args.last_parts;
            item.queries.last = first + count * (item.part + 1) / args.last_parts;
        }
#endif
        // Side by side, CTAs start at different query tiles, so as not to add to the same lines of dQ at once. In
        // deterministic mode they start at the last one, which the mask's order lets earlier key tiles reach first.
        item.step = args.deterministic ? -1 : 1;
        item.start = args.deterministic ? item.queries.last - 1 : item.queries.first;
        if (!args.deterministic && item.count() > 0) item.start += tile % item.count();
        item.heads = heads_per_item;
        item.batch = unit / units_per_batch;
        asm volatile("" : "+r"(unit)::"memory");  // one division after the other: the loader has few registers
        unit -= item.batch * units_per_batch;
        item.head = unit * heads_per_item;
        item.kv_head = unit / units_per_kv_head;
    }
};

template <int D> struct Shared {
    using T = Tile<D>;
    u16 k[T::kv * D], v[T::kv * D];
    u16 q[T::stages][T::q * D], d_o[T::stages][T::q * D];
    u16 ds[T::q * T::kv];                      // [64-key half][query][64 keys]
    float dq[consumer_groups][dq_blocks][64 * dq_block_columns];
    Stats<T::q> stats[T::stages];
    u64 k_full, v_full, kv_empty, ds_empty;
    Pipeline q_pipe[T::stages], do_pipe[T::stages], dq_pipe, item_pipe[item_slots];
    Item items[item_slots];
    Schedule schedule;
};

// Position in a ring of buffers: stage and parity of the next use, and whether it is an odd one. One register.
template <int Stages> struct Ring {
    u32 state = 0;                             // stage, parity, odd from the top

    DEVICE u32 stage() const { return state >> 2; }
    DEVICE u32 parity() const { return state >> 1 & 1; }
    DEVICE u32 odd() const { return state & 1; }
    DEVICE void advance() {
        state = (state ^ 1) + 4;
        if (stage() == Stages) state = (state & 3) ^ 2;
    }
};

}  // namespace bwd
