// The scheduler: one thread that decides what the CTA works on next and tells the producer and the consumers.
#pragma once

#include "fwd_tile.cuh"

namespace schedule {

DEVICE int query_tiles(const ForwardArgs& args) { return (args.q_len + TILE_Q - 1) / TILE_Q; }

// Query tiles that the CTAs of a cluster work on at the same time, one each.
DEVICE int query_groups(const ForwardArgs& args) { return (query_tiles(args) + CLUSTER - 1) / CLUSTER; }

// Key tiles [first, last) that some CTA of the cluster needs.
struct Span {
    int first, last;
};

DEVICE Span span(const Segment& segment, const Work& work) {
    Span all = {0x7fffffff, 0};
#pragma unroll
    for (int rank = 0; rank < CLUSTER; ++rank) {
        if (work.q_tiles[rank] < 0) continue;
        const TileRange range = segment.ranges[work.q_tiles[rank]];
        if (range.first >= range.last) continue;
        all.first = min(all.first, range.first);
        all.last = max(all.last, range.last);
    }
    return all;
}

DEVICE int count_tiles(const ForwardArgs& args, const Work& work) {
    int tiles = 0;
#pragma unroll 1
    for (int s = work.segment_first; s < work.segment_last; ++s) {
        const Span needed = span(args.segments[s], work);
        tiles += max(needed.last - needed.first, 0);
    }
    return tiles;
}

// Items go section by section of head_section heads; in a section the longest query tiles of all its heads come first.
DEVICE void locate(const ForwardArgs& args, int item, Work& work) {
    const int groups = query_groups(args);
    const int section_start = item / (args.head_section * groups) * args.head_section;
    const int heads = min(args.head_section, args.heads * args.batch - section_start);
    const int rest = item - section_start * groups;
    const int head = section_start + rest % heads;
#pragma unroll
    for (int rank = 0; rank < CLUSTER; ++rank) {
        const int place = rest / heads * CLUSTER + rank;
        work.q_tiles[rank] = place < query_tiles(args) ? args.order[place] : -1;
    }
    work.head = head % args.heads;
    work.kv_head = work.head / (args.heads / args.kv_heads);
    work.batch = head / args.heads;
}

struct Publisher {
    Shared& shared;
    RingPosition<work_slots> position;

    DEVICE Work& wait_slot() {
        wait_barrier(shared.barriers.work_empty[position.slot()], position.phase() ^ 1);
        return shared.work[position.slot()];
    }

    DEVICE void publish() {
        arrive_barrier(shared.barriers.work_full[position.slot()]);
        position.advance();
    }
};

// One item over segments [first, last). An item that changes nothing is not published.
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
    if (tiles > 0 || finish || !load_state) publisher.publish();
}

// Whoever is free takes the next item. The CTAs of a cluster, which must agree, take turns instead.
DEVICE void item_major(const ForwardArgs& args, Publisher& publisher, int items) {
    int item = blockIdx.x / CLUSTER;
    while (item < items) {
        const int next = CLUSTER == 1 ? gridDim.x + atomicAdd(args.work_counter, 1) : item + gridDim.x / CLUSTER;
        offer(args, publisher, item, 0, args.segment_count);
        item = next;
    }
}

// Every CTA keeps its items over all segments, so that the carried state never crosses CTAs. Rounds alternate in
// direction: who had the longest item of one round has the shortest of the next.
DEVICE void segment_major(const ForwardArgs& args, Publisher& publisher, int items) {
    const int lanes = gridDim.x / CLUSTER, lane = blockIdx.x / CLUSTER;
    for (int segment = 0; segment < args.segment_count; ++segment) {
        for (int round = 0; round * lanes < items; ++round) {
            const int item = round * lanes + (round & 1 ? lanes - 1 - lane : lane);
            if (item < items) offer(args, publisher, item, segment, segment + 1);
        }
    }
}

DEVICE void run(const ForwardArgs& args, Shared& shared) {
    Publisher publisher{shared};
    const int items = query_groups(args) * args.heads * args.batch;
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
