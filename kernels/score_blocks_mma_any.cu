/* score_blocks_mma_any.cu: any rank that is a multiple of 8, and blocks of one key. Keys stream through a ring in
 * shared memory, DEPTH chunks ahead: a chunk is 32 values of the keys of a tile, four products. A lane fetches just
 * the 16-byte pieces that it will multiply. Values beyond the rank are zeros on both sides. */
#include "score_blocks_mma.cuh"

enum { N_WARPS = 8, CHUNK = 32, PIECE = 8, DEPTH = 8 };

/* ---- keys on their way: the units of up to 32 consecutive blocks, lane l knowing the id of block l ---- */

/* A chunk in shared memory: the pieces of rows lane / 4, then those of rows lane / 4 + 8. */
enum { HALF_BYTES = WARP * 16, CHUNK_BYTES = 2 * HALF_BYTES, RING_BYTES = DEPTH * CHUNK_BYTES };

template <bool MEANS> struct key_stream {
  const tide_score_blocks_args &a;
  const uint16_t *next[2];
  int id, n_chunks, tile_step, tiles_per_unit, chunks_left, tiles_left;
  unsigned ahead; /* blocks that begin the units to come */
  bool short_row; /* this lane has no piece of the last chunk */
  bool absent[2];

  __device__ key_stream(const tide_score_blocks_args &args, int block_id, unsigned units)
      : a(args), id(block_id), n_chunks((args.rank + CHUNK - 1) / CHUNK), chunks_left(n_chunks), tiles_left(0),
        ahead(units), absent{false, false} {
    int past = (n_chunks - 1) * CHUNK;
    tile_step = (MEANS ? 1 : TILE) * a.rank - past;
    tiles_per_unit = MEANS ? a.n_kv_heads : a.n_kv_heads * (a.n_entries / TILE);
    short_row = past + quarter() * PIECE >= a.rank;
  }
  __device__ void begin_unit() {
    int64_t block_values = (int64_t)a.n_kv_heads * a.n_entries * a.rank;
    int first = __ffs(ahead) - 1;
    ahead &= ahead - 1;
    tiles_left = tiles_per_unit;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int row = lane_id() / 4 + 8 * half, from = __shfl_sync(ALL_LANES, id, MEANS ? first + row : first);
      absent[half] = from < 0;
      next[half] = a.keys + max(from, 0) * block_values + (MEANS ? 0 : row * a.rank) + quarter() * PIECE;
    }
  }
  /* The next chunk, into this lane's place of a slot. */
  __device__ void fetch(uint32_t slot) {
    if (tiles_left == 0) begin_unit();
    bool last = --chunks_left == 0, zeros = last && short_row;
    copy_async(slot, next[0], zeros || (MEANS && absent[0]));
    copy_async(slot + HALF_BYTES, next[1], zeros || (MEANS && absent[1]));
    int step = last ? tile_step : (int)CHUNK;
    next[0] += step;
    next[1] += step;
    if (!last) return;
    chunks_left = n_chunks;
    tiles_left--;
  }
};

/* c[0] and c[1]: keys 0-7 and 8-15 of the tile; elements 0, 1 of column lane / 4, elements 2, 3 of column
 * lane / 4 + 8. */
__device__ inline void multiply(float (&c)[2][4], uint4 q0, uint4 q1, uint32_t slot) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint4 key = load_shared(slot + i * HALF_BYTES);
    mma(c[i], q0.x, q0.y, q0.z, q0.w, key.x, key.y);
    mma(c[i], q1.x, q1.y, q1.z, q1.w, key.z, key.w);
  }
}

/* Queries in shared memory as the products take them: [n_kv_heads, n_chunks, 2, pairs, 4 lanes]. */
__device__ inline uint32_t step_bytes(const columns &cols) {
  return cols.pairs * 128;
}

__device__ static void stage_queries(const tide_score_blocks_args &a, const columns &cols, uint4 *to) {
  int n_chunks = (a.rank + CHUNK - 1) / CHUNK, n_places = cols.pairs * 4;
  for (int i = threadIdx.x; i < a.n_kv_heads * n_chunks * n_places; i += blockDim.x) {
    int place = i % n_places, step = i / n_places, d = step % n_chunks * CHUNK + place % 4 * PIECE;
    uint4 v[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int head = cols.head((place / 4 + 8 * half) % cols.n) + step / n_chunks * cols.group;
      const uint16_t *from = a.q + ((int64_t)cols.row0 * a.n_q_heads + head) * a.rank + d;
      v[half] = d < a.rank ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
    }
    uint4 *at = to + step * 2 * n_places + place;
    at[0] = {v[0].x, v[1].x, v[0].y, v[1].y};
    at[n_places] = {v[0].z, v[1].z, v[0].w, v[1].w};
  }
}

