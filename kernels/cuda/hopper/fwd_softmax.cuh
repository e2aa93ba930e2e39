// Online softmax over the two rows of a thread; four neighbouring lanes share a row.
#pragma once

#include "fwd_tile.cuh"

namespace softmax {

constexpr float log2_e = 1.4426950408889634f;
constexpr float ln_2 = 0.6931471805599453f;

DEVICE float infinity() { return __int_as_float(0x7f800000); }

// Scores may exceed the reference maximum by this much (log2) before the state is rescaled: p stays below 256, and most
// tiles after the first few need no pass over the output registers. (-inf - -inf is NaN and does not exceed it.)
constexpr float slack_log2 = 8.0f;

DEVICE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// m: the reference, in units of the raw scores; -inf before any key. l: this thread's part of the row sum.
struct State {
    float m[2], l[2];
};

template <int Count> DEVICE float row_max(const float (&scores)[Count], int h) {
    float even = scores[2 * h], odd = scores[2 * h + 1];
#pragma unroll
    for (int i = 4; i < Count; i += 4) {
        even = fmaxf(even, scores[i + 2 * h]);
        odd = fmaxf(odd, scores[i + 2 * h + 1]);
    }
    return quad_max(fmaxf(even, odd));
}

// Turns scores into exp(scale * (score - m)) and adds them to l. What was accumulated before must be multiplied by
// `rescale`, which is 1 where m has not moved. Returns the sum of the new values: something that is known only when they
// all are, and at most 256 each.
template <int Count>
DEVICE float update(float (&scores)[Count], State& state, float scale_log2, float (&rescale)[2]) {
    float sum[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float top = row_max(scores, h);
        const float m = (top - state.m[h]) * scale_log2 > slack_log2 ? top : state.m[h];
        const float offset = m == -infinity() ? 0.0f : m * scale_log2;
        rescale[h] = m == state.m[h] ? 1.0f : ptx::exp2(fmaf(state.m[h], scale_log2, -offset));
        state.m[h] = m;
        float even = 0.0f, odd = 0.0f;
#pragma unroll
        for (int i = 2 * h; i < Count; i += 4) {
            scores[i] = ptx::exp2(fmaf(scores[i], scale_log2, -offset));
            scores[i + 1] = ptx::exp2(fmaf(scores[i + 1], scale_log2, -offset));
            even += scores[i];
            odd += scores[i + 1];
        }
        sum[h] = even + odd;
        state.l[h] = fmaf(state.l[h], rescale[h], sum[h]);
    }
    return sum[0] + sum[1];
}

// Skips the pass where no row of the warp has moved.
template <int Count> DEVICE void rescale_rows(float (&values)[Count], const float (&factor)[2]) {
    if (!__any_sync(0xffffffff, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < Count; ++i) values[i] *= factor[i / 2 % 2];
}

// Probabilities as the A operand of the next product.
template <int Count> DEVICE void pack(const float (&p)[Count], u32 (&packed)[Count / 2]) {
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) packed[i] = ptx::pack_16bit(p[2 * i], p[2 * i + 1]);
}

}  // namespace softmax
