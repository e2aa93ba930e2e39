// Online softmax over the two rows of a thread; four neighbouring lanes share a row.
#pragma once

#include "fwd_tile.cuh"

namespace softmax {

constexpr float log2_e = 1.4426950408889634f;

DEVICE float infinity() { return __int_as_float(0x7f800000); }

DEVICE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// m: largest raw score so far, -inf before any key. l: this thread's part of the row sum.
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

// What a tile does to one row: scores become exp2(scale_log2 * score - offset), and what was accumulated before must be
// multiplied by `rescale`.
struct RowUpdate {
    float offset, rescale;
};

// Moves row h's maximum. `MayBeEmpty`: the row may have seen no key so far.
template <bool MayBeEmpty, int Count>
DEVICE RowUpdate update_max(const float (&scores)[Count], State& state, float scale_log2, int h) {
    const float m = fmaxf(state.m[h], row_max(scores, h));
    const float offset = MayBeEmpty && m == -infinity() ? 0.0f : m * scale_log2;
    const float rescale = ptx::exp2(fmaf(state.m[h], scale_log2, -offset));
    state.m[h] = m;
    return {offset, rescale};
}

template <int Count>
DEVICE void exponentiate(float (&scores)[Count], State& state, float scale_log2, const RowUpdate& update, int h) {
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int i = 2 * h; i < Count; i += 4) {
        scores[i] = ptx::exp2(fmaf(scores[i], scale_log2, -update.offset));
        scores[i + 1] = ptx::exp2(fmaf(scores[i + 1], scale_log2, -update.offset));
        even += scores[i];
        odd += scores[i + 1];
    }
    state.l[h] = fmaf(state.l[h], update.rescale, even + odd);
}

template <int Count> DEVICE void rescale_rows(float (&values)[Count], const RowUpdate& first, const RowUpdate& second) {
#pragma unroll
    for (int i = 0; i < Count; ++i) values[i] *= i / 2 % 2 ? second.rescale : first.rescale;
}

// Probabilities as the A operand of the next product.
template <int Count> DEVICE void pack(const float (&p)[Count], u32 (&packed)[Count / 2]) {
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) packed[i] = ptx::pack_16bit(p[2 * i], p[2 * i + 1]);
}

}  // namespace softmax
