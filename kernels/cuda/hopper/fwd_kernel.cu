// FlashAttention forward for Hopper: persistent CTAs; one warp loads, one schedules, two or three warpgroups multiply.
// After FlashAttention-3 (Shah et al., arXiv 2407.08608).
//
// attention_forward(const __grid_constant__ ForwardArgs): the kernel. forward_shared_bytes: an int of the module.
// Launch: grid = min(work items, SMs), block = 128 * (TILE_Q / 64 + 1), dynamic shared memory = forward_shared_bytes.
// Tensor maps: 4-D {D, tokens, heads, batch} of the 16-bit type, 128-byte swizzle, box {64, rows, 1, 1} with
// rows = TILE_Q for q_map and TILE_KV for k_map and v_map, zero fill out of range.
// o and acc_o rows start on 16 bytes; scale > 0. Key tiles that reach past a segment's end are masked there whatever
// its ranges say. A segment that is not ready within spin_limit sets *error; the kernel still ends, its output void.
#include "fwd_load.cuh"
#include "fwd_mainloop.cuh"

extern "C" __device__ const int forward_shared_bytes = sizeof(Shared);

DEVICE void init_barriers(Barriers& barriers) {
    const auto init = [](u64& barrier, u32 arrivals) { ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals); };
    init(barriers.item_due, 1);
    init(barriers.q_full, 1);
    init(barriers.q_empty, tile::consumer_warps);
    for (int stage = 0; stage < tile::stages; ++stage) {
        init(barriers.k_full[stage], 1);
        init(barriers.k_empty[stage], tile::consumer_warps);
        init(barriers.v_full[stage], 1);
        init(barriers.v_empty[stage], tile::consumer_warps);
    }
    for (int slot = 0; slot < work_slots; ++slot) {
        init(barriers.work_full[slot], 1);
        init(barriers.work_empty[slot], tile::consumer_warps + 1);
    }
    ptx::mbarrier_init_fence();
}

extern "C" __global__ void __launch_bounds__(tile::threads, 1)
    attention_forward(const __grid_constant__ ForwardArgs args) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x == 0) init_barriers(shared.barriers);
    __syncthreads();
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    if (warp < 4) {
        ptx::registers_release<tile::producer_registers>();
        if (warp == 0 && ptx::elect_one()) load::run(args, shared);
        if (warp == 1 && ptx::elect_one()) schedule::run(args, shared);
    } else {
        ptx::registers_claim<tile::consumer_registers>();
        mainloop::run(args, shared, warp / 4 - 1);
    }
}
