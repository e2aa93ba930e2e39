// Rounds fp32 accumulators, times a scale, to the 16-bit type.
//
// Compile and launch as preprocess.cu, over batch * tokens * heads rows.
#include "elements.cuh"

extern "C" __global__ void attention_convert(const __grid_constant__ ConvertArgs args) {
    const Place place = Place::of(args.batch, args.tokens, args.heads);
    if (!place.inside) return;
    float x[8];
    load_eight(x, args.from + place.offset(args.from_stride));
    store_rounded(args.to, place.offset(args.to_stride), x, args.scale);
}
