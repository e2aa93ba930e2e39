// The fp32 gradients in global memory.
#pragma once

#include "bwd_score.cuh"

namespace bwd {

// Four consecutive floats, written (`Start`) or added.
template <bool Start> DEVICE void put(float* to, float a, float b, float c, float d) {
    if (Start)
        asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
    else
        asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c),
                     "f"(d) : "memory");
}

// Writes or adds scale * x, an accumulator of `Columns` columns, to the rows row and row + 8 that lie below `rows`.
// Neighbouring lanes exchange a pair, so that each has four columns of one of two blocks of eight.
template <bool Start, int Columns>
DEVICE void put_rows(float* base, i64 stride, const float (&x)[Columns / 2], int row, int rows, const Lane& lane,
                     float scale) {
    const bool odd = lane.lane & 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at = row + 8 * half;
        float* to = base + at * stride + lane.column() + (odd ? 6 : 0);
#pragma unroll
        for (int j = 0; j < Columns / 8; j += 2) {
            const float *even = x + 4 * j + 2 * half, *next = even + 4;
            const float a = __shfl_xor_sync(~0u, odd ? even[0] : next[0], 1);
            const float b = __shfl_xor_sync(~0u, odd ? even[1] : next[1], 1);
            if (at >= rows) continue;
            put<Start>(to + 8 * j, (odd ? a : even[0]) * scale, (odd ? b : even[1]) * scale, (odd ? next[0] : a) * scale,
                       (odd ? next[1] : b) * scale);
        }
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
