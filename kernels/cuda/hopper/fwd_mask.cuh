// Masks. Positions increase over the slots of a segment, so the keys a query may see are one run of columns of a tile.
#pragma once

#include "fwd_tile.cuh"

namespace mask {

DEVICE constexpr int first_step() {
    int step = 1;
    while (2 * step <= TILE_KV) step *= 2;
    return step;
}

// How many of the `count` increasing values are below `limit` (inclusive: not above it).
DEVICE int count_below(const int* values, int count, int limit, bool inclusive) {
    int below = 0;
#pragma unroll 1
    for (int step = first_step(); step > 0; step /= 2) {
        const int next = below + step;
        if (next > count) continue;
        const int value = __ldg(values + next - 1);
        if (value < limit || (inclusive && value == limit)) below = next;
    }
    return below;
}

// The same where most segments are: positions in a row without gaps need no search.
DEVICE int find_bound(const int* positions, int count, int limit, bool inclusive) {
    const int first = __ldg(positions), last = __ldg(positions + count - 1);
    if (last - first != count - 1) return count_below(positions, count, limit, inclusive);
    const i64 below = static_cast<i64>(limit) - first + inclusive;
    return static_cast<int>(max(i64{0}, min(below, i64{count})));
}

// Columns [first, last) of the tile, for this thread's two rows, counted from its own first column.
struct Columns {
    int first[2], last[2];
};

// `row` is the thread's first query; the other is row + 8. Queries past the end see nothing. Each of the four lanes
// that share the two rows looks for one of their four bounds.
DEVICE Columns visible(const ForwardArgs& args, const TileTag& tag, int row, int lane) {
    const Segment& segment = args.segments[tag.segment];
    const int start = tag.index * TILE_KV;
    const int q = row + lane % 4 / 2 * 8;
    const bool upper = lane & 1;
    int bound = 0;
    if (q < args.q_len) {
        const int limit = __ldg((upper ? args.q_hi : args.q_lo) + q);
        bound = find_bound(segment.pos + start, min(TILE_KV, segment.len - start), limit, upper);
    }
    __syncwarp();
    Columns columns;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int own = 2 * (lane % 4), source = (lane & ~3) + 2 * h;
        columns.first[h] = __shfl_sync(0xffffffff, bound, source) - own;
        columns.last[h] = __shfl_sync(0xffffffff, bound, source + 1) - own;
    }
    return columns;
}

template <int Count> DEVICE void apply(float (&scores)[Count], const Columns& columns) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
        const int h = i / 2 % 2;
        const int column = i / 4 * 8 + i % 2;
        const bool seen = column >= columns.first[h] && column < columns.last[h];
        scores[i] = seen ? scores[i] : -__int_as_float(0x7f800000);
    }
}

}  // namespace mask
