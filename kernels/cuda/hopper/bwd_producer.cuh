// The loading warpgroup of the backward: one thread issues the bulk copies, some warps fetch what is kept per query.
#pragma once

#include "bwd_tile.cuh"

namespace bwd {

// Blocks of 64 columns x `rows` tokens from `row` on, one after the other in shared memory.
template <int D> DEVICE void load_tile(u32 to, const void* map, u32 barrier, int rows, int head, int row, int batch) {
#pragma unroll
    for (int block = 0; block < Tile<D>::column_blocks; ++block)
        ptx::tensor_load_4d(to + block * rows * 128, map, barrier, block * 64, head, row, batch);
}

// Returns once the segment has arrived, or flags an error after args.spin_limit.
DEVICE void await_segment(const BackwardArgs& args, const Segment& segment) {
    if (!segment.ready) return;
    const u64 start = ptx::global_timer();
    while (static_cast<int>(ptx::load_acquire_system(segment.ready) - segment.ready_value) < 0) {
        if (ptx::global_timer() - start > args.spin_limit) {
            atomicMax(args.error, 1);
            break;
        }
    }
    ptx::fence_async_global();
}

template <int D> struct Loader {
    using T = Tile<D>;
    const BackwardArgs& args;
    Shared<D>& shared;
    Ring<T::stages> ring;
    Ring<item_slots> slots;

    DEVICE void run() {
        const Segment& segment = args.segments[0];
        ptx::tensor_map_acquire(args.q_map);
        ptx::tensor_map_acquire(args.do_map);
        ptx::tensor_map_acquire(segment.k_map);
        ptx::tensor_map_acquire(segment.v_map);
        await_segment(args, segment);
        for (;;) {
            Pipeline& pipe = shared.item_pipe[slots.stage()];
            Item& item = shared.items[slots.stage()];
            ptx::mbarrier_wait(ptx::shared_address(&pipe.empty), slots.parity() ^ 1);
            do shared.schedule.decode(item, args, atomicAdd(args.work_counter, 1));
            while (item.tile >= 0 && item.count() <= 0 && !args.start_dkv);
            ptx::mbarrier_arrive(ptx::shared_address(&pipe.full));
            slots.advance();
            if (item.tile < 0) return;
            load_item(segment, item);
        }
    }

    DEVICE void load_item(const Segment& segment, const Item& item) {
        // K and V are used once an item, as the slots, which have gone on.
        ptx::mbarrier_wait(ptx::shared_address(&shared.kv_empty), slots.odd());
        const u32 k_full = ptx::shared_address(&shared.k_full), v_full = ptx::shared_address(&shared.v_full);
        if (item.count() <= 0) {  // nothing to multiply, but its phase of every barrier passes
            ptx::mbarrier_arrive(k_full);
            ptx::mbarrier_arrive(v_full);
            return;
        }
        load_keys(shared.k, segment.k_map, k_full, item);
        bool first = true;
        for (int head = item.head; head < item.head + item.heads; ++head) {
            int tile = item.start;
            for (int left = item.count(); left > 0; --left, tile = item.after(tile)) {
                const int stage = ring.stage();
                load_queries(shared.q[stage], args.q_map, shared.q_pipe[stage], head, tile, item.batch);
                if (first) {
                    load_keys(shared.v, segment.v_map, v_full, item);
                    first = false;
                }
                load_queries(shared.d_o[stage], args.do_map, shared.do_pipe[stage], head, tile, item.batch);
                ring.advance();
            }
        }
    }

    DEVICE void load_keys(u16* to, const void* map, u32 full, const Item& item) const {
        ptx::mbarrier_arrive_expect(full, T::kv * D * 2);
        load_tile<D>(ptx::shared_address(to), map, full, T::kv, item.kv_head, item.tile * T::kv, item.batch);
    }

    DEVICE void load_queries(u16* to, const void* map, Pipeline& pipe, int head, int tile, int batch) {
        const u32 full = ptx::shared_address(&pipe.full);
        ptx::mbarrier_wait(ptx::shared_address(&pipe.empty), ring.parity() ^ 1);
        ptx::mbarrier_arrive_expect(full, T::q * D * 2);
        load_tile<D>(ptx::shared_address(to), map, full, T::q, head, tile * T::q, batch);
    }
};

// Fetches what is kept per query. Each thread has one or two queries of a tile.
template <int D> struct StatsLoader {
    using T = Tile<D>;
    const BackwardArgs& args;
    Shared<D>& shared;
    const int thread;                          // [0, stats_threads)
    Ring<T::stages> ring;
    Ring<item_slots> slots;

    DEVICE void run() {
        for (;;) {
            Pipeline& pipe = shared.item_pipe[slots.stage()];
            ptx::mbarrier_wait(ptx::shared_address(&pipe.full), slots.parity());
            const Item& item = shared.items[slots.stage()];
            if (item.tile < 0) return;
            for (int head = 0; head < item.heads; ++head) {
                const int row_of_heads = item.batch * args.heads + item.head + head;
                int tile = item.start;
#pragma unroll 1
                for (int left = item.count(); left > 0; --left, tile = item.after(tile)) load(item, row_of_heads, tile);
            }
            __syncwarp();
            if (thread % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&pipe.empty));
            slots.advance();
        }
    }

    DEVICE void load(const Item& item, int row_of_heads, int tile) {
        Pipeline& q_pipe = shared.q_pipe[ring.stage()];
        Pipeline& do_pipe = shared.do_pipe[ring.stage()];
        Stats<T::q>& stats = shared.stats[ring.stage()];
        const bool masked = tile < item.queries.full_first || tile >= item.queries.full_last;
        ptx::mbarrier_wait(ptx::shared_address(&q_pipe.empty), ring.parity() ^ 1);
        ptx::mbarrier_wait(ptx::shared_address(&do_pipe.empty), ring.parity() ^ 1);
#pragma unroll 1  // few registers
        for (int i = thread; i < T::q; i += stats_threads) {
            load_query(stats, i, row_of_heads, tile * T::q + i);
            if (masked) load_interval(stats, i, tile * T::q + i);
        }
        if (thread == 0) stats.masked = masked;
        ptx::mbarrier_arrive(ptx::shared_address(&q_pipe.full));
        ptx::mbarrier_arrive(ptx::shared_address(&do_pipe.full));
        ring.advance();
    }

    DEVICE void load_query(Stats<T::q>& stats, int to, int row_of_heads, int query) const {
        constexpr float log2e = 1.4426950408889634f;
        const bool inside = query < args.q_len;
        const u32 at = static_cast<u32>(row_of_heads) * args.q_len + query;
        const float lse = inside ? args.lse[at] : -infinity(), delta = inside ? args.delta[at] : 0.0f;
        const bool attends = lse != -infinity();
        stats.lse[to] = attends ? lse * log2e - shared.schedule.log2_factor : infinity();
        stats.delta[to] = attends ? delta : 0.0f;
    }

    DEVICE void load_interval(Stats<T::q>& stats, int to, int query) const {
        const bool inside = query < args.q_len;
        stats.lo[to] = inside ? args.q_lo[query] : 1;
        stats.hi[to] = inside ? args.q_hi[query] : 0;
    }
};

}  // namespace bwd
