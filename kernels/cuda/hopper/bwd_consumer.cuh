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
    using Scores = float[T::score_registers];
    using Gradient = float[T::gradient_registers];
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
        Gradient dk, dv;
#pragma unroll
        for (int i = 0; i < T::gradient_registers; ++i) dk[i] = dv[i] = 0.0f;
        accumulate(item, dk, dv);
        const Segment& segment = args.segments[0];
        const i64 at = item.batch * args.dkv_stride.batch + item.kv_head * args.dkv_stride.head;
        const int row = item.tile * T::kv + lane.group * 64 + lane.row();
        add_rows<D>(args.dv + at, args.dkv_stride.token, dv, row, segment.len, lane.column(), 1.0f / p_factor(args));
        add_rows<D>(args.dk + at, args.dkv_stride.token, dk, row, segment.len, lane.column(), ds_factor(args));
    }

    // Sums dK and dV over the query tiles of the item and hands dQ of each to the writer.
    DEVICE void accumulate(const Item& item, Gradient& dk, Gradient& dv) {
        Scores s, dp;
        ptx::mbarrier_wait(ptx::shared_address(&shared.k_full), slots.uses & 1);
        wait_full(shared.q_pipe[ring.stage()], ring.parity());
        wgmma::pin(dk);
        wgmma::pin(dv);
        start_scores(s);
        ptx::mbarrier_wait(ptx::shared_address(&shared.v_full), slots.uses & 1);
        if (T::early_dp) {
            wait_full(shared.do_pipe[ring.stage()], ring.parity());
            start_dp(dp);
            wgmma::wait<1>();
        } else {
            wgmma::wait<0>();
        }
        wgmma::pin(s);
        // A branch around the products of the next tile would serialise them all. So the last tile is a copy of the loop
        // without them, or, where the registers do not allow that, multiplies whatever the stage holds to no use.
        for (int left = item.count() * item.heads; left > T::last_apart; --left) step<false>(item, s, dp, dk, dv, left > 1);
        if (T::last_apart) step<true>(item, s, dp, dk, dv, false);
        arrive(shared.kv_empty);
    }

    // One query tile; S of it is complete, dP issued if early_dp. Issues the same for the next unless this is the last.
    template <bool Last> DEVICE void step(const Item& item, Scores& s, Scores& dp, Gradient& dk, Gradient& dv, bool more) {
        const int stage = ring.stage();
        if (!T::early_dp) {
            wait_full(shared.do_pipe[stage], ring.parity());
            start_dp(dp);
        }
        u32 ds16[T::score_registers / 2];
        score_gradient(ds16, item, s, dp, dv);
        ptx::named_sync(scores_barrier, consumer_threads);
        wgmma::wait<0>();
        wgmma::pin(dv);
        release(shared.do_pipe[stage]);

        float dq[32];
        wgmma::pin(ds16);
        wgmma::fence();
        multiply_dq<D>(dq, shared.ds[stage], shared.k, lane.group);
        wgmma::commit();
        ++ring.uses;
        if (!Last) {
            if (T::last_apart || more) wait_full(shared.q_pipe[ring.stage()], ring.parity());
            start_scores(s);
        }
        multiply_gradient<D>(dk, ds16, shared.q[stage]);
        wgmma::commit();
        wgmma::wait<Last ? 1 : 2>();
        wgmma::pin(dq);
        add_dq(dq);
        if (!Last && T::early_dp) {
            wait_full(shared.do_pipe[ring.stage()], ring.parity());
            start_dp(dp);
            wgmma::wait<1>();
        } else {
            wgmma::wait<0>();
        }
        wgmma::pin(s);
        wgmma::pin(dk);
        release(shared.q_pipe[stage]);
    }

    DEVICE void start_scores(Scores& s) const {
        wgmma::fence();
        multiply_scores<D>(s, shared.k, shared.q[ring.stage()], lane.group);
        wgmma::commit();
    }

    DEVICE void start_dp(Scores& dp) const {
        wgmma::fence();
        multiply_scores<D>(dp, shared.v, shared.d_o[ring.stage()], lane.group);
        wgmma::commit();
    }

    // P from S, issues dV += P dO, dS from P and dP into registers and shared memory.
    DEVICE void score_gradient(u32 (&ds16)[T::score_registers / 2], const Item& item, Scores& s, Scores& dp, Gradient& dv) const {
        const int stage = ring.stage();
        const Stats<T::q>& stats = shared.stats[stage];
        const float scale_log2 = args.scale * 1.4426950408889634f;
        if (stats.masked) exponentiate<true>(s, stats, keys(item), scale_log2, lane.column());
        else exponentiate<false>(s, stats, Keys{}, scale_log2, lane.column());
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
    }

    // Hands a tile of dQ to the writer.
    DEVICE void add_dq(const float (&dq)[32]) {
        // Used once a stage; the ring has gone on.
        ptx::mbarrier_wait(ptx::shared_address(&shared.dq_pipe.empty), ring.uses & 1);
        stage_dq(shared.dq[lane.group][0], dq, lane, ds_factor(args));
        ptx::fence_async_shared();
        arrive(shared.dq_pipe.full);
    }
};

}  // namespace bwd
