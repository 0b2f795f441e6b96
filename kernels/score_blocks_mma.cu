/* score_blocks_mma.cu: scores on the tensor cores, at the speed of reading the keys.
 *
 *   product     16 columns (the group's query heads of up to 16 / group rows) x 8 tokens, k over the rank
 *   tile        16 tokens of one kv head: two products for each 16 of the rank
 *
 * A warp takes a run of consecutive blocks and streams their tiles through registers, 8 KB ahead of use. Columns beyond
 * the last repeat it, so they change no maximum. Rows of one group share their block list, so a key is read once for them.
 * Before its predecessor ends a CTA only asks for keys to be brought into the L2 cache, which reads nothing.
 */
#include "mma.cuh"
#include "score_blocks.cuh"

enum { N_WARPS = 8, N_COLUMNS = 16, TILE = 16, STREAM_BYTES = 8192 };

template <int RANK> struct tile { row_share<RANK> low, high; };      /* tokens lane / 4 and lane / 4 + 8 */

/* Rows that share a CTA, and this lane's columns lane / 4 and lane / 4 + 8 among them. */
struct columns {
  int64_t row0;
  int n_rows, group, n;
  int row[2], at[2];               /* row within the group of rows; offset into q [n_rows, n_q_heads], less the kv head's */

  __device__ columns(const tide_score_blocks_args &a) {
    int together = (a.n_rows + gridDim.x - 1) / gridDim.x;
    row0 = (int64_t)blockIdx.x * together;
    n_rows = (int)min((int64_t)together, a.n_rows - row0);
    group = a.n_q_heads / a.n_kv_heads;
    n = n_rows * group;
    for (int half = 0; half < 2; half++) {
      int column = min(threadIdx.x % WARP / 4 + 8 * half, n - 1);
      row[half] = column / group;
      at[half] = row[half] * a.n_q_heads + column % group;
    }
  }
  __device__ bool owns(int half) const { return threadIdx.x % WARP / 4 + 8 * half < n; }
};

/* The valid ones of up to 32 consecutive blocks, tile by tile, in order. Lane l knows block first + l. */
template <int RANK> struct tile_stream {
  const uint16_t *keys, *next;
  int64_t block_values;
  unsigned ahead;                  /* blocks whose tiles have not begun */
  int id, tiles_per_block, tiles_left;

  __device__ tile_stream(const tide_score_blocks_args &a, int block_id)
      : block_values((int64_t)a.n_kv_heads * a.n_entries * RANK), ahead(__ballot_sync(ALL_LANES, block_id >= 0)), id(block_id),
        tiles_per_block(a.n_kv_heads * (a.n_entries / TILE)), tiles_left(0) {
    keys = a.keys + threadIdx.x % WARP / 4 * RANK;
  }
  __device__ void fetch(tile<RANK> &t) {
    if (tiles_left == 0) {
      next = keys + __shfl_sync(ALL_LANES, id, __ffs(ahead) - 1) * block_values;
      ahead &= ahead - 1;
      tiles_left = tiles_per_block;
    }
    t.low.take(next, threadIdx.x % 4, load_streaming());
    t.high.take(next + 8 * RANK, threadIdx.x % 4, load_streaming());
    next += TILE * RANK;
    tiles_left--;
  }
};

/* c[0] and c[1]: tokens 0-7 and 8-15 of the tile; elements 0, 1 of column lane / 4, elements 2, 3 of column lane / 4 + 8. */
template <int RANK>
__device__ inline void multiply(const uint16_t *q_low, const uint16_t *q_high, const tile<RANK> &t, float (&c)[2][4]) {
  row_share<RANK> low, high;
  low.take(q_low, threadIdx.x % 4, load_plain());
  high.take(q_high, threadIdx.x % 4, load_plain());
  for (int i = 0; i < 4; i++) c[0][i] = c[1][i] = 0;
#pragma unroll
  for (int s = 0; s < RANK / 16; s++) {
    mma(c[0], low.words[2 * s], high.words[2 * s], low.words[2 * s + 1], high.words[2 * s + 1], t.low.words[2 * s], t.low.words[2 * s + 1]);
    mma(c[1], low.words[2 * s], high.words[2 * s], low.words[2 * s + 1], high.words[2 * s + 1], t.high.words[2 * s], t.high.words[2 * s + 1]);
  }
}

/* ---- what becomes of the estimates ---- */

/* The largest of a block, for each row. */
struct max_of_block {
  const tide_score_blocks_args &a;
  const columns &cols;
  float best[2];

