// Attention backward: a CTA owns a tile of keys of one kv head and walks over the query tiles that see it, for every
// query head of the group, so that dK and dV need no atomics. Eight warps share each of the five products as a grid of
// 32-row (or 16-row) blocks; P and dS pass through shared memory between them. dQ is added with atomics, in the order
// of the key tiles where args.deterministic.
//
// Grid: key tiles x kv heads x batch; BackwardArgs by value; 256 threads. Constants beside those of mma.cuh: TILE_KV and
// STAGES (copies of Q and dO), by the shared memory of a CTA.
#include "mma.cuh"

namespace {

constexpr int D = HEAD_DIM, tile_kv = TILE_KV, tile_q = D == 128 ? 64 : 128, stages = STAGES, threads = 256;

// A product's C as a grid of warps: `rows` of them along M, the others along N.
template <int M, int N, int Rows> struct Grid {
    static constexpr int columns = threads / 32 / Rows, height = M / Rows, width = N / columns;
    static constexpr int MT = height / 16, NT = width / 8;
    static DEVICE int row() { return threadIdx.x / 32 / columns * height; }
    static DEVICE int column() { return threadIdx.x / 32 % columns * width; }
};
using Scores = Grid<tile_q, tile_kv, tile_q / 32>;
using KeyGrad = Grid<tile_kv, D, 4>;
using QueryGrad = Grid<tile_q, D, tile_q / 32>;

constexpr int q_bytes = tile_q * D * 2, kv_bytes = tile_kv * D * 2, score_bytes = tile_q * tile_kv * 2;

DEVICE int lane() { return threadIdx.x % 32; }

DEVICE void add_pair(float* to, float x, float y) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
#else
    atomicAdd(to, x);
    atomicAdd(to + 1, y);
#endif
}

// The query tiles of one key tile, head after head.
struct Cursor {
    int head, tile, stage;

    DEVICE bool done(const BackwardArgs& args) const { return head == (blockIdx.y + 1) * (args.heads / args.kv_heads); }
    DEVICE Cursor next(const QueryTileRange& range) const {
        const bool wraps = tile + 1 == range.last;
        return {head + wraps, wraps ? range.first : tile + 1, (stage + 1) % stages};
    }
};

struct Backward {
    const BackwardArgs& args;
    const Segment& segment;
    const QueryTileRange& range;
    const int kv_tile;
    const u32 shared;
    float dk[KeyGrad::MT][KeyGrad::NT][4], dv[KeyGrad::MT][KeyGrad::NT][4];

    static DEVICE int batch() { return blockIdx.z; }
    DEVICE SharedTile<D> k_shared() const { return {shared}; }
    DEVICE SharedTile<D> v_shared() const { return {shared + kv_bytes}; }
    DEVICE SharedTile<tile_kv> p_shared() const { return {shared + 2 * kv_bytes}; }
    DEVICE SharedTile<tile_kv> ds_shared() const { return {shared + 2 * kv_bytes + score_bytes}; }
    DEVICE SharedTile<D> q_shared(int stage) const { return {shared + 2 * (kv_bytes + score_bytes) + stage * q_bytes}; }
    DEVICE SharedTile<D> do_shared(int stage) const { return q_shared(stages + stage); }
    DEVICE i64 stat_index(int head, int row) const { return (i64{batch()} * args.heads + head) * args.q_len + row; }

    DEVICE void copy_key_tile() const {
        const i64 offset = batch() * segment.kv.batch + i64{kv_tile} * tile_kv * segment.kv.token + blockIdx.y * segment.kv.head;
        const int valid = segment.len - kv_tile * tile_kv;
        copy_tile<tile_kv, D, threads>(k_shared(), static_cast<const u16*>(segment.k) + offset, segment.kv.token, valid, threadIdx.x);
        copy_tile<tile_kv, D, threads>(v_shared(), static_cast<const u16*>(segment.v) + offset, segment.kv.token, valid, threadIdx.x);
    }
    DEVICE void copy_query_tile(const Cursor& at) const {
        const auto copy = [&](SharedTile<D> to, const void* from, const Strides& stride) {
            const u16* first = static_cast<const u16*>(from) + batch() * stride.batch + i64{at.tile} * tile_q * stride.token + at.head * stride.head;
            copy_tile<tile_q, D, threads>(to, first, stride.token, args.q_len - at.tile * tile_q, threadIdx.x);
        };
        copy(q_shared(at.stage), args.q, args.q_stride);
        copy(do_shared(at.stage), args.d_o, args.do_stride);
    }

    DEVICE void copy_next(const Cursor& at) const {
        const Cursor next = at.next(range);
        if (!next.done(args)) copy_query_tile(next);
        copy_commit();
    }

