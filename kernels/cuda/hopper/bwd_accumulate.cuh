// Adding to the fp32 gradients in global memory.
#pragma once

#include "bwd_score.cuh"

namespace bwd {

DEVICE void reduce_add(float* to, float x, float y) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}

// Adds scale * x, an accumulator of `Columns` columns, to the rows row and row + 8 that lie below `rows`.
template <int Columns> DEVICE void add_rows(float* base, i64 stride, const float (&x)[Columns / 2], int row, int rows, int column, float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at = row + 8 * half;
        if (at >= rows) continue;
        float* to = base + at * stride + column;
#pragma unroll
        for (int j = 0; j < Columns / 8; ++j) reduce_add(to + 8 * j, x[4 * j + 2 * half] * scale, x[4 * j + 2 * half + 1] * scale);
    }
}

// Deterministic order of dQ. Each 32-bit word of dq_turn is a pair of 16-bit counters, one per consumer group: 1 + the
// last key tile whose contribution to that query tile is complete.
struct Turn {
    unsigned short* counter;
    int barrier;

    // Waits for the key tile before this one; `follows` is false where that tile does not touch the query tile.
    DEVICE void wait(bool follows, int key_tile, int thread) const {
        if (!follows) return;
        if (thread == 0) {
            unsigned short turn;
            do {
                asm volatile("ld.acquire.gpu.global.u16 %0, [%1];" : "=h"(turn) : "l"(counter) : "memory");
            } while (turn != static_cast<unsigned short>(key_tile));
        }
        ptx::named_sync(barrier, warpgroup_threads);
    }

    DEVICE void pass(int key_tile, int thread) const {
        __threadfence();
        ptx::named_sync(barrier, warpgroup_threads);
        if (thread == 0)
            asm volatile("st.release.gpu.global.u16 [%0], %1;" ::"l"(counter), "h"(static_cast<unsigned short>(key_tile + 1)) : "memory");
    }
};

}  // namespace bwd
