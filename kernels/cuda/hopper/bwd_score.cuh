// Products of one query tile and the arithmetic between them. `group` is the consumer warpgroup, 0 or 1.
#pragma once

#include "bwd_tile.cuh"

namespace bwd {

// This thread's place in the 64 x q transposed score tile of its warpgroup: rows (keys) row and row + 8, columns
// (queries) 8 j + column and the next.
struct Lane {
    int group, warp, lane;
    DEVICE static Lane of(int thread) {
        const int warp = __shfl_sync(0xffffffff, thread / 32, 0);  // uniform for the compiler
        return {warp / 4, warp % 4, thread % 32};
    }
    DEVICE int row() const { return warp * 16 + lane / 4; }
    DEVICE int column() const { return lane % 4 * 2; }
};

// d = A B^T of 64 keys of K or V with a tile of Q or dO, over D.
template <int D, int R> DEVICE void multiply_scores(float (&d)[R], const u16* keys, const u16* queries, int group) {
    using T = Tile<D>;
    const u64 a = wgmma::descriptor_k_major(ptx::shared_address(keys) + group * 64 * 128);
    const u64 b = wgmma::descriptor_k_major(ptx::shared_address(queries));
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
        const int block = step / 4, inside = step % 4 * 2;
        wgmma::Multiply<T::q>::template shared_shared<0, 0>(d, a + (block * T::kv * 8 + inside),
                                                            b + (block * T::q * 8 + inside), step > 0);
    }
}

// d += A B of the 64 x q operand `a` in registers with a tile of dO or Q.
template <int D, int R, int A> DEVICE void multiply_gradient(float (&d)[R], const u32 (&a)[A], const u16* queries) {
    using T = Tile<D>;
    const u64 b = wgmma::descriptor_mn_major(ptx::shared_address(queries), T::q * 128);
#pragma unroll
    for (int i = 0; i < T::q / 4; i += 4)
        wgmma::Multiply<D>::template register_shared<1>(d, a[i], a[i + 1], a[i + 2], a[i + 3], b + i * 32, 1);
}

// d = 64 x 64 of dS K over all 128 keys: for D = 128 a group takes half of the columns, for D = 64 half of the queries.
template <int D> DEVICE void multiply_dq(float (&d)[32], const u16* ds, const u16* keys, int group) {
    using T = Tile<D>;
    const int query_half = T::q == 128 ? group : 0, column_half = D == 128 ? group : 0;
    const u64 a = wgmma::descriptor_k_major(ptx::shared_address(ds) + query_half * 64 * 128);
    const u64 b = wgmma::descriptor_mn_major(ptx::shared_address(keys) + column_half * T::kv * 128, T::kv * 128);
#pragma unroll
    for (int step = 0; step < T::kv / 16; ++step)
        wgmma::Multiply<64>::template shared_shared<0, 1>(d, a + (step / 4 * T::q * 8 + step % 4 * 2), b + step * 128,
                                                          step > 0);
}

// Positions of a thread's two keys, and whether they exist.
struct Keys { int pos[2]; bool inside[2]; };

// s = P = exp2(s * scale - lse), zero where masked.
template <bool Masked, int Q, int R>
DEVICE void exponentiate(float (&s)[R], const Stats<Q>& stats, const Keys& keys, float scale_log2, int column) {
#pragma unroll
    for (int j = 0; j < Q / 8; ++j) {
        const int at = 8 * j + column;
        const float2 lse = *reinterpret_cast<const float2*>(&stats.lse[at]);
        const int2 lo = Masked ? *reinterpret_cast<const int2*>(&stats.lo[at]) : int2{};
        const int2 hi = Masked ? *reinterpret_cast<const int2*>(&stats.hi[at]) : int2{};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float& x = s[4 * j + 2 * half + e];
                x = ptx::exp2(fmaf(x, scale_log2, -(e ? lse.y : lse.x)));
                const int pos = keys.pos[half];
                if (Masked && !(keys.inside[half] && (e ? lo.y : lo.x) <= pos && pos <= (e ? hi.y : hi.x))) x = 0.0f;
            }
        }
    }
}

// s = P, zero where masked.
template <int Q, int R> DEVICE void mask(float (&s)[R], const Stats<Q>& stats, const Keys& keys, int column) {
#pragma unroll
    for (int j = 0; j < Q / 8; ++j) {
        const int2 lo = *reinterpret_cast<const int2*>(&stats.lo[8 * j + column]);
        const int2 hi = *reinterpret_cast<const int2*>(&stats.hi[8 * j + column]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int pos = keys.pos[i / 2];
            if (!(keys.inside[i / 2] && (i % 2 ? lo.y : lo.x) <= pos && pos <= (i % 2 ? hi.y : hi.x))) s[4 * j + i] = 0.0f;
        }
    }
}

// p = dS = P * (dP - delta).
template <int Q, int R>
DEVICE void differentiate(float (&p)[R], const float (&dp)[R], const Stats<Q>& stats, int column) {
#pragma unroll
    for (int j = 0; j < Q / 8; ++j) {
        const float2 delta = *reinterpret_cast<const float2*>(&stats.delta[8 * j + column]);
#pragma unroll
        for (int i = 0; i < 4; ++i) p[4 * j + i] *= dp[4 * j + i] - (i % 2 ? delta.y : delta.x);
    }
}

// dp = dS = P * (dP - delta), of P rounded to an A operand.
template <int Q, int R>
DEVICE void differentiate_rounded(float (&dp)[R], const u32 (&p)[R / 2], const Stats<Q>& stats, int column) {
#pragma unroll
    for (int j = 0; j < Q / 8; ++j) {
        const float2 delta = *reinterpret_cast<const float2*>(&stats.delta[8 * j + column]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float2 rounded = ptx::unpack_16bit(p[2 * j + half]);
            float *x = dp + 4 * j + 2 * half;
            x[0] = rounded.x * (x[0] - delta.x);
            x[1] = rounded.y * (x[1] - delta.y);
        }
    }
}

// Rounds an accumulator to an A operand.
template <int R> DEVICE void pack(u32 (&packed)[R / 2], const float (&x)[R]) {
#pragma unroll
    for (int i = 0; i < R / 2; ++i) packed[i] = ptx::pack_16bit(x[2 * i], x[2 * i + 1]);
}

// Writes dS, transposed, as the k-major A operand of dQ: [half of the keys][query][64 keys], 128-byte swizzle.
template <int Q, int A> DEVICE void store_ds(u16* ds, const u32 (&a)[A], const Lane& lane) {
    const int in_block = lane.lane % 8, matrix = lane.lane / 8;
    const int chunk = (lane.warp * 2 + matrix % 2) ^ in_block;
    const u32 row = ptx::shared_address(ds) + lane.group * Q * 128 + (matrix / 2 * 8 + in_block) * 128 + chunk * 16;
#pragma unroll
    for (int j = 0; j < Q / 16; ++j)
        ptx::store_matrix_x4_transposed(row + j * 16 * 128, a[4 * j], a[4 * j + 1], a[4 * j + 2], a[4 * j + 3]);
}

}  // namespace bwd
