// Output and carried state, between registers and global memory. Four neighbouring lanes hold 32 bytes of a row of
// fp32, or after an exchange 64 bytes of a row of 16-bit values: whole sectors, so shared memory is not needed and the
// next query tile can be loaded meanwhile.
#pragma once

#include "fwd_softmax.cuh"

namespace epilogue {

// Where a thread's two rows are.
struct Rows {
    int first;         // query; the other is first + 8
    int head, batch, lane;

    DEVICE int query(int h) const { return first + 8 * h; }
};

DEVICE Rows make_rows(const Work& work, int first) {
    return {first, work.head, work.batch, static_cast<int>(threadIdx.x % 32)};
}

DEVICE i64 row_index(const ForwardArgs& args, const Rows& rows, int h) {
    return (static_cast<i64>(rows.batch) * args.heads + rows.head) * args.q_len + rows.query(h);
}

DEVICE i64 offset(const Strides& strides, const Rows& rows, int h) {
    return rows.batch * strides.batch + rows.query(h) * strides.token + rows.head * strides.head;
}

template <int Count> DEVICE void clear(float (&o)[Count], softmax::State& state) {
#pragma unroll
    for (int i = 0; i < Count; ++i) o[i] = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        state.m[h] = -softmax::infinity();
        state.l[h] = 0.0f;
    }
}

template <int Count>
DEVICE void load_state(const ForwardArgs& args, const Work& work, int row, float (&o)[Count], softmax::State& state) {
    const Rows rows = make_rows(work, row);
    clear(o, state);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        if (rows.query(h) >= args.q_len) continue;
        const float* source = args.acc_o + offset(args.acc_stride, rows, h) + 2 * (rows.lane % 4);
#pragma unroll
        for (int j = 0; j < Count / 4; ++j) {
            const float2 pair = *reinterpret_cast<const float2*>(source + 8 * j);
            o[4 * j + 2 * h] = pair.x;
            o[4 * j + 2 * h + 1] = pair.y;
        }
        const i64 index = row_index(args, rows, h);
        state.m[h] = args.acc_m[index] / args.scale;
        if (rows.lane % 4 == 0) state.l[h] = args.acc_l[index];
    }
}

// `sum` is the row's whole l.
template <int Count>
DEVICE void store_state(const ForwardArgs& args, const Rows& rows, const float (&o)[Count],
                        const softmax::State& state, const float (&sum)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        if (rows.query(h) >= args.q_len) continue;
        float* target = args.acc_o + offset(args.acc_stride, rows, h) + 2 * (rows.lane % 4);
#pragma unroll
        for (int j = 0; j < Count / 4; ++j) {
            *reinterpret_cast<float2*>(target + 8 * j) = make_float2(o[4 * j + 2 * h], o[4 * j + 2 * h + 1]);
        }
        if (rows.lane % 4 != 0) continue;
        const i64 index = row_index(args, rows, h);
        args.acc_m[index] = state.m[h] * args.scale;
        args.acc_l[index] = sum[h];
    }
}

// Lane i of four gives its words 0..3 to lanes 0..3 and gets word i of each, in lane order.
DEVICE uint4 transpose_quad(u32 w0, u32 w1, u32 w2, u32 w3, int lane) {
    const bool odd = lane & 1, high = lane & 2;
    const u32 x = __shfl_xor_sync(0xffffffff, odd ? w0 : w1, 1);
    const u32 y = __shfl_xor_sync(0xffffffff, odd ? w2 : w3, 1);
    const u32 a0 = odd ? x : w0, a1 = odd ? w1 : x;
    const u32 b0 = odd ? y : w2, b1 = odd ? w3 : y;
    const u32 z0 = __shfl_xor_sync(0xffffffff, high ? a0 : b0, 2);
    const u32 z1 = __shfl_xor_sync(0xffffffff, high ? a1 : b1, 2);
    return high ? make_uint4(z0, z1, b0, b1) : make_uint4(a0, a1, z0, z1);
}

template <int Count>
DEVICE void store_output(const ForwardArgs& args, const Rows& rows, const float (&o)[Count], const float (&sum)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float inverse = sum[h] == 0.0f ? 0.0f : 1.0f / sum[h];
        const bool exists = rows.query(h) < args.q_len;
        u32* row = static_cast<u32*>(args.o) + offset(args.o_stride, rows, h) / 2;
#pragma unroll
        for (int j = 0; j < Count / 4; j += 4) {
            u32 w[4];
#pragma unroll
            for (int b = 0; b < 4; ++b) {
                const int i = 4 * (j + b) + 2 * h;
                w[b] = ptx::pack_16bit(o[i] * inverse, o[i + 1] * inverse);
            }
            const uint4 words = transpose_quad(w[0], w[1], w[2], w[3], rows.lane);
            if (exists) *reinterpret_cast<uint4*>(row + 4 * (j + rows.lane % 4)) = words;
        }
    }
}

DEVICE void store_lse(const ForwardArgs& args, const Rows& rows, const softmax::State& state, const float (&sum)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        if (rows.query(h) >= args.q_len || rows.lane % 4 != 0) continue;
        args.lse[row_index(args, rows, h)] =
            sum[h] == 0.0f ? -softmax::infinity() : state.m[h] * args.scale + __logf(sum[h]);
    }
}

template <int Count>
DEVICE void store(const ForwardArgs& args, const Work& work, int row, const float (&o)[Count],
                  const softmax::State& state) {
    const Rows rows = make_rows(work, row);
    const float sum[2] = {softmax::quad_sum(state.l[0]), softmax::quad_sum(state.l[1])};
    if (work.store_state) store_state(args, rows, o, state, sum);
    if (work.finish && args.o) store_output(args, rows, o, sum);
    if (work.finish && args.lse) store_lse(args, rows, state, sum);
}

}  // namespace epilogue
