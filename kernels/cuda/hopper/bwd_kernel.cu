// Attention backward for sm_90a: one kernel a head dimension, BackwardArgs by value, `threads` threads, dynamic shared
// memory of sizeof(Shared<D>), a persistent grid of at most one CTA an SM.
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
        const int warp = threadIdx.x / 32;
        if (threadIdx.x == 0) Loader<D>{args, shared}.run();
        else if (warp == 1 || warp == 2) StatsLoader<D>{args, shared, static_cast<int>(threadIdx.x) - 32}.run();
        else if (threadIdx.x == 96) Writer<D>{args, shared}.run();
    } else {
        ptx::registers_claim<240>();
        Consumer<D>{args, shared, Lane::of(threadIdx.x - warpgroup_threads)}.run();
    }
}

}  // namespace bwd

extern "C" __device__ const int backward_shared_bytes = sizeof(bwd::Shared<HEAD_DIM>);

extern "C" __global__ void __launch_bounds__(bwd::threads, 1) attention_backward(const __grid_constant__ BackwardArgs args) {
    bwd::backward<HEAD_DIM>(args);
}
