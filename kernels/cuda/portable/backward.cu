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
using KeyGrad = Grid<tile_kv, D, tile_kv / 32>;
using QueryGrad = Grid<tile_q, D, tile_q / 32>;

constexpr int q_bytes = tile_q * D * 2, kv_bytes = tile_kv * D * 2, score_bytes = tile_q * tile_kv * 2;

DEVICE int lane() { return threadIdx.x % 32; }

// The query tiles of one key tile, head after head. Without a fixed order the key tiles of a head start at different
// query tiles, so that they do not add to the same rows of dQ at one time. Two registers: this kernel is short of them.
struct Cursor {
    int tile, left;

    static DEVICE int group(const BackwardArgs& args) { return args.heads / args.kv_heads; }
    static DEVICE Cursor first(const BackwardArgs& args, const QueryTileRange& range, int kv_tile) {
        const int tiles = range.last - range.first;
        return {range.first + (args.deterministic ? 0 : kv_tile % tiles), tiles * group(args)};
    }
    DEVICE bool done() const { return left == 0; }
    DEVICE int stage() const { return left % stages; }
    DEVICE int head(const BackwardArgs& args, const QueryTileRange& range) const {
        return (blockIdx.y + 1) * group(args) - 1 - (left - 1) / (range.last - range.first);
    }
    // After a whole round the next head starts where this one did.
    DEVICE Cursor next(const QueryTileRange& range) const { return {tile + 1 == range.last ? range.first : tile + 1, left - 1}; }
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
    // The log-sum-exp of each query of a stage, then its delta.
    DEVICE u32 stat_shared(int stage, int index) const { return q_shared(2 * stages).base + (stage * 2 * tile_q + index) * 4; }
    DEVICE i64 stat_index(int head, int row) const { return (i64{batch()} * args.heads + head) * args.q_len + row; }

    DEVICE void copy_key_tile() const {
        const i64 offset = batch() * segment.kv.batch + i64{kv_tile} * tile_kv * segment.kv.token + blockIdx.y * segment.kv.head;
        const int valid = segment.len - kv_tile * tile_kv;
        copy_tile<tile_kv, D, threads>(k_shared(), static_cast<const u16*>(segment.k) + offset, segment.kv.token, valid, threadIdx.x);
        copy_tile<tile_kv, D, threads>(v_shared(), static_cast<const u16*>(segment.v) + offset, segment.kv.token, valid, threadIdx.x);
    }
    DEVICE void copy_query_tile(const Cursor& at) const {
        const int head = at.head(args, range);
        const auto copy = [&](SharedTile<D> to, const void* from, const Strides& stride) {
            const u16* first = static_cast<const u16*>(from) + batch() * stride.batch + i64{at.tile} * tile_q * stride.token + head * stride.head;
            copy_tile<tile_q, D, threads>(to, first, stride.token, args.q_len - at.tile * tile_q, threadIdx.x);
        };
        copy(q_shared(at.stage()), args.q, args.q_stride);
        copy(do_shared(at.stage()), args.d_o, args.do_stride);
        const int row = threadIdx.x % tile_q, in_sequence = at.tile * tile_q + row;
        if (threadIdx.x < 2 * tile_q) {
            const float* from = threadIdx.x < tile_q ? args.lse : args.delta;
            copy_word_async(stat_shared(at.stage(), threadIdx.x), from + stat_index(head, min(in_sequence, args.q_len - 1)), true);
        }
    }

    DEVICE void copy_next(const Cursor& at) const {
        const Cursor next = at.next(range);
        if (!next.done()) copy_query_tile(next);
        copy_commit();
    }

