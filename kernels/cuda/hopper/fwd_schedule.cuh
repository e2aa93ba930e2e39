// The scheduler: one thread that decides what the CTA works on next and tells the producer and the consumers.
#pragma once

#include "fwd_tile.cuh"

namespace schedule {

DEVICE int query_tiles(const ForwardArgs& args) { return (args.q_len + TILE_Q - 1) / TILE_Q; }

DEVICE int count_tiles(const ForwardArgs& args, int q_tile, int segment_first, int segment_last) {
    int tiles = 0;
#pragma unroll 1
    for (int s = segment_first; s < segment_last; ++s) {
        const TileRange range = args.segments[s].ranges[q_tile];
        tiles += max(range.last - range.first, 0);
    }
    return tiles;
}

// Items go section by section of head_section heads; in a section the longest query tiles of all its heads come first.
DEVICE void locate(const ForwardArgs& args, int item, Work& work) {
    const int tiles = query_tiles(args);
    const int section = item / (args.head_section * tiles);
    const int section_start = section * args.head_section;
    const int heads = min(args.head_section, args.heads * args.batch - section_start);
    const int rest = item - section_start * tiles;
    const int head = section_start + rest % heads;
    work.q_tile = args.order[rest / heads];
    work.head = head % args.heads;
    work.batch = head / args.heads;
}

struct Publisher {
    Shared& shared;
    RingPosition<work_slots> position;

    DEVICE void publish(const Work& work) {
        wait_barrier(shared.barriers.work_empty[position.slot()], position.phase() ^ 1);
        shared.work[position.slot()] = work;
        arrive_barrier(shared.barriers.work_full[position.slot()]);
        position.advance();
    }
};

// One item over segments [first, last). An item that changes nothing is not published.
DEVICE void offer(const ForwardArgs& args, Publisher& publisher, int item, int first, int last) {
    Work work;
    locate(args, item, work);
    work.segment_first = first;
    work.segment_last = last;
    work.tiles = count_tiles(args, work.q_tile, first, last);
    work.load_state = args.carry_in || first > 0;
    work.store_state = args.carry_out || last < args.segment_count;
    work.finish = last == args.segment_count && (args.o || args.lse);
    if (work.tiles == 0 && work.load_state && !work.finish) return;
    publisher.publish(work);
}

// Whoever is free takes the next item.
DEVICE void item_major(const ForwardArgs& args, Publisher& publisher, int items) {
    int item = blockIdx.x;
    while (item < items) {
        const int next = gridDim.x + atomicAdd(args.work_counter, 1);
        offer(args, publisher, item, 0, args.segment_count);
        item = next;
    }
}

// Every CTA keeps its items over all segments, so that the carried state never crosses CTAs. Rounds alternate in
// direction: who had the longest item of one round has the shortest of the next.
DEVICE void segment_major(const ForwardArgs& args, Publisher& publisher, int items) {
    const int ctas = gridDim.x;
    for (int segment = 0; segment < args.segment_count; ++segment) {
        for (int round = 0; round * ctas < items; ++round) {
            const int item = round * ctas + (round & 1 ? ctas - 1 - blockIdx.x : blockIdx.x);
            if (item < items) offer(args, publisher, item, segment, segment + 1);
        }
    }
}

DEVICE void run(const ForwardArgs& args, Shared& shared) {
    Publisher publisher{shared};
    const int items = query_tiles(args) * args.heads * args.batch;
    if (args.segment_major) segment_major(args, publisher, items);
    else item_major(args, publisher, items);
    Work end = {};
    end.q_tile = -1;
    publisher.publish(end);
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
