// Shapes of the Hopper forward, all fixed at compile time by macros:
//   HEAD_DIM           64, 128 or 256
//   TILE_Q             query rows of a CTA: 64 per consumer warpgroup, 128, 192 or 256
//   TILE_KV            keys of a tile: an N of wgmma.cuh
//   DTYPE_FP16         inputs are fp16; bf16 otherwise
// Known good: D = 64: 192 x 128; D = 128: 128 x 176 where little is masked or sequences are long (32 Ki), 128 x 128
// elsewhere; D = 256: 128 x 80.
#pragma once

#include "wgmma.cuh"

namespace tile {

constexpr int consumers = TILE_Q / 64;
constexpr int threads = 128 * (consumers + 1);
constexpr int consumer_warps = 4 * consumers;
// The register file is 65536 / threads a thread at launch; setmaxnreg moves what the producer does not need.
constexpr int producer_registers = consumers == 2 ? 40 : 32;
constexpr int consumer_registers = consumers == 2 ? 232 : consumers == 3 ? 160 : 112;

// Queries as register operands halve the shared memory that the first product reads, where there are registers left.
constexpr bool queries_in_registers = HEAD_DIM == 128 && TILE_KV <= 128;
constexpr int stages = consumers == 4 ? 4 : 2;  // key tiles, and value tiles, in flight

constexpr int row_bytes = 128;              // 64 elements: the span of the 128-byte swizzle
constexpr int column_blocks = HEAD_DIM / 64;
constexpr int q_block_bytes = TILE_Q * row_bytes;
constexpr int kv_block_bytes = TILE_KV * row_bytes;
constexpr int q_bytes = q_block_bytes * column_blocks;
constexpr int kv_bytes = kv_block_bytes * column_blocks;

static_assert(consumers >= 2 && consumers <= 4, "TILE_Q is 128, 192 or 256");
static_assert(TILE_KV % 16 == 0, "TILE_KV is a multiple of 16");

}  // namespace tile

// What the producer says of the key tile in a stage.
struct TileTag {
    int index;    // tile of the segment where scores must be masked, -1 where none
    int segment;
};

// One unit of work, from the scheduler to the producer and the consumers.
struct Work {
    int q_tile;
    int head, kv_head, batch;
    int tiles;    // key tiles over the segments; may be 0; -1: no more work
    int segment_first, segment_last;
    int load_state, store_state, finish;
};

constexpr int work_slots = 2;

struct Barriers {
    u64 q_full, q_empty;
    u64 k_full[tile::stages], k_empty[tile::stages], v_full[tile::stages], v_empty[tile::stages];
    u64 work_full[work_slots], work_empty[work_slots];
    u64 item_due;   // completes once an item: the scheduler may take the next one
};

struct Shared {
    alignas(1024) char q[tile::q_bytes];
    alignas(1024) char k[tile::stages][tile::kv_bytes];
    alignas(1024) char v[tile::stages][tile::kv_bytes];
    Barriers barriers;
    TileTag tags[tile::stages];
    Work work[work_slots];
};

// The use number `count` of a ring of `Slots` buffers with one full and one empty barrier each: which buffer, and the
// parity its full barrier completes with. One register instead of two.
template <int Slots> struct RingPosition {
    u32 count = 0;

    DEVICE u32 slot() const { return count % Slots; }
    DEVICE u32 phase() const { return count / Slots & 1; }
    DEVICE RingPosition before() const { return {count - 1}; }
    DEVICE void advance() { ++count; }
};

DEVICE void wait_barrier(u64& barrier, u32 phase) { ptx::mbarrier_wait(ptx::shared_address(&barrier), phase); }
DEVICE void arrive_barrier(u64& barrier) { ptx::mbarrier_arrive(ptx::shared_address(&barrier)); }