    DEVICE void run() {
        Cursor at{static_cast<int>(blockIdx.y) * (args.heads / args.kv_heads), range.first, 0};
        clear(dk);
        clear(dv);
        copy_key_tile();
        copy_query_tile(at);
        copy_commit();
        for (;;) {
            copy_wait<0>();
            __syncthreads();
            if (stages > 1) copy_next(at);
            weights(at);
            __syncthreads();
            grow_value_gradient(at);
            add_query_gradient(at);
            grow_key_gradient(at);
            if (stages == 1) {
                __syncthreads();
                copy_next(at);
            }
            at = at.next(range);
            if (at.done(args)) break;
        }
        add_key_gradients();
    }

    // P and dS of one query tile, rounded, to shared memory.
    DEVICE void weights(const Cursor& at) const {
        constexpr int MT = Scores::MT, NT = Scores::NT;
        float s[MT][NT][4], dp[MT][NT][4];
        clear(s);
        clear(dp);
        scores(s, q_shared(at.stage), k_shared());
        scores(dp, do_shared(at.stage), v_shared());
        const bool masked = at.tile < range.full_first || at.tile >= range.full_last;
        const float log2_scale = args.scale * log2_e;
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int in_tile = Scores::row() + 16 * m + 8 * h + lane() / 4, row = at.tile * tile_q + in_tile;
                const bool inside = row < args.q_len;
                const float log2_sum = inside ? args.lse[stat_index(at.head, row)] * log2_e : infinity();
                const float delta = inside ? args.delta[stat_index(at.head, row)] : 0.0f;
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int e = 2 * h; e < 2 * h + 2; ++e) s[m][n][e] = exp2(fmaf(s[m][n][e], log2_scale, -log2_sum));
                if (masked) mask(s[m], h, row);
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    const float p0 = s[m][n][2 * h], p1 = s[m][n][2 * h + 1];
                    const int column = Scores::column() + 8 * n;
                    store(p_shared(), in_tile, column, pack(p0, p1));
                    store(ds_shared(), in_tile, column, pack(p0 * (dp[m][n][2 * h] - delta), p1 * (dp[m][n][2 * h + 1] - delta)));
                }
            }
    }

    DEVICE void scores(float (&c)[Scores::MT][Scores::NT][4], SharedTile<D> rows, SharedTile<D> columns) const {
        const LaneRow a = LaneRow::a(lane()), b = LaneRow::b(lane());
        const u32 a_lane = rows.lane(Scores::row() + a.row, a.right), b_lane = columns.lane(Scores::column() + b.row, b.right);
        multiply<Scores::MT, Scores::NT / 2, D / 16>(
            c, [&](u32(&f)[4], int m, int k) { load_matrices(f, SharedTile<D>::block(a_lane, 16 * m, 16 * k)); },
            [&](u32(&f)[4], int n, int k) { load_matrices(f, SharedTile<D>::block(b_lane, 16 * n, 16 * k)); });
    }

    DEVICE void mask(float (&p)[Scores::NT][4], int h, int row) const {
        const int at_most = min(row, args.q_len - 1), last = segment.len - 1;
        const int lo = load_now(args.q_lo + at_most), hi = load_now(args.q_hi + at_most);
        const int first = kv_tile * tile_kv + Scores::column() + lane() % 4 * 2;
#pragma unroll
        for (int n = 0; n < Scores::NT; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int slot = first + 8 * n + e, pos = load_now(segment.pos + min(slot, last));
                if (slot > last || pos < lo || pos > hi) p[n][2 * h + e] = 0.0f;
            }
    }

    static DEVICE void store(SharedTile<tile_kv> to, int row, int column, u32 pair) {
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to.chunk(row, column / 8) + lane() % 4 * 4), "r"(pair) : "memory");
    }

    // c += left^T right, left [query][key], right [query][column].
    static DEVICE void over_queries(float (&c)[KeyGrad::MT][KeyGrad::NT][4], SharedTile<tile_kv> left, SharedTile<D> right) {
        const LaneRow a = LaneRow::b(lane()), b = LaneRow::a(lane());
        const u32 a_lane = SharedTile<tile_kv>::block(left.lane(a.row, a.right), 0, KeyGrad::row());
        const u32 b_lane = SharedTile<D>::block(right.lane(b.row, b.right), 0, KeyGrad::column());
        multiply<KeyGrad::MT, KeyGrad::NT / 2, tile_q / 16>(
            c,
            [&](u32(&f)[4], int m, int k) { load_matrices_transposed(f, SharedTile<tile_kv>::block(a_lane, 16 * k, 16 * m)); },
            [&](u32(&f)[4], int n, int k) { load_matrices_transposed(f, SharedTile<D>::block(b_lane, 16 * k, 16 * n)); });
    }
    DEVICE void grow_value_gradient(const Cursor& at) { over_queries(dv, p_shared(), do_shared(at.stage)); }
    DEVICE void grow_key_gradient(const Cursor& at) { over_queries(dk, ds_shared(), q_shared(at.stage)); }

    DEVICE void add_query_gradient(const Cursor& at) const {
        float dq[QueryGrad::MT][QueryGrad::NT][4];
        clear(dq);
        const LaneRow a = LaneRow::a(lane());
        const u32 a_lane = ds_shared().lane(QueryGrad::row() + a.row, a.right);
        const u32 b_lane = SharedTile<D>::block(k_shared().lane(a.row, a.right), 0, QueryGrad::column());
        multiply<QueryGrad::MT, QueryGrad::NT / 2, tile_kv / 16>(
            dq, [&](u32(&f)[4], int m, int k) { load_matrices(f, SharedTile<tile_kv>::block(a_lane, 16 * m, 16 * k)); },
            [&](u32(&f)[4], int n, int k) { load_matrices_transposed(f, SharedTile<D>::block(b_lane, 16 * k, 16 * n)); });
        int* turn = nullptr;
        if (args.deterministic) turn = take_turn(at);
        float* base = args.dq + batch() * args.dq_stride.batch + at.head * args.dq_stride.head + QueryGrad::column() + lane() % 4 * 2;
#pragma unroll
        for (int m = 0; m < QueryGrad::MT; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = at.tile * tile_q + QueryGrad::row() + 16 * m + 8 * h + lane() / 4;
                if (row >= args.q_len) continue;
                float* to = base + row * args.dq_stride.token;
#pragma unroll
                for (int n = 0; n < QueryGrad::NT; ++n)
                    add_pair(to + 8 * n, dq[m][n][2 * h] * args.scale, dq[m][n][2 * h + 1] * args.scale);
            }
        if (turn) pass_turn(turn);
    }

    // dq_turn holds 1 + the last key tile that has added to the query tile. Waits for the key tile before this one,
    // unless that one leaves the query tile out.
    DEVICE int* take_turn(const Cursor& at) const {
        const int q_tiles = (args.q_len + tile_q - 1) / tile_q;
        int* turn = args.dq_turn + (i64{batch()} * args.heads + at.head) * q_tiles + at.tile;
        const QueryTileRange* before = args.q_ranges + kv_tile - 1;
        if (threadIdx.x == 0 && kv_tile > 0 && before->first <= at.tile && at.tile < before->last) {
            int done;
            do {
                asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(done) : "l"(turn) : "memory");
            } while (done != kv_tile);
        }
        __syncthreads();
        return turn;
    }
    DEVICE void pass_turn(int* turn) const {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(kv_tile + 1) : "memory");
    }

    DEVICE void add_key_gradients() const {
        const i64 offset = batch() * args.dkv_stride.batch + blockIdx.y * args.dkv_stride.head + KeyGrad::column() + lane() % 4 * 2;
#pragma unroll
        for (int m = 0; m < KeyGrad::MT; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int slot = kv_tile * tile_kv + KeyGrad::row() + 16 * m + 8 * h + lane() / 4;
                if (slot >= segment.len) continue;
                const i64 at = offset + slot * args.dkv_stride.token;
#pragma unroll
                for (int n = 0; n < KeyGrad::NT; ++n) {
                    add(args.dk + at + 8 * n, dk[m][n][2 * h] * args.scale, dk[m][n][2 * h + 1] * args.scale);
                    add(args.dv + at + 8 * n, dv[m][n][2 * h], dv[m][n][2 * h + 1]);
                }
            }
    }
    // No other CTA writes these keys.
    static DEVICE void add(float* to, float x, float y) {
        float2& pair = *reinterpret_cast<float2*>(to);
        pair = make_float2(pair.x + x, pair.y + y);
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(threads, 1) portable_backward(const __grid_constant__ BackwardArgs args) {
    extern __shared__ __align__(256) unsigned char shared[];
    const int kv_tile = args.order[blockIdx.x];
    const QueryTileRange& range = args.q_ranges[kv_tile];
    const Segment& segment = args.segments[0];
    if (range.first >= range.last || !await_segment(segment, 0, args.error, args.spin_limit)) return;
    Backward backward{args, segment, range, kv_tile, static_cast<u32>(__cvta_generic_to_shared(shared))};
    backward.run();
}
