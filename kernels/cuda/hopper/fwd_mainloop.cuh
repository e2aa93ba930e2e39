// The consumers: warpgroups of 64 query rows each. While one warpgroup's tensor work runs, the others do their softmax;
// inside a warpgroup the softmax of a tile overlaps with the product with the values of the tile before.
#pragma once

#include "fwd_epilogue.cuh"
#include "fwd_mask.cuh"
#include "fwd_schedule.cuh"

namespace mainloop {

constexpr int score_registers = TILE_KV / 2;
constexpr int output_registers = HEAD_DIM / 2;
constexpr int first_turn_barrier = 1;  // named barrier of consumer 0's turn; the others follow

constexpr int query_registers = tile::queries_in_registers ? HEAD_DIM / 4 : 1;

// This warpgroup's queries, in shared memory or, which halves the shared memory the first product reads, in registers.
struct Queries {
    u32 address;
    u32 fragments[query_registers];

    DEVICE void load() {
        if (!tile::queries_in_registers) return;
        const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
        for (int step = 0; step < query_registers / 4; ++step) {
            const int chunk = step % 4 * 2 + lane / 16;
            const u32 source = address + step / 4 * tile::q_block_bytes + row * tile::row_bytes + (chunk ^ row % 8) * 16;
            u32* f = fragments + 4 * step;
            ptx::load_matrix_x4(source, f[0], f[1], f[2], f[3]);
        }
    }

    DEVICE void multiply_keys(float (&scores)[score_registers], u64 k) const {
        const u64 q = wgmma::descriptor_k_major(address);
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; ++step) {
            const int inside = step % 4 * 2;
            const u64 keys = k + inside + step / 4 * (tile::kv_block_bytes >> 4);
            if constexpr (tile::queries_in_registers) {
                const u32* f = fragments + 4 * step;
                wgmma::Multiply<TILE_KV>::template register_shared<0>(scores, f[0], f[1], f[2], f[3], keys, step > 0);
            } else {
                wgmma::Multiply<TILE_KV>::template shared_shared<0, 0>(
                    scores, q + inside + step / 4 * (tile::q_block_bytes >> 4), keys, step > 0);
            }
        }
        wgmma::commit();
    }
};

DEVICE void multiply_probabilities_values(float (&o)[output_registers], const u32 (&p)[TILE_KV / 4], u64 v) {
#pragma unroll
    for (int step = 0; step < TILE_KV / 16; ++step) {
        wgmma::Multiply<HEAD_DIM>::register_shared<1>(o, p[4 * step], p[4 * step + 1], p[4 * step + 2],
                                                      p[4 * step + 3], v + step * (16 * tile::row_bytes >> 4), 1);
    }
    wgmma::commit();
}

struct Consumer {
    const ForwardArgs& args;
    Shared& shared;
    int group;
    Queries queries;
    RingPosition<1> q;
    RingPosition<STAGES> k;   // the next key tile; the value tile in use is always the one before

    DEVICE int lane() const { return threadIdx.x % 32; }
    // The thread's first query; past the end where this CTA has no query tile.
    DEVICE int row(const Work& work) const {
        const int q_tile = work.q_tiles[cluster_rank()];
        const int tile_row = group * 64 + threadIdx.x / 32 % 4 * 16 + lane() / 4;
        return CLUSTER > 1 && q_tile < 0 ? args.q_len : q_tile * TILE_Q + tile_row;
    }

    DEVICE void release(u64& barrier) {
        __syncwarp();
        if (lane() == 0) arrive_barrier(barrier);
    }

    // To every CTA that writes this stage.
    DEVICE void release_stage(u64& barrier) {
        __syncwarp();
        if (CLUSTER == 1) {
            if (lane() == 0) arrive_barrier(barrier);
        } else if (lane() < CLUSTER) {
            ptx::mbarrier_arrive_cluster(ptx::shared_address(&barrier), lane());
        }
    }

    DEVICE void take_turn() { ptx::named_sync(first_turn_barrier + group, 256); }
    DEVICE void pass_turn() {
        ptx::named_arrive(first_turn_barrier + (group + 1 == tile::consumers ? 0 : group + 1), 256);
    }

    DEVICE void wait_keys(RingPosition<STAGES> at) { wait_barrier(shared.barriers.k_full[at.slot()], at.phase()); }

    // Waits for keys after the sum of a tile's probabilities is known. It is never as large as here, but the assembler
    // does not know and so cannot move the work behind the sum past this wait.
    DEVICE void wait_keys(RingPosition<STAGES> at, float sum) {
        wait_barrier(shared.barriers.k_full[at.slot()], at.phase() ^ static_cast<u32>(sum > 1e30f));
    }