    DEVICE void run() {
        Cursor at = Cursor::first(args, range, kv_tile);
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
            float dq[QueryGrad::MT][QueryGrad::NT][4];
            query_gradient(dq);
            grow_key_gradient(at);
            add_query_gradient(dq, at);
            if (stages == 1) {
                __syncthreads();
                copy_next(at);
            }
            at = at.next(range);
            if (at.done()) break;
        }
        put_key_gradients();
    }

    DEVICE void run_without_queries() {
        clear(dk);
        clear(dv);
        put_key_gradients();
    }

    // P and dS of one query tile, rounded, to shared memory.
    DEVICE void weights(const Cursor& at) const {
        constexpr int MT = Scores::MT, NT = Scores::NT;
        float p[MT][NT][4], dp[MT][NT][4];
        clear(p);
        scores(p, q_shared(at.stage()), k_shared());
        if (at.tile < range.full_first || at.tile >= range.full_last) mask(p, at.tile);
        const float log2_scale = args.scale * log2_e;
        const u32 p_lane = p_shared().lane(Scores::row() + lane() / 4, Scores::column() / 8) + lane() % 4 * 4;
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = Scores::row() + 16 * m + 8 * h + lane() / 4;
                const float lse = load_shared(stat_shared(at.stage(), row));
                // A query without keys has only masked scores: -inf minus infinity keeps their weights 0.
                const float shift = lse == -infinity() ? infinity() : lse * log2_e;
#pragma unroll
                for (int n = 0; n < NT; ++n) {
#pragma unroll
                    for (int e = 2 * h; e < 2 * h + 2; ++e) p[m][n][e] = exp2(fmaf(p[m][n][e], log2_scale, -shift));
                    store(p_lane, 16 * m + 8 * h, n, pack(p[m][n][2 * h], p[m][n][2 * h + 1]));
                }
            }
        clear(dp);
        scores(dp, do_shared(at.stage()), v_shared());
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = Scores::row() + 16 * m + 8 * h + lane() / 4;
                const float delta = load_shared(stat_shared(at.stage(), tile_q + row));
#pragma unroll
                for (int n = 0; n < NT; ++n)
                    store(p_lane + score_bytes, 16 * m + 8 * h, n,
                          pack(p[m][n][2 * h] * (dp[m][n][2 * h] - delta), p[m][n][2 * h + 1] * (dp[m][n][2 * h + 1] - delta)));
            }
    }

    DEVICE void scores(float (&c)[Scores::MT][Scores::NT][4], SharedTile<D> rows, SharedTile<D> columns) const {
        const LaneRow a = LaneRow::a(lane()), b = LaneRow::b(lane());
        const u32 a_lane = rows.lane(Scores::row() + a.row, a.right), b_lane = columns.lane(Scores::column() + b.row, b.right);
        multiply<Scores::MT, Scores::NT / 2, D / 16>(
            c, [&](u32(&f)[4], int m, int k) { load_matrices(f, SharedTile<D>::block(a_lane, 16 * m, 16 * k)); },
            [&](u32(&f)[4], int n, int k) { load_matrices(f, SharedTile<D>::block(b_lane, 16 * n, 16 * k)); });
    }

    DEVICE void mask(float (&s)[Scores::MT][Scores::NT][4], int tile) const {
        const int first = kv_tile * tile_kv + Scores::column() + lane() % 4 * 2, last = segment.len - 1;
#pragma unroll
        for (int m = 0; m < Scores::MT; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = tile * tile_q + Scores::row() + 16 * m + 8 * h + lane() / 4, at_most = min(row, args.q_len - 1);
                const int lo = load_now(args.q_lo + at_most), hi = load_now(args.q_hi + at_most);
#pragma unroll
                for (int n = 0; n < Scores::NT; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int slot = first + 8 * n + e, pos = load_now(segment.pos + min(slot, last));
                        if (row > at_most || slot > last || pos < lo || pos > hi) s[m][n][2 * h + e] = -infinity();
                    }
            }
    }

    // A pair of scores, `row` rows (a multiple of 8) and `chunk` chunks from where this lane's first lies.
    static DEVICE void store(u32 lane, int row, int chunk, u32 pair) {
        asm volatile("st.shared.b32 [%0], %1;" ::"r"((lane ^ (chunk << 4)) + row * SharedTile<tile_kv>::row_bytes), "r"(pair) : "memory");
    }

    static DEVICE float load_shared(u32 from) {
        float x;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
        return x;
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
    DEVICE void grow_value_gradient(const Cursor& at) { over_queries(dv, p_shared(), do_shared(at.stage())); }
    DEVICE void grow_key_gradient(const Cursor& at) { over_queries(dk, ds_shared(), q_shared(at.stage())); }

    DEVICE void query_gradient(float (&dq)[QueryGrad::MT][QueryGrad::NT][4]) const {
        clear(dq);
        const LaneRow a = LaneRow::a(lane());
        const u32 a_lane = ds_shared().lane(QueryGrad::row() + a.row, a.right);
        const u32 b_lane = SharedTile<D>::block(k_shared().lane(a.row, a.right), 0, QueryGrad::column());
        multiply<QueryGrad::MT, QueryGrad::NT / 2, tile_kv / 16>(
            dq, [&](u32(&f)[4], int m, int k) { load_matrices(f, SharedTile<tile_kv>::block(a_lane, 16 * m, 16 * k)); },
            [&](u32(&f)[4], int n, int k) { load_matrices_transposed(f, SharedTile<D>::block(b_lane, 16 * k, 16 * n)); });
    }

    // Half of a 16-row block: each lane's pairs to its row. From 9.0 on neighbouring lanes exchange a pair, so that each adds
    // four columns of one of two blocks at once: half as many reductions.
    DEVICE void add_row(float* to, const float (&dq)[QueryGrad::NT][4], int h, bool inside) const {
#if __CUDA_ARCH__ >= 900
        const bool odd = lane() & 1;
        to += odd ? 6 : 0;
#pragma unroll
        for (int n = 0; n < QueryGrad::NT; n += 2) {
            const float *even = dq[n] + 2 * h, *next = dq[n + 1] + 2 * h;
            const float x = __shfl_xor_sync(~0u, odd ? even[0] : next[0], 1), y = __shfl_xor_sync(~0u, odd ? even[1] : next[1], 1);
            const float a = odd ? x : even[0], b = odd ? y : even[1], c = odd ? next[0] : x, d = odd ? next[1] : y;
            if (inside)
                asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + 8 * n), "f"(a * args.scale),
                             "f"(b * args.scale), "f"(c * args.scale), "f"(d * args.scale) : "memory");
        }
