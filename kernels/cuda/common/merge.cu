// Merging the partial states of attention over disjoint sets of keys, and finishing a state.
//
// A state is o (unnormalised), m and l of each query: o = sum exp(s - m) v and l = sum exp(s - m) over the keys seen, m
// near their largest score; m = -inf and l = 0 where none was seen, and o is then taken as 0 whatever it holds.
// Compile and launch as preprocess.cu.
#include "elements.cuh"

// Zero for scale 0, whatever x is.
__device__ __forceinline__ float scaled(float x, float scale) { return scale > 0.0f ? x * scale : 0.0f; }

// a = a + b, both states relative to the larger m.
extern "C" __global__ void attention_merge(const __grid_constant__ MergeArgs args) {
    const Place place = Place::of(args.batch, args.q_len, args.heads);
    const i64 row = place.row(args.q_len, args.heads);
    float m_a = 0.0f, m_b = 0.0f, l = 0.0f, m = 0.0f;
    if (place.inside) {
        m_a = args.a.m[row];
        m_b = args.b.m[row];
        m = fmaxf(m_a, m_b);
        const float empty = __int_as_float(0xff800000);
        const float scale_a = m_a == empty ? 0.0f : __expf(m_a - m), scale_b = m_b == empty ? 0.0f : __expf(m_b - m);
        float* to = args.a.o + place.offset(args.a.o_stride);
        float a[8], b[8];
        load_eight(a, to);
        load_eight(b, args.b.o + place.offset(args.b.o_stride));
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i] = scaled(a[i], scale_a) + scaled(b[i], scale_b);
        store_eight(to, a);
        l = scaled(args.a.l[row], scale_a) + scaled(args.b.l[row], scale_b);
    }
    // The threads of a row read its m and l before one of them overwrites both.
    __syncwarp();
    if (place.inside && place.column == 0) {
        args.a.m[row] = m;
        args.a.l[row] = l;
    }
}

// o / l in the 16-bit type and lse = m + ln(l); zero and -inf where no key was seen.
extern "C" __global__ void attention_finalise(const __grid_constant__ FinaliseArgs args) {
    const Place place = Place::of(args.batch, args.q_len, args.heads);
    if (!place.inside) return;
    const i64 row = place.row(args.q_len, args.heads);
    const float l = args.state.l[row];
    float x[8] = {};
    if (l > 0.0f) load_eight(x, args.state.o + place.offset(args.state.o_stride));
    store_rounded(args.o, place.offset(args.o_stride), x, l > 0.0f ? 1.0f / l : 0.0f);
    if (place.column == 0) args.lse[row] = l > 0.0f ? args.state.m[row] + logf(l) : __int_as_float(0xff800000);
}