    DEVICE void multiply_keys(float (&scores)[score_registers]) {
        wgmma::fence();
        queries.multiply_keys(scores, wgmma::descriptor_k_major(ptx::shared_address(shared.k[k.slot()])));
    }

    DEVICE void multiply_values(float (&o)[output_registers], const u32 (&p)[TILE_KV / 4]) {
        const RingPosition<STAGES> v = k.before();
        wait_barrier(shared.barriers.v_full[v.slot()], v.phase());
        wgmma::fence();
        multiply_probabilities_values(
            o, p, wgmma::descriptor_mn_major(ptx::shared_address(shared.v[v.slot()]), tile::kv_block_bytes));
    }

    DEVICE void first_tile(const Work& work, float (&scores)[score_registers], u32 (&p)[TILE_KV / 4],
                           float (&o)[output_registers], softmax::State& state) {
        wait_keys(k);
        const TileTag tag = shared.tags[k.slot()];
        multiply_keys(scores);
        mask::Columns columns;
        if (tag.index >= 0) columns = mask::visible(args, tag, row(work), lane());
        wgmma::wait<0>();
        wgmma::pin(scores);
        release_stage(shared.barriers.k_empty[k.slot()]);
        k.advance();
        if (tag.index >= 0) mask::apply(scores, columns);
        float rescale[2];
        softmax::update(scores, state, args.scale * softmax::log2_e, rescale);
        softmax::rescale_rows(o, rescale);
        softmax::pack(scores, p);
    }

    DEVICE void next_tile(const Work& work, float (&scores)[score_registers], u32 (&p)[TILE_KV / 4],
                          float (&o)[output_registers], softmax::State& state, bool more) {
        const TileTag tag = shared.tags[k.slot()];
        take_turn();
        multiply_keys(scores);
        multiply_values(o, p);
        pass_turn();
        mask::Columns columns;
        if (tag.index >= 0) columns = mask::visible(args, tag, row(work), lane());
        wgmma::wait<1>();
        wgmma::pin(scores);
        release_stage(shared.barriers.k_empty[k.slot()]);
        if (tag.index >= 0) mask::apply(scores, columns);
        float rescale[2];
        const float sum = softmax::update(scores, state, args.scale * softmax::log2_e, rescale);
        // The exponentials run beside the product with the values, not after the wait for it.
        if (more) wait_keys(k.after(), sum);
        wgmma::wait<0>();
        wgmma::pin(o);
        wgmma::pin(p);
        release_stage(shared.barriers.v_empty[k.before().slot()]);
        k.advance();
        softmax::rescale_rows(o, rescale);
        softmax::pack(scores, p);
    }

    DEVICE void last_values(const u32 (&p)[TILE_KV / 4], float (&o)[output_registers]) {
        multiply_values(o, p);
        wgmma::wait<0>();
        wgmma::pin(o);
        release_stage(shared.barriers.v_empty[k.before().slot()]);
    }

    DEVICE void attend(const Work& work, float (&o)[output_registers], softmax::State& state) {
        float scores[score_registers];
        u32 p[TILE_KV / 4];
        wait_barrier(shared.barriers.q_full, q.phase());
        q.advance();
        queries.load();
        if (tile::queries_in_registers) release(shared.barriers.q_empty);
        int left = work.tiles - 1;
        first_tile(work, scores, p, o, state);
        if (left > 0) wait_keys(k);
        for (; left > 0; --left) next_tile(work, scores, p, o, state, left > 1);
        if (!tile::queries_in_registers) release(shared.barriers.q_empty);
        last_values(p, o);
    }
};

DEVICE void run(const ForwardArgs& args, Shared& shared, int group) {
    Consumer consumer{args, shared, group, {ptx::shared_address(shared.q) + group * 64 * tile::row_bytes}};
    schedule::Reader reader{shared};
    if (group == tile::consumers - 1) consumer.pass_turn();
    while (true) {
        const Work& work = reader.read();
        if (work.tiles < 0) break;
        float o[output_registers];
        softmax::State state;
        if (work.load_state) epilogue::load_state(args, work, consumer.row(work), o, state);
        else epilogue::clear(o, state);
        if (work.tiles > 0) consumer.attend(work, o, state);
        epilogue::store(args, work, consumer.row(work), o, state);
        __syncwarp();
        if (consumer.lane() == 0) reader.release();
        else reader.position.advance();
    }
}

}  // namespace mainloop
