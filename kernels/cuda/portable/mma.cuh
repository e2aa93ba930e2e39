// What the portable kernels build on, compute capability 8.0 and above: mma.sync m16n8k16 over fragments that ldmatrix
// reads from swizzled tiles, filled by cp.async.
//
// Constants of a translation unit: HEAD_DIM (64 or 128); DTYPE_FP16, else bf16.
#pragma once

#include "../interface.cuh"

#define DEVICE __device__ __forceinline__

typedef unsigned short u16;

constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

DEVICE float infinity() { return __int_as_float(0x7f800000); }

DEVICE float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two values rounded to the input type, `low` in bits 0..15.
DEVICE u32 pack(float low, float high) {
    u32 packed;
#ifdef DTYPE_FP16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#endif
    return packed;
}

// c += a b, 16 x 16 by 16 x 8. Lane l holds c at rows l / 4 (c[0], c[1]) and l / 4 + 8, columns 2 (l % 4) and the next.
DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef DTYPE_FP16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void load_matrices(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

DEVICE void load_matrices_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// 16 bytes to shared memory; zeros where !inside.
DEVICE void copy_async(u32 to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
}
// 4 bytes, zero where !inside.
DEVICE void copy_word_async(u32 to, const void* from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(inside ? 4 : 0) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// At most `Pending` of this thread's latest groups are still on their way.
template <int Pending> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory"); }

// A tile of 16-bit elements in shared memory, `Width` (64 or 128) to a row. The 16-byte chunk c of row r lies at chunk
// c ^ (r % 8), so that eight rows of one chunk touch every bank once. `base` is a multiple of the row's bytes.
template <int Width> struct SharedTile {
    static constexpr int row_bytes = 2 * Width, chunks = Width / 8;
    u32 base;

    DEVICE u32 chunk(int row, int c) const { return base + row * row_bytes + ((c ^ (row & 7)) << 4); }

    // Where this lane reads for the fragments below: row `row` of the 16 x 16 block, its left or right chunk.
    // A block further on is at (lane ^ 2 column) + row * row_bytes, column a multiple of 16, row of 8.
    // Opaque to the compiler, which would otherwise keep the address of every block in a register across the loop.
    DEVICE u32 lane(int row, int right) const {
        u32 address = chunk(row, right);
        asm volatile("" : "+r"(address));
        return address;
    }
    static DEVICE u32 block(u32 lane, int row, int column) { return (lane ^ (2 * column)) + row * row_bytes; }
};

// Lane addresses of the four ways to read a 16 x 16 block as a fragment. "rows" and "columns" are the tile's.
struct LaneRow {
    int row, right;
    // A operand from [m][k]; B operand from [k][n] (transposing).
    static DEVICE LaneRow a(int lane) { return {lane & 15, lane >> 4}; }
    // B operand from [n][k]; A operand from [k][m] (transposing).
    static DEVICE LaneRow b(int lane) { return {(lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1}; }
};

// Starts copying `Rows` rows of Width elements; rows from `valid` on become zeros.
template <int Rows, int Width, int Threads>
DEVICE void copy_tile(SharedTile<Width> to, const u16* from, i64 stride, int valid, int thread) {
    constexpr int chunks = Width / 8, rows_a_pass = Threads / chunks;
    static_assert(Rows % rows_a_pass == 0 && rows_a_pass % 8 == 0, "passes fill the tile and keep the swizzle");
    const int first = thread / chunks, c = thread % chunks;
    const u16* source = from + first * stride + 8 * c;
    const u32 target = to.chunk(first, c);  // rows_a_pass is a multiple of 8: the swizzle is the same in every pass
#pragma unroll
    for (int row = 0; row < Rows; row += rows_a_pass) {
        copy_async(target + row * SharedTile<Width>::row_bytes, source, first + row < valid);
        source += rows_a_pass * stride;
    }
}

// c[MT][2 NP] += A B over KS blocks of 16: a(fragment, m, k) and b(fragment, n pair, k) load what they are asked for.
template <int MT, int NP, int KS, class A, class B> DEVICE void multiply(float (&c)[MT][2 * NP][4], A a, B b) {
#pragma unroll
    for (int k = 0; k < KS; ++k) {
        u32 left[MT][4];
#pragma unroll
        for (int m = 0; m < MT; ++m) a(left[m], m, k);
#pragma unroll
        for (int n = 0; n < NP; ++n) {
            u32 right[4];
            b(right, n, k);
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma(c[m][2 * n], left[m], right[0], right[1]);
                mma(c[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

DEVICE int load_now(const int* from) {
    int x;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

template <int M, int N> DEVICE void clear(float (&c)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) c[m][n][i] = 0.0f;
}

// Returns once the segment may be read; false after spin_limit, with its number in *error.
DEVICE bool await_segment(const Segment& segment, int index, int* error, u64 spin_limit) {
    if (!segment.ready) return true;
    const auto timer = [] {
        u64 nanoseconds;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
        return nanoseconds;
    };
    const u64 start = timer();
    for (;;) {
        u32 value;
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(segment.ready) : "memory");
        if (static_cast<int>(value - segment.ready_value) >= 0) return true;
        if (timer() - start > spin_limit) {
            atomicMax(error, 1 + index);
            return false;
        }
    }
}
