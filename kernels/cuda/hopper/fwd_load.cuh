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
        ptx::tensor_load_4d(ptx::shared_address(shared.q) + block * tile::q_block_bytes, map, barrier, block * 64, token,
                            head, batch);
    }
}

// In a cluster every CTA loads its share of the column blocks, for all of them.
DEVICE void load_kv_tile(char* destination, const void* map, u64& full, int token, int head, int batch) {
    const u32 barrier = ptx::shared_address(&full);
    ptx::mbarrier_arrive_expect(barrier, tile::kv_bytes);
#pragma unroll
    for (int share = 0; share < tile::column_blocks; share += CLUSTER) {
        const int block = share + cluster_rank();
        const u32 target = ptx::shared_address(destination) + block * tile::kv_block_bytes;
        if (CLUSTER == 1) ptx::tensor_load_4d(target, map, barrier, block * 64, token, head, batch);
        else ptx::tensor_load_4d_multicast(target, map, barrier, (1 << CLUSTER) - 1, block * 64, token, head, batch);
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

DEVICE void wait_empty(u64& barrier, u32 phase) {
    if (CLUSTER == 1) wait_barrier(barrier, phase);
    else ptx::mbarrier_wait_cluster(ptx::shared_address(&barrier), phase);
}

DEVICE int own_tile(const Work& work) { return work.q_tiles[cluster_rank()]; }

// Tiles of this CTA's queries that need no mask.
DEVICE schedule::Span full_tiles(const Segment& segment, const Work& work) {
    if (own_tile(work) < 0) return {0, 0};
    const TileRange range = segment.ranges[own_tile(work)];
    return {range.full_first, min(range.full_last, segment.len / TILE_KV)};
}

struct Producer {
    const ForwardArgs& args;
    Shared& shared;
    Gate gate;
    RingPosition<1> q;
    RingPosition<STAGES> k;   // the next key tile; value tiles follow one behind

    DEVICE void load_q(const Work& work) {
        wait_barrier(shared.barriers.q_empty, q.phase() ^ 1);
        load_q_tile(shared, args.q_map, max(own_tile(work), 0) * TILE_Q, work.head, work.batch);
        q.advance();
    }

    DEVICE void load_k(const Work& work, const TileTag& tag, int n) {
        const u32 slot = k.slot();
        wait_empty(shared.barriers.k_empty[slot], k.phase() ^ 1);
        shared.tags[slot] = tag;
        load_kv_tile(shared.k[slot], args.segments[tag.segment].k_map, shared.barriers.k_full[slot], n * TILE_KV,
                     work.kv_head, work.batch);
        k.advance();
    }

    DEVICE void load_v(const Work& work, RingPosition<STAGES> v, int segment, int n) {
        const u32 slot = v.slot();
        wait_empty(shared.barriers.v_empty[slot], v.phase() ^ 1);
        load_kv_tile(shared.v[slot], args.segments[segment].v_map, shared.barriers.v_full[slot], n * TILE_KV,
                     work.kv_head, work.batch);
    }

    // Key tiles run from the last to the first; the values of a tile follow the keys of the next.
    DEVICE void load_item(const Work& work) {
        if (work.tiles == 0) return;
        load_q(work);
        int pending = -1, pending_segment = 0;
        for (int s = work.segment_first; s < work.segment_last; ++s) {
            const schedule::Span needed = schedule::span(args.segments[s], work);
            if (needed.first >= needed.last) continue;
            gate.pass(s);
            const schedule::Span full = full_tiles(args.segments[s], work);
            for (int n = needed.last - 1; n >= needed.first; --n) {
                load_k(work, {n >= full.first && n < full.last ? -1 : n, s}, n);
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
