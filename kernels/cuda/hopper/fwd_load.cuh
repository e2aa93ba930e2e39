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

struct Producer {
    const ForwardArgs& args;
    Shared& shared;
    Gate gate;
    RingPosition<1> q;
    RingPosition<STAGES> k;   // the next key tile; value tiles follow one behind

    DEVICE void load_q(const Work& work) {
        wait_barrier(shared.barriers.q_empty, q.phase() ^ 1);
        load_tile<tile::q_block_bytes>(shared.q, args.q_map, shared.barriers.q_full, work.q_tile * TILE_Q, work.head,
                                       work.batch);
        q.advance();
    }

    DEVICE void load_kv(const Work& work, const void* map, char* destination, u64& full, int n) {
        if (gate.failed) arrive_barrier(full);
        else load_tile<tile::kv_block_bytes>(destination, map, full, n * TILE_KV, work.kv_head, work.batch);
    }

    DEVICE void load_k(const Work& work, const TileTag& tag, int n) {
        const u32 slot = k.slot();
        wait_barrier(shared.barriers.k_empty[slot], k.phase() ^ 1);
        shared.tags[slot] = tag;
        load_kv(work, args.segments[tag.segment].k_map, shared.k[slot], shared.barriers.k_full[slot], n);
        k.advance();
    }

    DEVICE void load_v(const Work& work, RingPosition<STAGES> v, int segment, int n) {
        const u32 slot = v.slot();
        wait_barrier(shared.barriers.v_empty[slot], v.phase() ^ 1);
        load_kv(work, args.segments[segment].v_map, shared.v[slot], shared.barriers.v_full[slot], n);
    }

    // Key tiles run from the last to the first; the values of a tile follow the keys of the next.
    DEVICE void load_item(const Work& work) {
        if (work.tiles == 0) return;
        load_q(work);
        int pending = -1, pending_segment = 0;
        for (int s = work.segment_first; s < work.segment_last; ++s) {
            const TileRange range = args.segments[s].ranges[work.q_tile];
            if (range.first >= range.last) continue;
            gate.pass(s);
            const int full_last = min(range.full_last, args.segments[s].len / TILE_KV);
            for (int n = range.last - 1; n >= range.first; --n) {
                const bool full = n >= range.full_first && n < full_last;
                load_k(work, {full ? -1 : n, s}, n);
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
        if (work.q_tile < 0) break;
        producer.load_item(work);
        reader.release();
    }
}

}  // namespace load
