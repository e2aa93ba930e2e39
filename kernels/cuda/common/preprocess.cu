// delta = rowsum(o * do), which the backward subtracts from dP, and zeros in the dq that it adds to.
//
// Compile with HEAD_DIM, and DTYPE_FP16 for fp16. HEAD_DIM / 8 threads a row, so ceil(batch * q_len * heads *
// HEAD_DIM / 8 / block) CTAs of a block size that is a multiple of 32. Rows start on 16 bytes.
#include "elements.cuh"

extern "C" __global__ void attention_preprocess(const __grid_constant__ PreprocessArgs args) {
    const Place place = Place::of(args.batch, args.q_len, args.heads);
    float sum = 0.0f;
    if (place.inside) {
        if (args.dq) {
            const float zeros[8] = {};
            store_eight(args.dq + place.offset(args.dq_stride), zeros);
        }
        const Eight o = *reinterpret_cast<const Eight*>(static_cast<const u16*>(args.o) + place.offset(args.o_stride));
        const Eight d_o =
            *reinterpret_cast<const Eight*>(static_cast<const u16*>(args.d_o) + place.offset(args.do_stride));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 a = unpack(o.pair[i]), b = unpack(d_o.pair[i]);
            sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
        }
    }
#pragma unroll
    for (int lanes = HEAD_DIM / 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
    if (place.inside && place.column == 0) args.delta[place.row(args.q_len, args.heads)] = sum;
}
