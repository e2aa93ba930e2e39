// to += from: rows of numbers, fp32 or the 16-bit type, whose starts lie a pitch apart.
//
// Compile as preprocess.cu. Eight columns a thread, so ceil(rows * ceil(columns / 8) / block) CTAs.
#include "elements.cuh"

struct Columns {
    i64 to, from;  // index of the first
    int count;

    __device__ __forceinline__ static Columns of(const AddArgs& args) {
        const int per_row = (args.columns + 7) / 8;
        const i64 thread = i64{blockIdx.x} * blockDim.x + threadIdx.x, row = thread / per_row;
        const int column = static_cast<int>(thread % per_row) * 8;
        const int count = row < args.rows ? min(args.columns - column, 8) : 0;
        return {row * args.to_pitch + column, row * args.from_pitch + column, count};
    }
};

extern "C" __global__ void attention_add(const __grid_constant__ AddArgs args) {
    const Columns columns = Columns::of(args);
    float* to = static_cast<float*>(args.to) + columns.to;
    const float* from = static_cast<const float*>(args.from) + columns.from;
    if (args.aligned && columns.count == 8) {
        float a[8], b[8];
        load_eight(a, to);
        load_eight(b, from);
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i] += b[i];
        store_eight(to, a);
    } else {
        for (int i = 0; i < columns.count; ++i) to[i] += from[i];
    }
}

// Sums in fp32, rounded once.
extern "C" __global__ void attention_add_rounded(const __grid_constant__ AddArgs args) {
    const Columns columns = Columns::of(args);
    if (columns.count < 8) return;
    Eight* to = reinterpret_cast<Eight*>(static_cast<u16*>(args.to) + columns.to);
    const Eight a = *to;
    const Eight b = *reinterpret_cast<const Eight*>(static_cast<const u16*>(args.from) + columns.from);
    Eight sum;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 x = unpack(a.pair[i]), y = unpack(b.pair[i]);
        sum.pair[i] = pack(x.x + y.x, x.y + y.y);
    }
    *to = sum;
}
