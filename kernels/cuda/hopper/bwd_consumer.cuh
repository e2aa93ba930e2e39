// The multiplying warpgroups of the backward.
//
// Per query tile i, in the order of issue: dP(i), dV(i), dQ(i), S(i + 1), dK(i). So the tensor cores have work queued
// while the other units compute: dP(i) during P(i), dV(i) during dS(i), S(i + 1) and dK(i) while dQ(i) goes to shared
// memory. Every issue is one commit group, so the waits below count products.
#pragma once

#include "bwd_accumulate.cuh"

namespace bwd {

template <int D> struct Consumer {
    using T = Tile<D>;
    using Scores = float[T::score_registers];
    using Packed = u32[T::score_registers / 2];
    using Gradient = float[T::gradient_registers];
    const BackwardArgs& args;
    Shared<D>& shared;
    const Lane lane;
    Ring<T::stages> ring;
    Ring<item_slots> slots;

    DEVICE void run() {
        for (;;) {
            Pipeline& pipe = shared.item_pipe[slots.stage()];
            ptx::mbarrier_wait(ptx::shared_address(&pipe.full), slots.parity());
            const Item& item = shared.items[slots.stage()];
            if (item.tile < 0) return;
            process(item);
            release(pipe);
            slots.advance();
        }
    }

    // One arrival a warp on the empty barrier.
    DEVICE void release(Pipeline& pipe) const { arrive(pipe.empty); }
    DEVICE void arrive(u64& barrier) const {
        __syncwarp();
        if (lane.lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&barrier));
    }
    DEVICE void wait_full(Pipeline& pipe, u32 parity) const {
        ptx::mbarrier_wait(ptx::shared_address(&pipe.full), parity);
    }

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
        if (item.count() > 0) accumulate(item, dk, dv);
        else pass_keys();
        const i64 at = item.batch * args.dkv_stride.batch + item.kv_head * args.dkv_stride.head;
        const int row = item.tile * T::kv + lane.group * 64 + lane.row();
#ifdef SPLIT_LAST
        int* started = args.started + 8 * item.cut + lane.group * 4 + lane.warp;
        if (args.start_dkv && item.part > 0) await_start(started);
        if (args.start_dkv && item.part == 0) {
            put_gradients<true>(at, row, dk, dv);
            if (item.cut >= 0) tell_start(started);
        } else {
            put_gradients<false>(at, row, dk, dv);
        }
#else
        if (args.start_dkv) put_gradients<true>(at, row, dk, dv);
        else put_gradients<false>(at, row, dk, dv);
#endif
    }

#ifdef SPLIT_LAST
    // This warp's rows of dK and dV are written, and the other parts of the item may add to them.
    DEVICE void tell_start(int* started) const {
        __threadfence();
        __syncwarp();
        if (lane.lane == 0) asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(started) : "memory");
    }

    // The first part was taken before this one and waits for nothing, so it ends.
    DEVICE void await_start(const int* started) const {
        int now;
        do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(started) : "memory");
        while (!now);
        __syncwarp();
    }
#endif

    // An item without query tiles, whose gradients are to be zero.
    DEVICE void pass_keys() const {
        ptx::mbarrier_wait(ptx::shared_address(&shared.k_full), slots.odd());
        ptx::mbarrier_wait(ptx::shared_address(&shared.v_full), slots.odd());
        arrive(shared.kv_empty);
    }

    template <bool Start> DEVICE void put_gradients(i64 at, int row, const Gradient& dk, const Gradient& dv) const {
        const i64 stride = args.dkv_stride.token;
        const int rows = args.segments[0].len;
        put_rows<Start, D>(args.dv + at, stride, dv, row, rows, lane, 1.0f / p_factor(args));
        put_rows<Start, D>(args.dk + at, stride, dk, row, rows, lane, ds_factor(args));
    }

#ifdef EARLY_SCORES
    // Another order of issue: dP(i), dV(i), S(i + 1) at once, since P(i) is there; then dQ(i), dK(i). dS(i) is computed under dV(i)
    // and S(i + 1), from P as it was rounded, and P(i + 1) under dQ(i) and dK(i).
    DEVICE void accumulate(const Item& item, Gradient& dk, Gradient& dv) {
        Scores s;
        Packed p16;
        ptx::mbarrier_wait(ptx::shared_address(&shared.k_full), slots.odd());
        wait_full(shared.q_pipe[ring.stage()], ring.parity());
        wgmma::pin(dk);
        wgmma::pin(dv);
        start_scores(s);
        ptx::mbarrier_wait(ptx::shared_address(&shared.v_full), slots.odd());
        wgmma::wait<0>();
        wgmma::pin(s);
        weigh(s);
        keep_visible(p16, item, s);
        for (int left = item.count() * item.heads; left > 1; --left) step<false>(item, s, p16, dk, dv);
        step<true>(item, s, p16, dk, dv);
        arrive(shared.kv_empty);
    }

    // P from S of the ring's tile, as if no pair were masked.
    DEVICE void weigh(Scores& s) const {
        exponentiate<false>(s, shared.stats[ring.stage()], Keys{}, args.scale * 1.4426950408889634f, lane.column());
    }

    // Rounds P, without the masked pairs. Apart from weigh(), since it needs registers that dQ holds then.
    DEVICE void keep_visible(Packed& p16, const Item& item, Scores& s) const {
        const Stats<T::q>& stats = shared.stats[ring.stage()];
        if (stats.masked) mask(s, stats, keys(item), lane.column());
        pack(p16, s);
    }

    // One query tile, whose P is there; leaves P of the next, of which this has S multiplied.
    template <bool Last> DEVICE void step(const Item& item, Scores& s, Packed& p16, Gradient& dk, Gradient& dv) {
        const int stage = ring.stage();
        wait_full(shared.do_pipe[stage], ring.parity());
        Scores dp;
        wgmma::pin(p16);
        start_dp(dp);
        multiply_gradient<D>(dv, p16, shared.d_o[stage]);
        wgmma::commit();
        ring.advance();
        if (!Last) {
            wait_full(shared.q_pipe[ring.stage()], ring.parity());
            start_scores(s);
        }
        wgmma::wait<Last ? 1 : 2>();
        wgmma::pin(dp);
        differentiate_rounded(dp, p16, shared.stats[stage], lane.column());
        wgmma::wait<Last ? 0 : 1>();
        wgmma::pin(dv);
        release(shared.do_pipe[stage]);
        Packed ds16;
        pack(ds16, dp);
        ptx::mbarrier_wait(ptx::shared_address(&shared.ds_empty), ring.odd());
        store_ds<T::q>(shared.ds, ds16, lane);
        ptx::fence_async_shared();
        ptx::named_sync(scores_barrier, consumer_threads);

        float dq[32];
        wgmma::pin(ds16);
        wgmma::fence();
        multiply_dq<D>(dq, shared.ds, shared.k, lane.group);
        wgmma::commit();
        multiply_gradient<D>(dk, ds16, shared.q[stage]);
        wgmma::commit();
        if (!Last) {
            wgmma::wait<2>();
            wgmma::pin(s);
            weigh(s);
        }
        wgmma::wait<1>();
        wgmma::pin(dq);
        arrive(shared.ds_empty);
        add_dq(dq);
        if (!Last) keep_visible(p16, item, s);
        wgmma::wait<0>();
        wgmma::pin(dk);
        release(shared.q_pipe[stage]);
    }
