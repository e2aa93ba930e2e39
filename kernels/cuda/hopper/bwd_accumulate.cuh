// Adding to the fp32 gradients in global memory.
#pragma once

#include "bwd_score.cuh"

namespace bwd {

DEVICE void reduce_add(float* to, float x, float y) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}

// Adds scale * x, an accumulator of `Columns` columns, to the rows row and row + 8 that lie below `rows`.
template <int Columns>
DEVICE void add_rows(float* base, i64 stride, const float (&x)[Columns / 2], int row, int rows, int column,
                     float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at = row + 8 * half;
        if (at >= rows) continue;
        float* to = base + at * stride + column;
#pragma unroll
        for (int j = 0; j < Columns / 8; ++j)
            reduce_add(to + 8 * j, x[4 * j + 2 * half] * scale, x[4 * j + 2 * half + 1] * scale);
    }
}

// Writes scale * dq, a 64 x 64 accumulator, as two blocks of 64 rows x 32 columns with a 128-byte swizzle. Odd rows
// write their 8-column groups in another order, so that the rows of a half-warp meet in no bank.
DEVICE void stage_dq(float* blocks, const float (&dq)[32], const Lane& lane, float scale) {
    int in_warp = lane.lane;
    asm volatile("" : "+r"(in_warp));  // the address is computed anew for each tile: kept, it would spill
    const int row = in_warp / 4, quad = in_warp % 4;
    const bool odd = row & 1;
    const int chunk = quad / 2 ^ row ^ (odd ? 4 : 0);
    const u32 at = ptx::shared_address(blocks) + (lane.warp * 16 + row) * 128 + chunk * 16 + quad % 2 * 8;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const int block = i / 8, half = i / 4 % 2, pair = i % 4;
        const int even_group = 4 * block + pair, odd_group = 4 * block + (pair ^ 2);
        const float x = odd ? dq[4 * odd_group + 2 * half] : dq[4 * even_group + 2 * half];
        const float y = odd ? dq[4 * odd_group + 2 * half + 1] : dq[4 * even_group + 2 * half + 1];
        const u32 to = (at ^ (pair << 5)) + block * dq_block_bytes + half * 1024;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x * scale), "f"(y * scale) : "memory");
    }
}

}  // namespace bwd
