// Attention forward: a CTA owns 128 queries of one head and walks over the key tiles that they see, warps 32 queries
// each. With two stages a tile of K and V is copied while the one before is used. With one, K of the next tile is copied
// while this one's softmax and PV run, V while QK^T does.
//
// Grid: query tiles x heads x batch; ForwardArgs by value; 128 threads; dynamic shared memory for Q and STAGES (1 or 2)
// copies of K and V.
#include "mma.cuh"

namespace {

constexpr int D = HEAD_DIM, tile_q = 128, tile_kv = TILE_KV, stages = STAGES, threads = 128;
constexpr bool q_in_registers = D == 64 && tile_kv == 64;  // where they suffice: a third of the reads from shared memory less
constexpr int q_bytes = tile_q * D * 2, kv_bytes = tile_kv * D * 2;
constexpr int MT = 2, NT = tile_kv / 8, DT = D / 8;  // 16-row and 8-column blocks of a warp

// The key tiles of one query tile, over all segments. Ranges are read anew when asked for: registers are what this
// kernel is short of, so nothing is kept that memory in L1, a special register or one addition gives.
struct Cursor {
    const ForwardArgs& args;
    int segment, tile;

    DEVICE explicit Cursor(const ForwardArgs& args) : args(args), segment(-1), tile(0) { open_next(); }
    DEVICE bool done() const { return segment >= args.segment_count; }
    DEVICE const TileRange& range() const { return args.segments[segment].ranges[args.order[blockIdx.x]]; }
    DEVICE bool masked() const { return tile < range().full_first || tile >= range().full_last; }
    DEVICE void advance() {
        if (++tile == range().last) open_next();
    }
    DEVICE void open_next() {
        while (++segment < args.segment_count) {
            tile = range().first;
            if (tile >= range().last) continue;
            if (!await_segment(args.segments[segment], segment, args.error, args.spin_limit)) segment = args.segment_count;
            return;
        }
    }
};

struct Forward {
    const ForwardArgs& args;
    const u32 shared;
    float o[MT][DT][4];
    float m[MT][2], l[MT][2];  // running maximum of the raw scores; this lane's share of the running sum
    float log2_scale;
    u32 q[q_in_registers ? MT : 1][q_in_registers ? D / 16 : 1][4];
    // Read where they are needed: registers are what this kernel is short of.

    DEVICE int q_tile() const { return args.order[blockIdx.x]; }
    static DEVICE int head() { return blockIdx.y; }
    static DEVICE int batch() { return blockIdx.z; }
    static DEVICE int warp() { return threadIdx.x / 32; }
    static DEVICE int lane() { return threadIdx.x % 32; }
    DEVICE SharedTile<D> q_shared() const { return {shared}; }
    DEVICE SharedTile<D> k_shared(int stage) const { return {shared + q_bytes + 2 * stage * kv_bytes}; }
    DEVICE SharedTile<D> v_shared(int stage) const { return {k_shared(stage).base + kv_bytes}; }

    DEVICE i64 kv_offset(const Segment& s, int tile) const {
        const int kv_head = head() / (args.heads / args.kv_heads);
        return batch() * s.kv.batch + i64{tile} * tile_kv * s.kv.token + kv_head * s.kv.head;
    }
    DEVICE void copy_keys(const Cursor& at, int stage) const {
        const Segment& s = args.segments[at.segment];
        copy_tile<tile_kv, D, threads>(k_shared(stage), static_cast<const u16*>(s.k) + kv_offset(s, at.tile), s.kv.token,
                                       s.len - at.tile * tile_kv, threadIdx.x);
    }
    DEVICE void copy_values(const Cursor& at, int stage) const {
        const Segment& s = args.segments[at.segment];
        copy_tile<tile_kv, D, threads>(v_shared(stage), static_cast<const u16*>(s.v) + kv_offset(s, at.tile), s.kv.token,
                                       s.len - at.tile * tile_kv, threadIdx.x);
    }
    DEVICE void copy_queries() const {
        const u16* from = static_cast<const u16*>(args.q) + batch() * args.q_stride.batch + head() * args.q_stride.head;
        const int first = q_tile() * tile_q;
        copy_tile<tile_q, D, threads>(q_shared(), from + first * args.q_stride.token, args.q_stride.token, args.q_len - first, threadIdx.x);
    }

    // First query slot of this lane's rows r = 0..3 (16-row block r / 2, upper or lower half r % 2).
    DEVICE int query(int block, int half) const { return q_tile() * tile_q + warp() * 32 + block * 16 + half * 8 + lane() / 4; }

