// The 16-bit input type of a translation unit: bf16, or fp16 with DTYPE_FP16. Sixteen bytes hold eight elements.
#pragma once

#include "../interface.cuh"

typedef unsigned short u16;

struct alignas(16) Eight { u32 pair[4]; };

__device__ __forceinline__ float2 unpack(u32 pair) {
#ifdef DTYPE_FP16
    float2 x;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(x.x), "=f"(x.y) : "r"(pair));
    return x;
#else
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
#endif
}

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 pair;
#ifdef DTYPE_FP16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}

// Eight consecutive elements of the rows [batch][token][head] that a thread works on: HEAD_DIM / 8 threads a row.
struct Place {
    int batch, token, head, column;
    bool inside;

    __device__ __forceinline__ static Place of(int batches, int tokens, int heads) {
        constexpr int per_row = HEAD_DIM / 8;
        const i64 thread = i64{blockIdx.x} * blockDim.x + threadIdx.x, row = thread / per_row;
        const i64 sequence_row = row / heads;
        return {static_cast<int>(sequence_row / tokens), static_cast<int>(sequence_row % tokens),
                static_cast<int>(row % heads), static_cast<int>(thread % per_row) * 8,
                row < i64{batches} * tokens * heads};
    }
    __device__ __forceinline__ i64 offset(const Strides& s) const {
        return batch * s.batch + token * s.token + head * s.head + column;
    }
    // Index into [batch][heads][tokens].
    __device__ __forceinline__ i64 row(int tokens, int heads) const {
        return (i64{batch} * heads + head) * tokens + token;
    }
};

__device__ __forceinline__ void load_eight(float (&x)[8], const float* from) {
    const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
    x[0] = a.x; x[1] = a.y; x[2] = a.z; x[3] = a.w;
    x[4] = b.x; x[5] = b.y; x[6] = b.z; x[7] = b.w;
}

__device__ __forceinline__ void store_eight(float* to, const float (&x)[8]) {
    reinterpret_cast<float4*>(to)[0] = {x[0], x[1], x[2], x[3]};
    reinterpret_cast<float4*>(to)[1] = {x[4], x[5], x[6], x[7]};
}

// Rounds eight floats, times `scale`, to the 16-bit type.
__device__ __forceinline__ void store_rounded(void* to, i64 offset, const float (&x)[8], float scale) {
    Eight packed;
#pragma unroll
    for (int i = 0; i < 4; ++i) packed.pair[i] = pack(x[2 * i] * scale, x[2 * i + 1] * scale);
    *reinterpret_cast<Eight*>(static_cast<u16*>(to) + offset) = packed;
}
