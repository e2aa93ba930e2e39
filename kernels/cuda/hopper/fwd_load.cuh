// The producer: one thread that keeps the copy engine loading query, key and value tiles.
#pragma once

#include "fwd_schedule.cuh"

namespace load {

// Loads one box of 64 columns after the other, so that a tile lies as wgmma.cuh wants it.
DEVICE void load_q_tile(Shared& shared, const void* map, int token, int head, int batch) {
    const u32 barrier = ptx::shared_address(&shared.barriers.q_full);
    ptx::mbarrier_arrive_expect(barrier, tile::q_bytes);
#pragma unroll
    for (int block = 0; block < tile::column_blocks; ++block) {
        ptx::tensor_load_4d(ptx::shared_address(shared.q) + block * tile::q_block_bytes, map, barrier, block * 64,
                            token, head, batch);
    }
}

DEVICE void load_kv_tile(char* destination, const void* map, u64& full, int token, int head, int batch) {
    const u32 barrier = ptx::shared_address(&full);
    ptx::mbarrier_arrive_expect(barrier, tile::kv_bytes);
#pragma unroll
    for (int block = 0; block < tile::column_blocks; ++block) {
        ptx::tensor_load_4d(ptx::shared_address(destination) + block * tile::kv_block_bytes, map, barrier, block * 64,
                            token, head, batch);
    }
}

// Waits for segments that are still on their way. After one time-out nothing is waited for any more: the kernel runs to
// its end on whatever memory holds, and the host reads the error.
struct Gate {
    const ForwardArgs& args;
    u32 seen = 0;         // segments known to be ready, of the first 32
    bool failed = false;

    DEVICE void pass(int index) {
        const Segment& segment = args.segments[index];
        const u32 bit = index < 32 ? 1u << index : 0;
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

constexpr int lookahead = 3;  // key tiles

struct Producer {
    const ForwardArgs& args;
    Shared& shared;
    Gate gate;
    RingPosition<1> q;
    RingPosition<tile::stages> k;   // the next key tile; value tiles follow one behind

    DEVICE void load_q(const Work& work) {
        wait_barrier(shared.barriers.q_empty, q.phase() ^ 1);
        load_q_tile(shared, args.q_map, work.q_tile * TILE_Q, work.head, work.batch);
        q.advance();
    }

    DEVICE void load_k(const Work& work, const TileTag& tag, int n) {
        const u32 slot = k.slot();
        wait_barrier(shared.barriers.k_empty[slot], k.phase() ^ 1);
        shared.tags[slot] = tag;
        load_kv_tile(shared.k[slot], args.segments[tag.segment].k_map, shared.barriers.k_full[slot], n * TILE_KV,
                     work.kv_head, work.batch);
        k.advance();
    }

    DEVICE void load_v(const Work& work, RingPosition<tile::stages> v, int segment, int n) {
        const u32 slot = v.slot();
        wait_barrier(shared.barriers.v_empty[slot], v.phase() ^ 1);
        load_kv_tile(shared.v[slot], args.segments[segment].v_map, shared.barriers.v_full[slot], n * TILE_KV,
                     work.kv_head, work.batch);
    }

    // The next item is fetched while the last tiles of this one are on their way: time for an atomic and two loads.
    DEVICE void announce(int left) {
        if (left == lookahead) arrive_barrier(shared.barriers.item_due);
    }

    // Key tiles run from the last to the first; the values of a tile follow the keys of the next.
    DEVICE void load_item(const Work& work) {
        int left = work.tiles;
        if (left <= lookahead) announce(lookahead);
        if (left == 0) return;
        load_q(work);
        int pending = -1, pending_segment = 0;
        for (int s = work.segment_first; s < work.segment_last; ++s) {
            const TileRange range = args.segments[s].ranges[work.q_tile];
            if (range.first >= range.last) continue;
            gate.pass(s);
            const int full_last = min(range.full_last, args.segments[s].len / TILE_KV);
            for (int n = range.last - 1; n >= range.first; --n) {
                if (left > lookahead) announce(left - 1);
                --left;
                load_k(work, {n >= range.full_first && n < full_last ? -1 : n, s}, n);
                if (pending >= 0) load_v(work, k.before().before(), pending_segment, pending);
                pending = n;
                pending_segment = s;
            }
        }
        load_v(work, k.before(), pending_segment, pending);
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
        if (work.tiles < 0) break;
        producer.load_item(work);
        reader.release();
    }
}

}  // namespace load
