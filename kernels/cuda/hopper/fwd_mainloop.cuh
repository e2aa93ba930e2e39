// The consumers: warpgroups of 64 query rows each. They take turns: while the tensor cores work for one, the others do
// their softmax. A turn queues the scores of a tile and the product with the values of the tile before.
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
            const u32 block = address + step / 4 * tile::q_block_bytes;
            u32* f = fragments + 4 * step;
            ptx::load_matrix_x4(block + row * tile::row_bytes + (chunk ^ row % 8) * 16, f[0], f[1], f[2], f[3]);
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
    RingPosition<tile::stages> k;   // the next key tile; the value tile in use is always the one before

    DEVICE int lane() const { return threadIdx.x % 32; }

    // The thread's first query; its other is 8 rows further.
    DEVICE int row(const Work& work) const {
        return work.q_tile * TILE_Q + group * 64 + threadIdx.x / 32 % 4 * 16 + lane() / 4;
    }

    // After an instruction of the whole warp that waits for its last read.
    DEVICE void release(u64& barrier) {
        if (lane() == 0) arrive_barrier(barrier);
    }

    DEVICE void take_turn() { ptx::named_sync(first_turn_barrier + group, 256); }
    DEVICE void pass_turn() {
        ptx::named_arrive(first_turn_barrier + (group + 1 == tile::consumers ? 0 : group + 1), 256);
    }

    DEVICE TileTag wait_keys() {
        wait_barrier(shared.barriers.k_full[k.slot()], k.phase());
        return shared.tags[k.slot()];
    }

    DEVICE void multiply_keys(float (&scores)[score_registers]) {
        wgmma::fence();
        queries.multiply_keys(scores, wgmma::descriptor_k_major(ptx::shared_address(shared.k[k.slot()])));
    }

    DEVICE void multiply_values(float (&o)[output_registers], const u32 (&p)[TILE_KV / 4]) {
        const RingPosition<tile::stages> v = k.before();
        wait_barrier(shared.barriers.v_full[v.slot()], v.phase());
        wgmma::fence();
        multiply_probabilities_values(
            o, p, wgmma::descriptor_mn_major(ptx::shared_address(shared.v[v.slot()]), tile::kv_block_bytes));
    }

    template <bool Masked>
    DEVICE void first_tile(const Work& work, const TileTag& tag, float (&scores)[score_registers],
                           u32 (&p)[TILE_KV / 4], float (&o)[output_registers], softmax::State& state) {
        multiply_keys(scores);
        mask::Columns columns;
        if (Masked) columns = mask::visible(args, tag, row(work), lane());
        wgmma::wait<0>();
        wgmma::pin(scores);
        release(shared.barriers.k_empty[k.slot()]);
        k.advance();
        if (Masked) mask::apply(scores, columns);
        const float scale_log2 = args.scale * softmax::log2_e;
        const softmax::RowUpdate first = softmax::update_max<true>(scores, state, scale_log2, 0);
        softmax::exponentiate(scores, state, scale_log2, first, 0);
        const softmax::RowUpdate second = softmax::update_max<true>(scores, state, scale_log2, 1);
        softmax::rescale_rows(o, first, second);
        softmax::exponentiate(scores, state, scale_log2, second, 1);
        softmax::pack(scores, p);
    }

    // Free of branches from the first wait on, so that the assembler can mix what follows: the special-function unit takes
    // an exponential of the warp every 8 cycles, and the maximum of the other row, the rescaling and the packing fit in
    // between. A branch there, or a wait it may not cross, costs 5 to 10% of the kernel's rate.
    template <bool Masked>
    DEVICE void next_tile(const Work& work, const TileTag& tag, float (&scores)[score_registers],
                          u32 (&p)[TILE_KV / 4], float (&o)[output_registers], softmax::State& state) {
        take_turn();
        multiply_keys(scores);
        multiply_values(o, p);
        pass_turn();
        mask::Columns columns;
        if (Masked) columns = mask::visible(args, tag, row(work), lane());
        wgmma::wait<1>();
        wgmma::pin(scores);
        release(shared.barriers.k_empty[k.slot()]);
        if (Masked) mask::apply(scores, columns);
        const float scale_log2 = args.scale * softmax::log2_e;
        const softmax::RowUpdate first = softmax::update_max<Masked>(scores, state, scale_log2, 0);
        softmax::exponentiate(scores, state, scale_log2, first, 0);
        const softmax::RowUpdate second = softmax::update_max<Masked>(scores, state, scale_log2, 1);
        wgmma::wait<0>();
        wgmma::pin(o);
        wgmma::pin(p);
        release(shared.barriers.v_empty[k.before().slot()]);
        k.advance();
        softmax::rescale_rows(o, first, second);
        softmax::exponentiate(scores, state, scale_log2, second, 1);
        softmax::pack(scores, p);
    }

    DEVICE void last_values(const u32 (&p)[TILE_KV / 4], float (&o)[output_registers]) {
        multiply_values(o, p);
        wgmma::wait<0>();
        wgmma::pin(o);
        release(shared.barriers.v_empty[k.before().slot()]);
    }

    DEVICE void attend(const Work& work, float (&o)[output_registers], softmax::State& state) {
        float scores[score_registers];
        u32 p[TILE_KV / 4];
        wait_barrier(shared.barriers.q_full, q.phase());
        q.advance();
        queries.load();
        if (tile::queries_in_registers) release(shared.barriers.q_empty);
        // The results of a shuffle or a vote are known to be the same in all lanes, a value from memory is not: this
        // keeps addresses in uniform registers, with nothing between the instructions that multiply.
        k.count = __shfl_sync(0xffffffff, k.count, 0);
        int left = __shfl_sync(0xffffffff, work.tiles, 0) - 1;
        TileTag tag = wait_keys();
        if (__any_sync(0xffffffff, tag.index >= 0)) first_tile<true>(work, tag, scores, p, o, state);
        else first_tile<false>(work, tag, scores, p, o, state);
        for (; left > 0; --left) {
            tag = wait_keys();
            if (__any_sync(0xffffffff, tag.index >= 0)) next_tile<true>(work, tag, scores, p, o, state);
            else next_tile<false>(work, tag, scores, p, o, state);
        }
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
