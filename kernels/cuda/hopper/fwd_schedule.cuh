// The scheduler: one thread that decides what the CTA works on next and tells the producer and the consumers.
#pragma once

#include "fwd_tile.cuh"

namespace schedule {

DEVICE int query_tiles(const ForwardArgs& args) { return (args.q_len + TILE_Q - 1) / TILE_Q; }

DEVICE int count_tiles(const ForwardArgs& args, const Work& work) {
    int tiles = 0;
#pragma unroll 1
    for (int s = work.segment_first; s < work.segment_last; ++s) {
        const TileRange range = args.segments[s].ranges[work.q_tile];
        tiles += max(range.last - range.first, 0);
    }
    return tiles;
}

// Items go section by section of head_section heads; in a section the longest query tiles of all its heads come first.
// In segment-major order, where items are dealt out, the list is sorted as a whole: only that deals evenly.
DEVICE void locate(const ForwardArgs& args, int item, Work& work) {
    const int tiles = query_tiles(args), all_heads = args.heads * args.batch;
    const int section_heads = args.segment_major ? all_heads : args.head_section;
    const int section_start = item / (section_heads * tiles) * section_heads;
    const int heads = min(section_heads, all_heads - section_start);
    const int rest = item - section_start * tiles;
    const int head = section_start + rest % heads;
    work.q_tile = args.order[rest / heads];
    work.head = head % args.heads;
    work.kv_head = work.head / (args.heads / args.kv_heads);
    work.batch = head / args.heads;
}

DEVICE void wait_asleep(u64& barrier, u32 phase) { ptx::mbarrier_wait_asleep(ptx::shared_address(&barrier), phase); }

struct Publisher {
    Shared& shared;
    RingPosition<work_slots> position;

    DEVICE Work& wait_slot() {
        wait_asleep(shared.barriers.work_empty[position.slot()], position.phase() ^ 1);
        return shared.work[position.slot()];
    }

    DEVICE void publish() {
        arrive_barrier(shared.barriers.work_full[position.slot()]);
        position.advance();
    }
};

// One item over segments [first, last). In segment-major order an item that changes nothing is not published.
DEVICE void offer(const ForwardArgs& args, Publisher& publisher, int item, int first, int last) {
    Work& work = publisher.wait_slot();
    locate(args, item, work);
    work.segment_first = first;
    work.segment_last = last;
    const int tiles = count_tiles(args, work);
    const bool load_state = args.carry_in || first > 0;
    const bool finish = last == args.segment_count && (args.o || args.lse);
    work.tiles = tiles;
    work.load_state = load_state;
    work.store_state = args.carry_out || last < args.segment_count;
    work.finish = finish;
    if (tiles > 0 || finish || !load_state || !args.segment_major) publisher.publish();
}

// Whoever is free takes the next item: not earlier than the producer says, or the last and shortest items would be
// handed out while others still have long ones to start.
DEVICE void item_major(const ForwardArgs& args, Publisher& publisher, int items) {
    int item = blockIdx.x;
    for (u32 count = 0; item < items; ++count) {
        offer(args, publisher, item, 0, args.segment_count);
        wait_asleep(publisher.shared.barriers.item_due, count & 1);
        item = gridDim.x + atomicAdd(args.work_counter, 1);
    }
}

// Every CTA keeps its items over all segments, so that the carried state never crosses CTAs. Rounds alternate in
// direction: who had the longest item of one round has the shortest of the next. Of each segment a CTA does its items of
// one section's heads after the other's, so that what all CTAs read at a time is the keys of few heads.
DEVICE void segment_major(const ForwardArgs& args, Publisher& publisher, int items) {
    const int ctas = gridDim.x, cta = blockIdx.x, all_heads = args.heads * args.batch;
    for (int segment = 0; segment < args.segment_count; ++segment) {
        for (int first_head = 0; first_head < all_heads; first_head += args.head_section) {
            for (int round = 0; round * ctas < items; ++round) {
                const int item = round * ctas + (round & 1 ? ctas - 1 - cta : cta);
                const int head = item % all_heads - first_head;
                if (item < items && 0 <= head && head < args.head_section)
                    offer(args, publisher, item, segment, segment + 1);
            }
        }
    }
}

DEVICE void run(const ForwardArgs& args, Shared& shared) {
    Publisher publisher{shared};
    const int items = query_tiles(args) * args.heads * args.batch;
    if (args.segment_major) segment_major(args, publisher, items);
    else item_major(args, publisher, items);
    publisher.wait_slot().tiles = -1;
    publisher.publish();
}

// The reader's side, the same in the producer and the consumers. Read fields where they are needed: they cost a load
// from shared memory, not a register over the whole item.
struct Reader {
    Shared& shared;
    RingPosition<work_slots> position;

    DEVICE const Work& read() {
        wait_barrier(shared.barriers.work_full[position.slot()], position.phase());
        return shared.work[position.slot()];
    }

    // By one thread of each warp that reads, after that warp's last use of the slot.
    DEVICE void release() {
        arrive_barrier(shared.barriers.work_empty[position.slot()]);
        position.advance();
    }
};

}  // namespace schedule