/* ---- the kernel ---- */

/* The blocks first .. first + 31 below last. queries: this lane's of the first step. ready() is called once
 * keys flow. */
template <class Result, class Ready>
__device__ static void score_run(const tide_score_blocks_args &a, const columns &cols, uint32_t queries, uint32_t ring,
                                 Result &result, int first, int last, Ready ready) {
  constexpr int UNIT = Result::MEANS ? TILE : 1;
  int mine = first + lane_id(), id = mine < last ? valid_block(a, cols.row0, mine) : -1;
  unsigned valid = __ballot_sync(ALL_LANES, id >= 0), units = valid;
  if (Result::MEANS) units = (first < last) | (first + TILE < last) << TILE;
  key_stream<Result::MEANS> stream(a, id, units);
  int n_chunks = stream.n_chunks, n_parts = Result::MEANS ? 1 : a.n_entries / TILE;
  int n_steps = __popc(units) * stream.tiles_per_unit * n_chunks, to_fetch = n_steps;
#pragma unroll 1
  for (int slot = 0; slot < RING_BYTES; slot += CHUNK_BYTES) {
    if (to_fetch-- > 0) stream.fetch(ring + slot);
    commit_copies();
  }
  if (!Result::MEANS && mine < last && id < 0)
    for (int r = 0; r < cols.n_rows; r++) result.reject(cols.row0 + r, mine);
  ready();

  uint32_t step = step_bytes(cols), slot = 0, at = queries;
  int kv = 0, part = n_parts, chunk = n_chunks, b = __ffs(units) - 1;
  float c[2][4] = {};
#pragma unroll 1
  for (; n_steps > 0; n_steps--) {
    uint4 q0 = load_shared(at), q1 = load_shared(at + step / 2);
    wait_for_copies<DEPTH - 1>();
    multiply(c, q0, q1, ring + slot);
    if (to_fetch-- > 0) stream.fetch(ring + slot);
    commit_copies();
    slot = (slot + CHUNK_BYTES) % RING_BYTES;
    at += step;
    if (--chunk > 0) continue;
    chunk = n_chunks;
    unit u = {first + b, min(last - first - b, UNIT), valid >> b};
    result.take(c, u, kv, --part == 0);
#pragma unroll
    for (int i = 0; i < 4; i++) c[0][i] = c[1][i] = 0;
    if (part > 0) {
      at -= n_chunks * step;
      continue;
    }
    part = n_parts;
    if (++kv < a.n_kv_heads) continue;
    result.end_unit(u);
    at = queries;
    kv = 0;
    units &= units - 1;
    b = __ffs(units) - 1;
  }
}

/* Dynamic shared memory: the rings of the warps, the queries, the states of the result. */
template <class Result> __device__ inline void score(const tide_score_blocks_args &a) {
  extern __shared__ uint4 shared[];
  constexpr int UNIT = Result::MEANS ? TILE : 1;
  columns cols(a, Result::MASS && a.n_entries <= TILE);
  begin_after_predecessor(a, UNIT);
  if (cols.n_rows <= 0) return;

  uint32_t ring = shared_address(shared) + threadIdx.x / WARP * RING_BYTES + lane_id() * 16;
  uint4 *queries = shared + blockDim.x / WARP * (RING_BYTES / 16);
  uint32_t query = shared_address(queries) + (lane_id() / 4 % cols.pairs * 4 + quarter()) * 16;
  int n_steps = a.n_kv_heads * ((a.rank + CHUNK - 1) / CHUNK), live = live_for_any(a, cols);
  share mine(live, UNIT);
  Result result(a, cols, (softmax *)(queries + n_steps * (step_bytes(cols) / 16)));
  bool staged = false;
  auto stage_once = [&] {
    if (staged) return;
    stage_queries(a, cols, queries);
    __syncthreads();
    staged = true;
  };
  int first = mine.first;
  do score_run(a, cols, query, ring, result, first, min(mine.last, first + WARP), stage_once);
  while ((first += WARP) < mine.last);
  finish(a, cols, result, live);
}

#define ENTRY(NAME, RESULT)                                                                                                      \
  extern "C" __global__ void __launch_bounds__(N_WARPS *WARP, 2) NAME(const __grid_constant__ tide_score_blocks_args a) {        \
    score<RESULT>(a);                                                                                                            \
  }
ENTRY(score_blocks_tokens, tokens_max)
ENTRY(score_blocks_tokens_logits, tokens_mass)
ENTRY(score_blocks_means, means_max)
ENTRY(score_blocks_means_logits, means_mass)
