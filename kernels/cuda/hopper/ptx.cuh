// The Hopper instructions the kernels of this folder use, one thin wrapper each. Shared-memory addresses are the 32-bit
// addresses of the shared window (shared_address). Names and semantics: PTX ISA 9.0, sm_90a.
#pragma once

#include "../interface.cuh"

#define DEVICE __device__ __forceinline__

namespace ptx {

DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// True in one lane of a converged warp.
DEVICE bool elect_one() {
    u32 elected;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
    return elected != 0;
}

// ---- mbarrier: phases alternate 0, 1, 0, ...; a wait on parity p returns once the phase of parity p has completed.

DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine. Follow with __syncthreads().
DEVICE void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void mbarrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives once and makes the phase wait for `bytes` more bytes of copies.
DEVICE void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{ .reg .pred done;\n"
        "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra WAIT; }" ::"r"(barrier), "r"(parity) : "memory");
}

// The same for a thread with time to spare: sleeps between looks instead of taking issue slots from its neighbours.
DEVICE void mbarrier_wait_asleep(u32 barrier, u32 parity) {
    u32 done = 0;
    while (true) {
        asm volatile(
            "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
        if (done) return;
        __nanosleep(300);
    }
}

// ---- Bulk tensor copies (TMA). A map is a CUtensorMap in global memory, 64-byte aligned. Coordinates go from the
// innermost dimension outwards; elements out of range are loaded as zero and not stored.

// Call once per map before its first use in a kernel: the host may have rewritten the memory since the last launch.
DEVICE void tensor_map_acquire(const void* map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
}

DEVICE void tensor_load_4d(u32 destination, const void* map, u32 barrier, int c0, int c1, int c2, int c3) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(destination), "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2),
        "r"(c3) : "memory");
}

DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// At most `Pending` of this thread's latest groups still read their shared memory.
template <int Pending> DEVICE void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// At most `Pending` of this thread's latest groups are not yet written to global memory.
template <int Pending> DEVICE void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}

// ---- Ordering

// Ordinary accesses to shared memory before this are seen by wgmma and the copy engine after it (and a barrier).
DEVICE void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same for global memory: after an acquire, before a bulk copy of what was released.
DEVICE void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

DEVICE u32 load_acquire_system(const u32* p) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
}

DEVICE u64 global_timer() {
    u64 nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}

// ---- Named barriers 1..15 (0 is __syncthreads). `threads` counts those that arrive and those that wait.

DEVICE void named_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

DEVICE void named_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- Registers per thread of a whole warpgroup

template <int Count> DEVICE void registers_release() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count> DEVICE void registers_claim() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

// ---- Arithmetic

DEVICE float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two values rounded to the 16-bit input type; `low` in bits 0..15.
DEVICE u32 pack_16bit(float low, float high) {
    u32 packed;
#ifdef DTYPE_FP16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#endif
    return packed;
}

// The two values of pack_16bit, low first.
DEVICE float2 unpack_16bit(u32 packed) {
    float2 x;
#ifdef DTYPE_FP16
    asm("{ .reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }" : "=f"(x.x), "=f"(x.y) : "r"(packed));
#else
    x.x = __uint_as_float(packed << 16);
    x.y = __uint_as_float(packed & 0xffff0000u);
#endif
    return x;
}

// Four 8x8 matrices of 16-bit elements from shared memory; `row` is this lane's row address.
DEVICE void load_matrix_x4(u32 row, u32& a, u32& b, u32& c, u32& d) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "r"(row) : "memory");
}

// Four 8x8 matrices of 16-bit elements from registers to shared memory, each transposed; `row` is this lane's row
// address.
DEVICE void store_matrix_x4_transposed(u32 row, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b),
                 "r"(c), "r"(d) : "memory");
}

}  // namespace ptx