    DEVICE void run() {
        Cursor at(args);
        copy_queries();
        if (!at.done()) {
            copy_keys(at, 0);
            if (stages > 1) copy_values(at, 0);
        }
        copy_commit();
        start_state();
        if (q_in_registers) load_queries();
        for (int stage = 0; !at.done(); stage = (stage + 1) % stages) {
            float s[MT][NT][4];
            clear(s);
            copy_wait<0>();
            __syncthreads();
            advance(at, s, stage);
            softmax(s);
            accumulate(s, stage);
        }
        copy_wait<0>();
        __syncthreads();
        finish();
    }

    // The scores of one tile, and the copies of the next, which `at` is left at.
    DEVICE void advance(Cursor& at, float (&s)[MT][NT][4], int stage) const {
        if (stages == 1) {
            copy_values(at, 0);
            copy_commit();
        }
        scores(s, stage);
        if (at.masked()) mask(s, at);
        if (stages == 1) {
            copy_wait<0>();
            __syncthreads();
        }
        at.advance();
        if (!at.done()) {
            copy_keys(at, (stage + 1) % stages);
            if (stages > 1) copy_values(at, (stage + 1) % stages);
        }
        copy_commit();
    }

    DEVICE u32 q_lane() const {
        const LaneRow a = LaneRow::a(lane());
        return q_shared().lane(warp() * 32 + a.row, a.right);
    }
    DEVICE void load_queries() {
        copy_wait<0>();
        __syncthreads();
        const u32 from = q_lane();
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int k = 0; k < D / 16; ++k) load_matrices(q[m][k], SharedTile<D>::block(from, 16 * m, 16 * k));
    }

