/* score_blocks_mma.cu: token keys of rank 16, 32, 64 or 128. Tiles stream through registers, a few KB ahead of
 * use; a lane holds its share of two keys of each. */
#include "score_blocks_mma.cuh"

/* A mass has its registers to share with exponentials. */
enum { STREAM_BYTES = 8192, MASS_STREAM_BYTES = 6144 };

/* Keys lane / 4 and lane / 4 + 8. */
template <int RANK> struct tile { row_share<RANK> low, high; };

/* Distance of two queries in shared memory: eight lanes that read two of them meet every bank once. */
template <int RANK> __host__ __device__ constexpr int query_values() {
  return RANK % 64 ? RANK : RANK + 32;
}

/* The valid ones of up to 32 consecutive blocks, tile by tile, in order. Lane l knows the id of block l. */
template <int RANK> struct tile_stream {
  const tide_score_blocks_args &a;
  const uint16_t *next;
  unsigned ahead; /* blocks whose tiles have not begun */
  int id, tiles_left;

  __device__ tile_stream(const tide_score_blocks_args &args, int block_id, unsigned valid)
      : a(args), ahead(valid), id(block_id), tiles_left(0) {}
  __device__ int tiles_per_block() const { return a.n_kv_heads * (a.n_entries / TILE); }
  __device__ void fetch(tile<RANK> &t) {
    if (tiles_left == 0) {
      int64_t first_tile = (int64_t)__shfl_sync(ALL_LANES, id, __ffs(ahead) - 1) * tiles_per_block();
      next = a.keys + (first_tile * TILE + lane_id() / 4) * RANK;
      ahead &= ahead - 1;
      tiles_left = tiles_per_block();
    }
    t.low.take(next, quarter(), load_streaming());
    t.high.take(next + 8 * RANK, quarter(), load_streaming());
    next += TILE * RANK;
    tiles_left--;
  }
};

/* c[0] and c[1]: keys 0-7 and 8-15 of the tile; elements 0, 1 of column lane / 4, elements 2, 3 of column
 * lane / 4 + 8. */
template <int RANK>
__device__ inline void multiply(const uint16_t *q_low, const uint16_t *q_high, const tile<RANK> &t, float (&c)[2][4]) {
  row_share<RANK> low, high;
  low.take(q_low, quarter(), load_plain());
  high.take(q_high, quarter(), load_plain());
#pragma unroll
  for (int i = 0; i < 4; i++) c[0][i] = c[1][i] = 0;
#pragma unroll
  for (int s = 0; s < RANK / 16; s++) {
    uint32_t a0 = low.words[2 * s], a1 = high.words[2 * s], a2 = low.words[2 * s + 1], a3 = high.words[2 * s + 1];
    mma(c[0], a0, a1, a2, a3, t.low.words[2 * s], t.low.words[2 * s + 1]);
    mma(c[1], a0, a1, a2, a3, t.high.words[2 * s], t.high.words[2 * s + 1]);
  }
}

/* The blocks first .. first + 31 below last. ready() is called once the stream flows. */
template <int RANK, class Result, class Ready>
__device__ static void score_run(const tide_score_blocks_args &a, const columns &cols, const uint16_t *q, Result &result,
                                 int first, int last, Ready ready) {
  constexpr int DEPTH = (Result::MASS ? MASS_STREAM_BYTES : STREAM_BYTES) / (TILE * RANK * 2), Q = query_values<RANK>();
  int mine = first + lane_id(), id = mine < last ? valid_block(a, cols.row0, mine) : -1;
  unsigned valid = __ballot_sync(ALL_LANES, id >= 0), left = valid;
  tile_stream<RANK> stream(a, id, valid);
  int n_left = __popc(valid) * stream.tiles_per_block(), tiles_per_head = a.n_entries / TILE;
  tile<RANK> tiles[DEPTH];
#pragma unroll
  for (int s = 0; s < DEPTH; s++)
    if (s < n_left) stream.fetch(tiles[s]);
  if (mine < last && id < 0)
    for (int r = 0; r < cols.n_rows; r++) result.reject(cols.row0 + r, mine);
  ready();

  int kv = 0, part = 0;
  const uint16_t *q_low = q + cols.at[0] * Q, *q_high = q + cols.at[1] * Q;
  for (; n_left > 0; n_left -= DEPTH) {
#pragma unroll
    for (int s = 0; s < DEPTH; s++) {
      if (s >= n_left) break;
      float c[2][4];
      multiply<RANK>(q_low + kv * cols.group * Q, q_high + kv * cols.group * Q, tiles[s], c);
      if (s + DEPTH < n_left) stream.fetch(tiles[s]);
      int b = __ffs(left) - 1;
      unit u = {first + b, 1, valid >> b};
      result.take(c, u, kv, part + 1 == tiles_per_head);
      if (++part < tiles_per_head) continue;
      part = 0;
      if (++kv < a.n_kv_heads) continue;
      result.end_unit(u);
      kv = 0;
      left &= left - 1;
    }
  }
}

template <int RANK> __device__ inline void copy_queries(const tide_score_blocks_args &a, const columns &cols, uint4 *to) {
  constexpr int PIECES = RANK / 8, STEP = query_values<RANK>() / 8;
  const uint4 *from = (const uint4 *)(a.q + (int64_t)cols.row0 * a.n_q_heads * RANK);
  for (int i = threadIdx.x; i < cols.n_rows * a.n_q_heads * PIECES; i += blockDim.x)
    copy_async(shared_address(to + i / PIECES * STEP + i % PIECES), from + i);
  commit_copies();
}

/* Dynamic shared memory: the queries [n_rows, n_q_heads], then the states of the result. */
template <int RANK, class Result> __device__ inline void score(const tide_score_blocks_args &a) {
  extern __shared__ uint4 shared[];
  columns cols(a, Result::MASS && a.n_entries == TILE);
  begin_after_predecessor(a, 1);
  if (cols.n_rows <= 0) return;

  copy_queries<RANK>(a, cols, shared);
  int live = live_for_any(a, cols);
  share mine(live, 1);
  Result result(a, cols, (softmax *)(shared + cols.n_rows * a.n_q_heads * (query_values<RANK>() / 8)));
  auto queries_ready = [] {
    wait_for_copies<0>();
    __syncthreads();
  };
  const uint16_t *q = (const uint16_t *)shared;
  score_run<RANK>(a, cols, q, result, mine.first, min(mine.last, mine.first + WARP), queries_ready);
  for (int first = mine.first + WARP; first < mine.last; first += WARP)
    score_run<RANK>(a, cols, q, result, first, min(mine.last, first + WARP), [] {});
  finish(a, cols, result, live);
}

#define ENTRIES(RANK)                                                                                                            \
  extern "C" __global__ void __launch_bounds__(8 * WARP, 2)                                                                      \
      score_blocks_mma_##RANK(const __grid_constant__ tide_score_blocks_args a) {                                                \
    score<RANK, tokens_max>(a);                                                                                                  \
  }                                                                                                                              \
  extern "C" __global__ void __launch_bounds__(16 * WARP, 1)                                                                     \
      score_blocks_mma_logits_##RANK(const __grid_constant__ tide_score_blocks_args a) {                                         \
    score<RANK, tokens_mass>(a);                                                                                                 \
  }
ENTRIES(16)
ENTRIES(32)
ENTRIES(64)
ENTRIES(128)