#else
    // Sums dK and dV over the query tiles of the item and hands dQ of each to the writer.
    DEVICE void accumulate(const Item& item, Gradient& dk, Gradient& dv) {
        Scores s;
        ptx::mbarrier_wait(ptx::shared_address(&shared.k_full), slots.odd());
        wait_full(shared.q_pipe[ring.stage()], ring.parity());
        wgmma::pin(dk);
        wgmma::pin(dv);
        start_scores(s);
        ptx::mbarrier_wait(ptx::shared_address(&shared.v_full), slots.odd());
        wgmma::wait<0>();
        wgmma::pin(s);
        // A branch around the product of the next tile would serialise them all. So the last tile is a copy of the loop
        // without it, or, where the registers do not allow that, multiplies whatever the stage holds to no use.
        constexpr int apart = T::last_apart ? 1 : 0;
        for (int left = item.count() * item.heads; left > apart; --left) step<false>(item, s, dk, dv, left > 1);
        if (T::last_apart) step<true>(item, s, dk, dv, false);
        arrive(shared.kv_empty);
    }

    // One query tile, S of which is complete; issues S of the next unless this is the last.
    template <bool Last> DEVICE void step(const Item& item, Scores& s, Gradient& dk, Gradient& dv, bool more) {
        const int stage = ring.stage();
        wait_full(shared.do_pipe[stage], ring.parity());
        Scores dp;
        start_dp(dp);
        Packed ds16;
        score_gradient(ds16, item, s, dp, dv);
        ptx::named_sync(scores_barrier, consumer_threads);
        wgmma::wait<0>();
        wgmma::pin(dv);
        release(shared.do_pipe[stage]);

        float dq[32];
        wgmma::pin(ds16);
        wgmma::fence();
        multiply_dq<D>(dq, shared.ds, shared.k, lane.group);
        wgmma::commit();
        ring.advance();
        if (!Last) {
            if (T::last_apart || more) wait_full(shared.q_pipe[ring.stage()], ring.parity());
            start_scores(s);
        }
        multiply_gradient<D>(dk, ds16, shared.q[stage]);
        wgmma::commit();
        wgmma::wait<Last ? 1 : 2>();
        wgmma::pin(dq);
        arrive(shared.ds_empty);
        add_dq(dq);
        wgmma::wait<0>();
        wgmma::pin(s);
        wgmma::pin(dk);
        release(shared.q_pipe[stage]);
    }
#endif

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
    DEVICE void score_gradient(Packed& ds16, const Item& item, Scores& s, Scores& dp, Gradient& dv) const {
        const int stage = ring.stage();
        const Stats<T::q>& stats = shared.stats[stage];
        const float scale_log2 = args.scale * 1.4426950408889634f;
        if (stats.masked) exponentiate<true>(s, stats, keys(item), scale_log2, lane.column());
        else exponentiate<false>(s, stats, Keys{}, scale_log2, lane.column());
        Packed p16;
        pack(p16, s);
        wgmma::wait<0>();
        wgmma::pin(dp);
        wgmma::pin(p16);
        wgmma::fence();
        multiply_gradient<D>(dv, p16, shared.d_o[stage]);
        wgmma::commit();
        differentiate(s, dp, stats, lane.column());
        pack(ds16, s);
        ptx::mbarrier_wait(ptx::shared_address(&shared.ds_empty), ring.odd() ^ 1);
        store_ds<T::q>(shared.ds, ds16, lane);
        ptx::fence_async_shared();
    }

    // Hands a tile of dQ to the writer.
    DEVICE void add_dq(const float (&dq)[32]) {
        // Used once a stage; the ring has gone on.
        ptx::mbarrier_wait(ptx::shared_address(&shared.dq_pipe.empty), ring.odd());
        stage_dq(shared.dq[lane.group][0], dq, lane, ds_factor(args));
        ptx::fence_async_shared();
        arrive(shared.dq_pipe.full);
    }
};

}  // namespace bwd
