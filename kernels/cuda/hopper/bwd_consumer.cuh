// The multiplying warpgroups of the backward.
//
// Per query tile i, in the order of issue: dP(i), dV(i), dQ(i), S(i + 1), dK(i). The tensor cores therefore always have
// work queued: dK(i - 1) and dP(i) while P(i) is computed, dV(i) while dS(i) is, S(i + 1) and dK(i) while dQ(i) is added
// to global memory. Every issue is one commit group, so the waits below count products.
#pragma once

#include "bwd_accumulate.cuh"

namespace bwd {

template <int D> struct Consumer {
    using T = Tile<D>;
    const BackwardArgs& args;
    Shared<D>& shared;
    const Lane lane;
    Ring ring;
    Ring slots;

    DEVICE void run() {
        for (;;) {
            Pipeline& pipe = shared.item_pipe[slots.stage()];
            ptx::mbarrier_wait(ptx::shared_address(&pipe.full), slots.parity());
            const Item& item = shared.items[slots.stage()];
            if (item.tile < 0) return;
            process(item);
            release(pipe);
            ++slots.uses;
        }
    }

    // One arrival a warp on the empty barrier.
    DEVICE void release(Pipeline& pipe) const { arrive(pipe.empty); }
    DEVICE void arrive(u64& barrier) const {
        __syncwarp();
        if (lane.lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&barrier));
    }
    DEVICE void wait_full(Pipeline& pipe, u32 parity) const { ptx::mbarrier_wait(ptx::shared_address(&pipe.full), parity); }

    DEVICE Keys keys(const Item& item) const {
        const Segment& segment = args.segments[0];
        Keys keys;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int key = item.tile * T::kv + lane.group * 64 + lane.row() + 8 * half;
            keys.inside[half] = key < segment.len;
            keys.pos[half] = keys.inside[half] ? segment.pos[key] : 0;
        }
        return keys;
    }

    DEVICE void process(const Item& item) {
        float dk[T::gradient_registers], dv[T::gradient_registers];
#pragma unroll
        for (int i = 0; i < T::gradient_registers; ++i) dk[i] = dv[i] = 0.0f;
        accumulate(item, dk, dv);
        const Segment& segment = args.segments[0];
        const i64 at = item.batch * args.dkv_stride.batch + item.kv_head * args.dkv_stride.head;
        const int row = item.tile * T::kv + lane.group * 64 + lane.row();
        add_rows<D>(args.dv + at, args.dkv_stride.token, dv, row, segment.len, lane.column(), 1.0f);
        add_rows<D>(args.dk + at, args.dkv_stride.token, dk, row, segment.len, lane.column(), args.scale);
    }

    DEVICE void accumulate(const Item& item, float (&dk)[T::gradient_registers], float (&dv)[T::gradient_registers]) {
        const bool tail = (item.tile + 1) * T::kv > args.segments[0].len;
        const float scale_log2 = args.scale * 1.4426950408889634f;
        const int count = (item.queries.last - item.queries.first) * item.heads;
        int tile = item.queries.first;
        float s[T::score_registers], dp[T::score_registers];
        u32 ds16[T::score_registers / 2];

        ptx::mbarrier_wait(ptx::shared_address(&shared.k_full), slots.uses & 1);
        wait_full(shared.q_pipe[ring.stage()], ring.parity());
        wgmma::pin(dk);
        wgmma::pin(dv);
        wgmma::fence();
        multiply_scores<D>(s, shared.k, shared.q[ring.stage()], lane.group);
        wgmma::commit();
        ptx::mbarrier_wait(ptx::shared_address(&shared.v_full), slots.uses & 1);
        wgmma::wait<0>();
        wgmma::pin(s);

        for (int i = 0; i < count; ++i) {
            const int stage = ring.stage();
            Pipeline& do_pipe = shared.do_pipe[stage];
            const Stats<T::q>& stats = shared.stats[stage];
            wait_full(do_pipe, ring.parity());
            wgmma::fence();
            multiply_scores<D>(dp, shared.v, shared.d_o[stage], lane.group);
            wgmma::commit();

            const bool full = item.queries.full_first <= tile && tile < item.queries.full_last && !tail;
            if (full) exponentiate<false>(s, stats, Keys{}, scale_log2, lane.column());
            else exponentiate<true>(s, stats, keys(item), scale_log2, lane.column());
            u32 p16[T::score_registers / 2];
            pack(p16, s);
            wgmma::wait<0>();
            wgmma::pin(dp);
            wgmma::pin(p16);
            wgmma::fence();
            multiply_gradient<D>(dv, p16, shared.d_o[stage]);
            wgmma::commit();

            differentiate(s, dp, stats, lane.column());
            pack(ds16, s);
            store_ds<T::q>(shared.ds[stage], ds16, lane);
            ptx::fence_async_shared();
            ptx::named_sync(scores_barrier, consumer_threads);

            wgmma::wait<0>();
            wgmma::pin(dv);
            release(do_pipe);

            float dq[32];
            wgmma::pin(ds16);
            wgmma::fence();
            multiply_dq<D>(dq, shared.ds[stage], shared.k, lane.group);
            wgmma::commit();
            ++ring.uses;
            // The last one multiplies whatever the stage holds and is not used: a branch would serialise the products.
            if (i + 1 < count) wait_full(shared.q_pipe[ring.stage()], ring.parity());
            wgmma::fence();
            multiply_scores<D>(s, shared.k, shared.q[ring.stage()], lane.group);
            wgmma::commit();
            multiply_gradient<D>(dk, ds16, shared.q[stage]);
            wgmma::commit();

            wgmma::wait<2>();
            wgmma::pin(dq);
            add_dq(dq);
            wgmma::wait<0>();
            wgmma::pin(s);
            wgmma::pin(dk);
            release(shared.q_pipe[stage]);
            if (++tile == item.queries.last) tile = item.queries.first;
        }
        arrive(shared.kv_empty);
    }

    // Hands a tile of dQ to the writer.
    DEVICE void add_dq(const float (&dq)[32]) {
        // Used once a stage; the ring has gone on.
        ptx::mbarrier_wait(ptx::shared_address(&shared.dq_pipe.empty), ring.uses & 1);
        stage_dq(shared.dq[lane.group][0], dq, lane, args.scale);
        ptx::fence_async_shared();
        arrive(shared.dq_pipe.full);
    }
};

}  // namespace bwd