#else
        if (!inside) return;
#pragma unroll
        for (int n = 0; n < QueryGrad::NT; ++n) {
            atomicAdd(to + 8 * n, dq[n][2 * h] * args.scale);
            atomicAdd(to + 8 * n + 1, dq[n][2 * h + 1] * args.scale);
        }
#endif
    }

    DEVICE void add_query_gradient(const float (&dq)[QueryGrad::MT][QueryGrad::NT][4], const Cursor& at) const {
        int* turn = nullptr;
        if (args.deterministic) turn = take_turn(at);
        float* base = args.dq + batch() * args.dq_stride.batch + at.head(args, range) * args.dq_stride.head + QueryGrad::column() + lane() % 4 * 2;
#pragma unroll
        for (int m = 0; m < QueryGrad::MT; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = at.tile * tile_q + QueryGrad::row() + 16 * m + 8 * h + lane() / 4;
                float* to = base + row * args.dq_stride.token;
                add_row(to, dq[m], h, row < args.q_len);
            }
        if (turn) pass_turn(turn);
    }

    // dq_turn holds 1 + the last key tile that has added to the query tile. Waits for the key tile before this one,
    // unless that one leaves the query tile out.
    DEVICE int* take_turn(const Cursor& at) const {
        const int q_tiles = (args.q_len + tile_q - 1) / tile_q;
        int* turn = args.dq_turn + (i64{batch()} * args.heads + at.head(args, range)) * q_tiles + at.tile;
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

    DEVICE void put_key_gradients() const {
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
                    put(args.dk + at + 8 * n, dk[m][n][2 * h] * args.scale, dk[m][n][2 * h + 1] * args.scale);
                    put(args.dv + at + 8 * n, dv[m][n][2 * h], dv[m][n][2 * h + 1]);
                }
            }
    }
    // No other CTA writes these keys.
    DEVICE void put(float* to, float x, float y) const {
        float2& pair = *reinterpret_cast<float2*>(to);
        const float2 before = args.start_dkv ? float2{} : pair;
        pair = make_float2(before.x + x, before.y + y);
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(threads, 1) portable_backward(const __grid_constant__ BackwardArgs args) {
    extern __shared__ __align__(256) unsigned char shared[];
    const int kv_tile = args.order[blockIdx.x];
    const QueryTileRange& range = args.q_ranges[kv_tile];
    const Segment& segment = args.segments[0];
    const bool empty = range.first >= range.last;
    if (empty && !args.start_dkv) return;
    if (!empty && !await_segment(segment, 0, args.error, args.spin_limit)) return;
    Backward backward{args, segment, range, kv_tile, static_cast<u32>(__cvta_generic_to_shared(shared))};
    if (empty) backward.run_without_queries();
    else backward.run();
}
