// The producer: one thread that keeps the copy engine loading query, key and value tiles.
#pragma once

#include "fwd_schedule.cuh"

namespace load {

// Loads one box of 64 columns after the other, so that a tile lies as wgmma.cuh wants it.
template <int BlockBytes>
DEVICE void load_tile(char* destination, const void* map, u64& barrier, int token, int head, int batch) {
    const u32 bar = ptx::shared_address(&barrier);
    ptx::mbarrier_arrive_expect(bar, BlockBytes * tile::column_blocks);
#pragma unroll
    for (int block = 0; block < tile::column_blocks; ++block) {
        ptx::tensor_load_4d(ptx::shared_address(destination) + block * BlockBytes, map, bar, block * 64, token, head,
                            batch);
    }
}

// Waits for segments that are still on their way. After one time-out nothing is waited for or loaded any more: the
// kernel runs to its end on whatever shared memory holds, and the host reads the error.
struct Gate {
    const ForwardArgs& args;
    u64 seen = 0;         // segments known to be ready, the first 64
    bool failed = false;

    DEVICE void pass(int index) {
        const Segment& segment = args.segments[index];
        const u64 bit = index < 64 ? u64{1} << index : 0;
        if (!segment.ready || (seen & bit) || failed) return;
        const u64 start = ptx::global_timer();
        while (static_cast<int>(ptx::load_acquire_system(segment.ready) - segment.ready_value) < 0) {
            if (ptx::global_timer() - start > args.spin_limit) {
                atomicCAS(args.error, 0, 1 + index);
                failed = true;
                return;
            }
            __nanosleep(200);
        }
        ptx::fence_async_global();
        seen |= bit;
    }
};

struct Producer {
    const ForwardArgs& args;
    Shared& shared;
    Gate gate;
    RingPosition<1> q;
    RingPosition<STAGES> k, v;
    int head, kv_head, batch;

    DEVICE void load_q(int q_tile) {
        wait_barrier(shared.barriers.q_empty, q.phase() ^ 1);
        load_tile<tile::q_block_bytes>(shared.q, args.q_map, shared.barriers.q_full, q_tile * TILE_Q, head, batch);
        q.advance();
    }

    DEVICE void load_k(const Segment& segment, int n, TileTag tag) {
        wait_barrier(shared.barriers.k_empty[k.slot()], k.phase() ^ 1);
        shared.tags[k.slot()] = tag;
        u64& full = shared.barriers.k_full[k.slot()];
        if (gate.failed) arrive_barrier(full);
        else load_tile<tile::kv_block_bytes>(shared.k[k.slot()], segment.k_map, full, n * TILE_KV, kv_head, batch);
        k.advance();
    }

    DEVICE void load_v(const void* map, int n) {
        wait_barrier(shared.barriers.v_empty[v.slot()], v.phase() ^ 1);
        u64& full = shared.barriers.v_full[v.slot()];
        if (gate.failed) arrive_barrier(full);
        else load_tile<tile::kv_block_bytes>(shared.v[v.slot()], map, full, n * TILE_KV, kv_head, batch);
        v.advance();
    }

    // Key tiles run from the last to the first; the values of a tile follow the keys of the next.
    DEVICE void load_item(const Work& work) {
        head = work.head;
        kv_head = work.head / (args.heads / args.kv_heads);
        batch = work.batch;
        if (work.tiles > 0) load_q(work.q_tile);
        const void* pending_map = nullptr;
        int pending = 0;
        for (int s = work.segment_first; s < work.segment_last; ++s) {
            const Segment& segment = args.segments[s];
            const TileRange range = segment.ranges[work.q_tile];
            if (range.first >= range.last) continue;
            gate.pass(s);
            const int full_last = min(range.full_last, segment.len / TILE_KV);
            for (int n = range.last - 1; n >= range.first; --n) {
                const bool full = n >= range.full_first && n < full_last;
                load_k(segment, n, {full ? -1 : n, s});
                if (pending_map) load_v(pending_map, pending);
                pending_map = segment.v_map;
                pending = n;
            }
        }
        if (pending_map) load_v(pending_map, pending);
    }
};

DEVICE void run(const ForwardArgs& args, Shared& shared) {
    ptx::tensor_map_acquire(args.q_map);
#pragma unroll 1
    for (int s = 0; s < args.segment_count; ++s) {
        ptx::tensor_map_acquire(args.segments[s].k_map);
        ptx::tensor_map_acquire(args.segments[s].v_map);
    }
    Producer producer{args, shared, {args}};
    schedule::Reader reader{shared};
    while (true) {
        const Work& work = reader.read();
        if (work.q_tile < 0) break;
        producer.load_item(work);
        reader.release();
    }
}

}  // namespace load
