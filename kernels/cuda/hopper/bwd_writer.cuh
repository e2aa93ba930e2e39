// The thread that adds tiles of dQ to global memory, by bulk reductions from shared memory.
#pragma once

#include "bwd_tile.cuh"

namespace bwd {

DEVICE void tensor_reduce_add_4d(const void* map, u32 source, int c0, int c1, int c2, int c3) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group "
        "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(map), "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

template <int D> struct Writer {
    using T = Tile<D>;
    const BackwardArgs& args;
    Shared<D>& shared;
    Ring<item_slots> slots;
    u32 parity = 0;

    DEVICE void run() {
        ptx::tensor_map_acquire(args.dq_map);
        for (;;) {
            Pipeline& pipe = shared.item_pipe[slots.stage()];
            ptx::mbarrier_wait(ptx::shared_address(&pipe.full), slots.parity());
            const Item& item = shared.items[slots.stage()];
            if (item.tile < 0) break;
            for (int head = 0; head < item.heads; ++head) {
                int tile = item.start;
                for (int left = item.count(); left > 0; --left, tile = item.after(tile))
                    add(item, item.head + head, tile);
            }
            ptx::mbarrier_arrive(ptx::shared_address(&pipe.empty));
            slots.advance();
        }
        ptx::bulk_wait<0>();
    }

    DEVICE void add(const Item& item, int head, int tile) {
        const i64 query_tiles = (args.q_len + T::q - 1) / T::q;
        int* turn = args.dq_turn + (i64{item.batch} * args.heads + head) * query_tiles + tile;
        ptx::mbarrier_wait(ptx::shared_address(&shared.dq_pipe.full), parity);
        parity ^= 1;
        if (args.deterministic) await_turn(turn, item.tile, tile);
        reduce(item.batch, head, tile);
        ptx::bulk_commit();
        if (args.deterministic) pass_turn(turn, item.tile);
        else ptx::bulk_wait_read<0>();
        ptx::mbarrier_arrive(ptx::shared_address(&shared.dq_pipe.empty));
    }

    // For D = 128 the consumer groups hold halves of the columns, for D = 64 halves of the queries.
    DEVICE void reduce(int batch, int head, int tile) const {
#pragma unroll
        for (int i = 0; i < consumer_groups * dq_blocks; ++i) {
            const int group = i / dq_blocks, block = i % dq_blocks;
            const int column = (D == 128 ? group * 64 : 0) + block * dq_block_columns;
            const int row = tile * T::q + (T::q == 128 ? group * 64 : 0);
            if (T::q == 128 && row >= args.q_len) continue;
            tensor_reduce_add_4d(args.dq_map, ptx::shared_address(shared.dq[group][block]), column, head, row, batch);
        }
    }

    // Waits until the key tile before this one has added to the query tile, if it does at all: dq_turn holds 1 + the
    // last key tile that has. The key tiles of a query tile are consecutive.
    DEVICE void await_turn(const int* turn, int key_tile, int tile) const {
        if (key_tile == 0) return;
        const QueryTileRange before = args.q_ranges[key_tile - 1];
        if (tile < before.first || tile >= before.last) return;
        int now;
        do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
        while (now != key_tile);
        ptx::fence_async_global();
    }

    DEVICE void pass_turn(int* turn, int key_tile) const {
        ptx::bulk_wait<0>();
        ptx::fence_async_global();
        asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(key_tile + 1) : "memory");
    }
};

}  // namespace bwd
