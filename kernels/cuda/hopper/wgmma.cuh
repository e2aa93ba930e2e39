// wgmma: a warpgroup (128 threads) multiplies 64 x 16 by 16 x N into fp32 registers. 16-bit inputs of one type a
// translation unit: DTYPE_FP16 or bf16.
//
// Accumulator of thread t (warp w = t / 32 of the group, lane = t % 32): d[4 j + 2 h + e] is row 16 w + lane / 4 + 8 h,
// column 8 j + 2 (lane % 4) + e. As an A operand in registers, the k16 block b takes four registers of two packed
// elements; from an accumulator they are the pairs at d[8 b], d[8 b + 2], d[8 b + 4], d[8 b + 6].
//
// Shared operands lie as TMA writes them with a 128-byte swizzle and a box 64 elements wide: blocks of `rows` x 64
// elements, 128 bytes a row, every block 1024-byte aligned.
#pragma once

#include "ptx.cuh"

#ifdef DTYPE_FP16
#define WGMMA_TYPE "f16"
#else
#define WGMMA_TYPE "bf16"
#endif

namespace wgmma {

// Descriptor of an operand whose k runs along the 128-byte rows (K of Q K^T). Add k16_bytes >> 4 = 2 to step 16 along k
// inside a block of 64, rows * 128 >> 4 to go on to the next block.
DEVICE u64 descriptor_k_major(u32 address) {
    return static_cast<u64>((address & 0x3ffff) >> 4) | (u64{1} << 16) | (u64{1024 >> 4} << 32) | (u64{1} << 62);
}

// Descriptor of an operand whose rows are k (V of P V): `block_bytes` = rows * 128 between blocks of 64 columns. Add
// 16 * 128 >> 4 = 128 to step 16 along k. Needs the transpose flag.
DEVICE u64 descriptor_mn_major(u32 address, u32 block_bytes) {
    return static_cast<u64>((address & 0x3ffff) >> 4) | (static_cast<u64>(block_bytes >> 4) << 16) |
           (u64{1024 >> 4} << 32) | (u64{1} << 62);
}

// Before the first multiplication and whenever the registers it reads were written since.
DEVICE void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending> DEVICE void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Keeps the compiler from moving uses of a register array across this point; emits nothing.
template <int Count> DEVICE void pin(float (&r)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
template <int Count> DEVICE void pin(u32 (&r)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

// One instruction of shape m64 nN k16: d = a b (+ d if accumulate). `shared_shared`: a and b are descriptors;
// TransposeX = 1 where that operand is mn-major. `register_shared`: a is this thread's four registers.
template <int N> struct Multiply;

#define WGMMA_R8_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_R8_1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_R8_2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_R8_3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_R8_4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_R8_5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_R8_6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_R8_7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_R8_8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_R8_9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_R8_10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_R8_11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_R8_12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_R8_13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_R8_14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_R8_15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_R32 WGMMA_R8_0 ", " WGMMA_R8_1 ", " WGMMA_R8_2 ", " WGMMA_R8_3
#define WGMMA_R40 WGMMA_R32 ", " WGMMA_R8_4
#define WGMMA_R48 WGMMA_R40 ", " WGMMA_R8_5
#define WGMMA_R56 WGMMA_R48 ", " WGMMA_R8_6
#define WGMMA_R64 WGMMA_R56 ", " WGMMA_R8_7
#define WGMMA_R72 WGMMA_R64 ", " WGMMA_R8_8
#define WGMMA_R80 WGMMA_R72 ", " WGMMA_R8_9
#define WGMMA_R88 WGMMA_R80 ", " WGMMA_R8_10
#define WGMMA_R96 WGMMA_R88 ", " WGMMA_R8_11
#define WGMMA_R128 WGMMA_R96 ", " WGMMA_R8_12 ", " WGMMA_R8_13 ", " WGMMA_R8_14 ", " WGMMA_R8_15

#define WGMMA_D8(i)                                                                                                \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define WGMMA_D32 WGMMA_D8(0), WGMMA_D8(8), WGMMA_D8(16), WGMMA_D8(24)
#define WGMMA_D40 WGMMA_D32, WGMMA_D8(32)
#define WGMMA_D48 WGMMA_D40, WGMMA_D8(40)
#define WGMMA_D56 WGMMA_D48, WGMMA_D8(48)
#define WGMMA_D64 WGMMA_D56, WGMMA_D8(56)
#define WGMMA_D72 WGMMA_D64, WGMMA_D8(64)
#define WGMMA_D80 WGMMA_D72, WGMMA_D8(72)
#define WGMMA_D88 WGMMA_D80, WGMMA_D8(80)
#define WGMMA_D96 WGMMA_D88, WGMMA_D8(88)
#define WGMMA_D128 WGMMA_D96, WGMMA_D8(96), WGMMA_D8(104), WGMMA_D8(112), WGMMA_D8(120)

// R = N / 2 accumulator registers; i0.. are the numbers of the operands that follow them.
#define WGMMA_SHAPE(N, R, i0, i1, i2, i3, i4, i5, i6)                                                                \
    template <> struct Multiply<N> {                                                                                \
        template <int TransposeA, int TransposeB>                                                                   \
        static DEVICE void shared_shared(float (&d)[R], u64 a, u64 b, int accumulate) {                             \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #i2 ", 0;\n"                                            \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." WGMMA_TYPE "." WGMMA_TYPE                \
                         " {" WGMMA_R##R "}, %" #i0 ", %" #i1 ", p, 1, 1, %" #i3 ", %" #i4 "; }"                    \
                         : WGMMA_D##R                                                                               \
                         : "l"(a), "l"(b), "r"(accumulate), "n"(TransposeA), "n"(TransposeB));                      \
        }                                                                                                           \
        template <int TransposeB>                                                                                   \
        static DEVICE void register_shared(float (&d)[R], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int accumulate) {  \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #i5 ", 0;\n"                                            \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." WGMMA_TYPE "." WGMMA_TYPE                \
                         " {" WGMMA_R##R "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, 1, 1, %" #i6    \
                         "; }"                                                                                      \
                         : WGMMA_D##R                                                                               \
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate), "n"(TransposeB));           \
        }                                                                                                           \
    }

WGMMA_SHAPE(64, 32, 32, 33, 34, 35, 36, 37, 38);
WGMMA_SHAPE(80, 40, 40, 41, 42, 43, 44, 45, 46);
WGMMA_SHAPE(128, 64, 64, 65, 66, 67, 68, 69, 70);
WGMMA_SHAPE(176, 88, 88, 89, 90, 91, 92, 93, 94);
WGMMA_SHAPE(256, 128, 128, 129, 130, 131, 132, 133, 134);

}  // namespace wgmma
