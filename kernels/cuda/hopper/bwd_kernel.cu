// FlashAttention backward for Hopper. Compile with HEAD_DIM = 64 or 128, and DTYPE_FP16 for fp16.
//
// Launch: grid = min(SMs, items and parts), block = 384, dynamic shared memory = backward_shared_bytes; work_counter,
// started and, in deterministic mode, dq_turn zeroed. SPLIT_LAST: items may be cut (whole_items, last_parts). One segment (segment_count = 1) of at least one key;
// scale > 0; batch * heads * q_len < 2^32. order is not read in deterministic mode.
// Tiles: 128 keys by 64 (D = 128) or 128 (D = 64) queries. Key tiles that reach past the segment's end are masked there
// whatever their ranges say.
// Tensor maps: 4-D {D, heads, tokens, batch} of the 16-bit type, 128-byte swizzle, box {64, 1, rows, 1} with rows =
// the queries of a tile for q_map and do_map and 128 for k_map and v_map, zero fill out of range. dq_map: the same
// order of dimensions in fp32, box {32, 1, 64, 1}. Rows of dq, dk and dv start on 16 bytes.
// Structure after FlashAttention-3 (Shah et al., arXiv 2407.08608).
#include "bwd_consumer.cuh"
#include "bwd_producer.cuh"
#include "bwd_writer.cuh"

namespace bwd {

template <int D> DEVICE void init_barriers(Shared<D>& shared) {
    using T = Tile<D>;
    const auto init = [](u64& barrier, int arrivals) { ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals); };
    init(shared.k_full, 1);
    init(shared.v_full, 1);
    init(shared.kv_empty, consumer_warps);
    init(shared.ds_empty, consumer_warps);
    init(shared.dq_pipe.full, consumer_warps);
    init(shared.dq_pipe.empty, 1);
    for (int stage = 0; stage < T::stages; ++stage) {
        for (Pipeline* pipe : {&shared.q_pipe[stage], &shared.do_pipe[stage]}) {
            init(pipe->full, 1 + stats_threads);
            init(pipe->empty, consumer_warps);
        }
    }
    for (Pipeline& pipe : shared.item_pipe) {
        init(pipe.full, 1);
        init(pipe.empty, consumer_warps + stats_threads / 32 + 1);
    }
    ptx::mbarrier_init_fence();
}

template <int D> DEVICE void backward(const BackwardArgs& args) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    Shared<D>& shared = *reinterpret_cast<Shared<D>*>(dynamic);
    if (threadIdx.x == 0) {
        init_barriers(shared);
        shared.schedule = Schedule::of<D>(args);
    }
    __syncthreads();
    if (threadIdx.x < warpgroup_threads) {
        ptx::registers_release<24>();
        const int thread = threadIdx.x;
        if (thread == 0) Loader<D>{args, shared}.run();
        else if (thread >= 32 && thread < 32 + stats_threads) StatsLoader<D>{args, shared, thread - 32}.run();
        else if (thread == 32 + stats_threads) Writer<D>{args, shared}.run();
    } else {
        ptx::registers_claim<240>();
        Consumer<D>{args, shared, Lane::of(threadIdx.x - warpgroup_threads)}.run();
    }
}

}  // namespace bwd

extern "C" __device__ const int backward_shared_bytes = sizeof(bwd::Shared<HEAD_DIM>);

extern "C" __global__ void __launch_bounds__(bwd::threads, 1)
attention_backward(const __grid_constant__ BackwardArgs args) {
    bwd::backward<HEAD_DIM>(args);
}