    DEVICE void scores(float (&s)[MT][NT][4], int stage) const {
        const LaneRow b = LaneRow::b(lane());
        const u32 q_from = q_in_registers ? 0 : q_lane(), k_from = k_shared(stage).lane(b.row, b.right);
        multiply<MT, NT / 2, D / 16>(
            s,
            [&](u32(&f)[4], int m, int k) {
                if constexpr (q_in_registers) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) f[i] = q[m][k][i];
                } else {
                    load_matrices(f, SharedTile<D>::block(q_from, 16 * m, 16 * k));
                }
            },
            [&](u32(&f)[4], int n, int k) { load_matrices(f, SharedTile<D>::block(k_from, 16 * n, 16 * k)); });
    }

    DEVICE void accumulate(const float (&s)[MT][NT][4], int stage) {
        const LaneRow b = LaneRow::a(lane());
        const u32 v_lane = v_shared(stage).lane(b.row, b.right);
        multiply<MT, DT / 2, tile_kv / 16>(
            o,
            [&](u32(&f)[4], int m, int k) {
                f[0] = pack(s[m][2 * k][0], s[m][2 * k][1]);
                f[1] = pack(s[m][2 * k][2], s[m][2 * k][3]);
                f[2] = pack(s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
                f[3] = pack(s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
            },
            [&](u32(&f)[4], int n, int k) { load_matrices_transposed(f, SharedTile<D>::block(v_lane, 16 * k, 16 * n)); });
    }

    DEVICE void mask(float (&s)[MT][NT][4], const Cursor& at) const {
        const Segment& segment = args.segments[at.segment];
        int lo[MT][2], hi[MT][2];
#pragma unroll
        for (int b = 0; b < MT; ++b)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = min(query(b, h), args.q_len - 1);
                lo[b][h] = args.q_lo[row];
                hi[b][h] = args.q_hi[row];
            }
#pragma unroll
        for (int n = 0; n < NT; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int slot = at.tile * tile_kv + n * 8 + lane() % 4 * 2 + e;
                const bool inside = slot < segment.len;
                const int pos = load_now(segment.pos + (inside ? slot : 0));
#pragma unroll
                for (int b = 0; b < MT; ++b)
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        if (!inside || pos < lo[b][h] || pos > hi[b][h]) s[b][n][2 * h + e] = -infinity();
            }
    }

    // Turns scores into weights relative to the running maximum, and brings o and l to that maximum.
    DEVICE void softmax(float (&s)[MT][NT][4]) {
#pragma unroll
        for (int b = 0; b < MT; ++b)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float top = m[b][h];
#pragma unroll
                for (int n = 0; n < NT; ++n) top = fmaxf(top, fmaxf(s[b][n][2 * h], s[b][n][2 * h + 1]));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
                if (__any_sync(~0u, top != m[b][h])) raise(b, h, top);
                const float shift = exponent_shift(top);
                float sum = 0.0f;
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float& x = s[b][n][2 * h + e];
                        x = exp2(fmaf(x, log2_scale, -shift));
                        sum += x;
                    }
                l[b][h] += sum;
            }
    }

    // What exponents are measured from: the scaled maximum, or 0 where no key was seen yet.
    DEVICE float exponent_shift(float top) const { return top == -infinity() ? 0.0f : __fmul_rn(top, log2_scale); }

    // Rare once the first tiles are through, hence apart: the rows' maximum becomes `top`.
    DEVICE void raise(int b, int h, float top) {
        // The same rounded products as in the exponents, so that old and new weights stay on one scale.
        const float factor = m[b][h] == -infinity() ? 0.0f : exp2(exponent_shift(m[b][h]) - exponent_shift(top));
        m[b][h] = top;
        l[b][h] *= factor;
#pragma unroll
        for (int n = 0; n < DT; ++n) {
            o[b][n][2 * h] *= factor;
            o[b][n][2 * h + 1] *= factor;
        }
    }

    DEVICE i64 stat_index(int row) const { return (i64{batch()} * args.heads + head()) * args.q_len + row; }
    DEVICE float2* carried(int row, int n) const {
        return reinterpret_cast<float2*>(args.acc_o + batch() * args.acc_stride.batch + row * args.acc_stride.token +
                                         head() * args.acc_stride.head + n * 8 + lane() % 4 * 2);
    }

    DEVICE void start_state() {
        log2_scale = args.scale * log2_e;
        clear(o);
#pragma unroll
        for (int b = 0; b < MT; ++b)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                m[b][h] = -infinity();
                l[b][h] = 0.0f;
                const int row = query(b, h);
                if (!args.carry_in || row >= args.q_len) continue;
                m[b][h] = __fdividef(args.acc_m[stat_index(row)], args.scale);
                if (lane() % 4 == 0) l[b][h] = args.acc_l[stat_index(row)];
#pragma unroll
                for (int n = 0; n < DT; ++n) {
                    const float2 x = *carried(row, n);
                    o[b][n][2 * h] = x.x;
                    o[b][n][2 * h + 1] = x.y;
                }
            }
    }

    DEVICE void finish() {
#pragma unroll
        for (int b = 0; b < MT; ++b)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float sum = l[b][h];
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                const int row = query(b, h);
                if (args.carry_out && row < args.q_len) carry_out(b, h, row, sum);
                const float inverse = sum > 0.0f ? __fdividef(1.0f, sum) : 0.0f;
                if (args.lse && row < args.q_len && lane() % 4 == 0)
                    args.lse[stat_index(row)] = sum > 0.0f ? exponent_shift(m[b][h]) * ln_2 + __logf(sum) : -infinity();
#pragma unroll
                for (int n = 0; n < DT; ++n) {
                    o[b][n][2 * h] *= inverse;
                    o[b][n][2 * h + 1] *= inverse;
                }
            }
        if (args.o) store_output();
    }

    DEVICE void carry_out(int b, int h, int row, float sum) const {
        if (lane() % 4 == 0) {
            args.acc_m[stat_index(row)] = m[b][h] == -infinity() ? -infinity() : exponent_shift(m[b][h]) * ln_2;
            args.acc_l[stat_index(row)] = sum;
        }
#pragma unroll
        for (int n = 0; n < DT; ++n) *carried(row, n) = make_float2(o[b][n][2 * h], o[b][n][2 * h + 1]);
    }

    // Through this warp's own rows of the query tile, so that global memory is written in whole rows.
    DEVICE void store_output() const {
#pragma unroll
        for (int b = 0; b < MT; ++b)
#pragma unroll
            for (int n = 0; n < DT; ++n)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int row = warp() * 32 + b * 16 + h * 8 + lane() / 4;
                    asm volatile("st.shared.b32 [%0], %1;" ::"r"(q_shared().chunk(row, n) + lane() % 4 * 4),
                                 "r"(pack(o[b][n][2 * h], o[b][n][2 * h + 1])) : "memory");
                }
        __syncwarp();
        constexpr int rows_a_pass = 32 / SharedTile<D>::chunks;
        u16* out = static_cast<u16*>(args.o) + batch() * args.o_stride.batch + head() * args.o_stride.head;
#pragma unroll
        for (int pass = 0; pass < 32 / rows_a_pass; ++pass) {
            const int row = warp() * 32 + pass * rows_a_pass + lane() / SharedTile<D>::chunks, c = lane() % SharedTile<D>::chunks;
            if (q_tile() * tile_q + row >= args.q_len) continue;
            uint4 x;
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(q_shared().chunk(row, c)) : "memory");
            *reinterpret_cast<uint4*>(out + (q_tile() * tile_q + row) * args.o_stride.token + c * 8) = x;
        }
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(threads, 2) portable_forward(const __grid_constant__ ForwardArgs args) {
    extern __shared__ __align__(256) unsigned char shared[];
    const u32 base = static_cast<u32>(__cvta_generic_to_shared(shared));
    // Query tiles of one head side by side, so that they share its keys in L2; the longest first.
    Forward forward{args, base};
    forward.run();
}