  __device__ max_of_block(const tide_score_blocks_args &args, const columns &columns, softmax *)
      : a(args), cols(columns), best{-INF, -INF} {}
  __device__ void reject(int64_t row, int i) { a.scores[row * a.scores_stride + i] = -INF; }
  __device__ void take(const float (&c)[2][4]) {
    for (int half = 0; half < 2; half++)
      for (int i = 0; i < 2; i++) best[half] = fmaxf(best[half], fmaxf(c[0][2 * half + i], c[1][2 * half + i]));
  }
  __device__ void end_head(int, int) {}
  __device__ void end_block(int i) {
    int lane = threadIdx.x % WARP;
    float mine = -INF;
    if (cols.n_rows == 1) mine = warp_max(fmaxf(best[0], best[1]));
    else {
      float column[2] = {warp_max<4>(best[0]), warp_max<4>(best[1])};
      for (int j = 0; j < cols.group; j++) {
        int from = min(lane * cols.group + j, cols.n - 1);
        float low = __shfl_sync(ALL_LANES, column[0], from % 8 * 4), high = __shfl_sync(ALL_LANES, column[1], from % 8 * 4);
        mine = fmaxf(mine, from < 8 ? low : high);
      }
    }
    if (lane < cols.n_rows) {
      int64_t row = cols.row0 + lane;
      a.scores[row * a.scores_stride + i] = i < live_blocks(a, row) ? mine : -INF;
    }
    best[0] = best[1] = -INF;
  }
  __device__ void end() {}
};

/* The logit of a block for each row and head, and their running sums: states [n_warps, n_rows, n_q_heads]. */
struct logits_of_block {
  const tide_score_blocks_args &a;
  const columns &cols;
  softmax *states, s[2];
  int live[2];

  __device__ logits_of_block(const tide_score_blocks_args &args, const columns &columns, softmax *all)
      : a(args), cols(columns), states(all + threadIdx.x / WARP * columns.n_rows * args.n_q_heads), s{{-INF, 0}, {-INF, 0}} {
    for (int i = threadIdx.x % WARP; i < cols.n_rows * a.n_q_heads; i += WARP) states[i] = {-INF, 0};
    for (int half = 0; half < 2; half++) live[half] = live_blocks(a, cols.row0 + cols.row[half]);
    __syncwarp();
  }
  __device__ void reject(int64_t row, int i) { *logits_of(a, row, i) = NOT_VALID; }
  __device__ void take_half(const float (&c)[2][4], int half) {
    float x[4], high = s[half].high, sum = 0;
    for (int i = 0; i < 4; i++) x[i] = token_logit(a.scale * c[i / 2][2 * half + i % 2]);
    for (int i = 0; i < 4; i++) high = fmaxf(high, x[i]);
    for (int i = 0; i < 4; i++) sum += exp_below(x[i], high);
    s[half] = {high, s[half].sum * exp_below(s[half].high, high) + sum};
  }
  __device__ void take(const float (&c)[2][4]) {
    take_half(c, 0);
    if (cols.n > 8) take_half(c, 1);
  }
  __device__ void end_half(int i, int kv, int half) {
    for (int step = 1; step < 4; step *= 2)
      s[half] = softmax_merge(s[half], {__shfl_xor_sync(ALL_LANES, s[half].high, step), __shfl_xor_sync(ALL_LANES, s[half].sum, step)});
    int64_t row = cols.row0 + cols.row[half];
    int at = cols.at[half] + kv * cols.group;
    if (threadIdx.x % 4 == 0 && cols.owns(half) && i < live[half]) {
      float l = logit_of(s[half]);
      logits_of(a, row, i)[at - cols.row[half] * a.n_q_heads] = l;
      states[at] = softmax_merge(states[at], {l, l == -INF ? 0.0f : 1.0f});
    }
    s[half] = {-INF, 0};
  }
  __device__ void end_head(int i, int kv) {
    end_half(i, kv, 0);
    if (cols.n > 8) end_half(i, kv, 1);
  }
  __device__ void end_block(int) {}
  __device__ void end() {
    int n = cols.n_rows * a.n_q_heads;
    softmax *all = states - threadIdx.x / WARP * n;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
      softmax total = all[i];
      for (int w = 1; w < blockDim.x / WARP; w++) total = softmax_merge(total, all[w * n + i]);
      partials_of(a, cols.row0 + i / a.n_q_heads, blockIdx.y)[i % a.n_q_heads] = total;
    }
  }
};

/* ---- the kernel ---- */

/* Asks for a run of blocks to be in the L2 cache; nothing is read, so nothing stale can be. */
__device__ static void bring_near(const tide_score_blocks_args &a, int64_t first, int n) {
#if __CUDA_ARCH__ >= 900
  int64_t id = a.first_block + first, block_bytes = (int64_t)a.n_kv_heads * a.n_entries * a.rank * 2;
  if (a.blocks || a.lengths || n <= 0 || id < 0 || id + n > a.n_pool || threadIdx.x % WARP) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
               :: "l"((const char *)a.keys + id * block_bytes), "r"((uint32_t)min(n * block_bytes, (int64_t)2 * STREAM_BYTES)) : "memory");
#endif
}

__device__ inline void copy_async(void *shared, const void *global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :: "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}

/* The run of blocks of this warp among n. The longer runs are shared out over the CTAs. */
struct share {
  int first, last;
  __device__ share(unsigned n) {
    unsigned w = threadIdx.x / WARP * gridDim.y + blockIdx.y, n_warps = blockDim.x / WARP * gridDim.y;
    unsigned each = n / n_warps, longer = n % n_warps;
    first = (int)(w * each + min(w, longer)), last = first + (int)(each + (w < longer));
  }
};

/* The blocks first .. first + 31 below last. ready() is called once the stream flows. */
template <int RANK, class Result, class Ready>
__device__ static void score_run(const tide_score_blocks_args &a, const columns &cols, const uint16_t *q, Result &result,
                                 int first, int last, Ready ready) {
  constexpr int DEPTH = STREAM_BYTES / (TILE * RANK * 2);
  int lane = threadIdx.x % WARP, mine = first + lane;
  int id = mine < last ? valid_block(a, cols.row0, mine) : -1;
  tile_stream<RANK> stream(a, id);
  unsigned left = stream.ahead;
  int n_tiles = __popc(left) * stream.tiles_per_block, tiles_per_head = a.n_entries / TILE;
  tile<RANK> tiles[DEPTH];
#pragma unroll
  for (int s = 0; s < DEPTH; s++)
    if (s < n_tiles) stream.fetch(tiles[s]);
  if (mine < last && id < 0)
    for (int r = 0; r < cols.n_rows; r++) result.reject(cols.row0 + r, mine);
  ready();

  int kv = 0, part = 0;
  const uint16_t *q_low = q + cols.at[0] * RANK, *q_high = q + cols.at[1] * RANK;
  for (int n = 0; n < n_tiles; n += DEPTH) {
#pragma unroll
    for (int s = 0; s < DEPTH; s++) {
      if (n + s >= n_tiles) break;
      float c[2][4];
      multiply<RANK>(q_low + kv * cols.group * RANK, q_high + kv * cols.group * RANK, tiles[s], c);
      if (n + s + DEPTH < n_tiles) stream.fetch(tiles[s]);
      result.take(c);
      if (++part < tiles_per_head) continue;
      int i = first + __ffs(left) - 1;
      result.end_head(i, kv);
      part = 0;
      if (++kv < a.n_kv_heads) continue;
      result.end_block(i);
      kv = 0;
      left &= left - 1;
    }
  }
}

/* Dynamic shared memory: q [n_rows, n_q_heads, RANK] bf16, then the states of the result. */
template <int RANK, class Result> __device__ inline void score(const tide_score_blocks_args &a) {
  extern __shared__ uint4 shared[];
  columns cols(a);
  if (cols.n_rows <= 0) return;
  share guess(a.n_blocks);
  bring_near(a, guess.first, guess.last - guess.first);
  wait_for_predecessor();
  let_successor_begin();

  int n_words = cols.n_rows * a.n_q_heads * RANK / 8;
  for (int i = threadIdx.x; i < n_words; i += blockDim.x)
    copy_async(shared + i, (const uint4 *)(a.q + cols.row0 * a.n_q_heads * RANK) + i);
  int live = 0;
  for (int r = 0; r < cols.n_rows; r++) live = max(live, live_blocks(a, cols.row0 + r));
  share mine(live);
  Result result(a, cols, (softmax *)(shared + n_words));
  auto q_ready = [] {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
  };
  const uint16_t *q = (const uint16_t *)shared;
  score_run<RANK>(a, cols, q, result, mine.first, min(mine.last, mine.first + WARP), q_ready);
  for (int first = mine.first + WARP; first < mine.last; first += WARP)
    score_run<RANK>(a, cols, q, result, first, min(mine.last, first + WARP), [] {});
  result.end();
  if (!a.mass)
    for (int i = live + blockIdx.y * blockDim.x + threadIdx.x; i < a.n_blocks; i += gridDim.y * blockDim.x)
      for (int r = 0; r < cols.n_rows; r++) result.reject(cols.row0 + r, i);
}

#define ENTRIES(RANK) \
  extern "C" __global__ void __launch_bounds__(N_WARPS *WARP, 2) \
      score_blocks_mma_##RANK(const __grid_constant__ tide_score_blocks_args a) { score<RANK, max_of_block>(a); } \
  extern "C" __global__ void __launch_bounds__(N_WARPS *WARP, 2) \
      score_blocks_mma_logits_##RANK(const __grid_constant__ tide_score_blocks_args a) { score<RANK, logits_of_block>(a); }
ENTRIES(16)
ENTRIES(32)
ENTRIES(48)
ENTRIES(64)
ENTRIES(80)
ENTRIES(96)
ENTRIES(112)
ENTRIES(128)
