/* score_blocks_mma.cuh: scores on the tensor cores: what is theirs whichever way the keys come.
 *
 *   product     16 columns (the group's query heads of up to 16 / group rows) x 8 keys, k over the rank
 *   tile        16 keys of one kv head
 *   unit        tokens: one block, its tiles one after the other; means (n_entries 1): 16 blocks, a tile a kv head
 *
 * A warp takes a run of consecutive units and fetches the keys that it will multiply well ahead of use, each lane its
 * own: no barrier is needed. Columns beyond the last repeat it, so they change no maximum. Rows of one group share
 * their block list, so a key is read once for them. Before its predecessor ends a CTA only asks for keys to be brought
 * into the L2 cache, which reads nothing; all CTAs together ask for less than the cache holds.
 */
#ifndef TIDE_SCORE_BLOCKS_MMA_CUH
#define TIDE_SCORE_BLOCKS_MMA_CUH
#include "mma.cuh"
#include "score_blocks.cuh"

enum { MAX_WARPS = 16, N_COLUMNS = 16, TILE = 16, NEAR_BYTES = 16384 };

__device__ inline int lane_id() {
  return threadIdx.x % WARP;
}
__device__ inline int quarter() {
  return threadIdx.x % 4;
}

/* Rows that share a CTA, and this lane's columns lane / 4 and lane / 4 + 8: those of one kv head repeat, and
 * where `packed` each repetition stands for the next kv head. */
struct columns {
  int row0, n_rows, n_q_heads, group, n, pack, pairs; /* pairs: what lane / 4 has repeats after so many */
  int row[2], at[2], kv[2];                           /* row in the group of rows; row and head in it; kv head in the pack */

  __device__ columns(const tide_score_blocks_args &a, bool packed) {
    int together = (a.n_rows + gridDim.x - 1) / gridDim.x;
    row0 = blockIdx.x * together;
    n_rows = min(together, a.n_rows - row0);
    n_q_heads = a.n_q_heads;
    group = n_q_heads / a.n_kv_heads;
    n = max(n_rows, 1) * group;
    pack = packed ? N_COLUMNS / n : 1;
    pairs = 8 % n ? 8 : n;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int slot = lane_id() / 4 + 8 * half;
      kv[half] = slot / n;
      row[half] = slot % n / group;
      at[half] = head(slot % n);
    }
  }
  __device__ int head(int column) const {
    return column / group * n_q_heads + column % group;
  }
  __device__ bool owns(int half) const {
    return lane_id() / 4 + 8 * half < n * pack;
  }
};

/* A lane's values of column `half`, and which of the 16 keys they belong to. */
__device__ inline float value(const float (&c)[2][4], int half, int i) {
  return c[i / 2][2 * half + i % 2];
}
__device__ inline int key_of(int i) {
  return 8 * (i / 2) + 2 * quarter() + i % 2;
}

/* Blocks first .. first + n - 1, valid where the bit is set. */
struct unit {
  int first, n;
  unsigned valid;
  __device__ bool has(int b) const { return b < n && valid >> b & 1; }
};

/* ---- what becomes of the estimates ---- */

struct tokens_max {
  static constexpr bool MASS = false, MEANS = false;
  const tide_score_blocks_args &a;
  const columns &cols;
  float best[2];

  __device__ tokens_max(const tide_score_blocks_args &args, const columns &columns, softmax *)
      : a(args), cols(columns), best{-INF, -INF} {}
  __device__ void reject(int64_t row, int i) { a.scores[row * a.scores_stride + i] = -INF; }
  __device__ void take(const float (&c)[2][4], const unit &, int, bool) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int k = 0; k < 4; k++) best[half] = fmaxf(best[half], value(c, half, k));
  }
  /* Lane r gets the largest of row r. */
  __device__ float best_of_row() const {
    if (cols.n_rows == 1) return warp_max(fmaxf(best[0], best[1]));
    float column[2] = {warp_max<4>(best[0]), warp_max<4>(best[1])}, mine = -INF;
    for (int j = 0; j < cols.group; j++) {
      int from = min(lane_id() * cols.group + j, cols.n - 1);
      float low = __shfl_sync(ALL_LANES, column[0], from % 8 * 4), high = __shfl_sync(ALL_LANES, column[1], from % 8 * 4);
      mine = fmaxf(mine, from < 8 ? low : high);
    }
    return mine;
  }
  __device__ void end_unit(const unit &u) {
    float mine = best_of_row();
    int64_t row = cols.row0 + lane_id();
    if (lane_id() < cols.n_rows) a.scores[row * a.scores_stride + u.first] = u.first < live_blocks(a, row) ? mine : -INF;
    best[0] = best[1] = -INF;
  }
  __device__ void end() {}
};

struct means_max {
  static constexpr bool MASS = false, MEANS = true;
  const tide_score_blocks_args &a;
  const columns &cols;
  float best[2][4];

  __device__ means_max(const tide_score_blocks_args &args, const columns &columns, softmax *) : a(args), cols(columns) {
    clear();
  }
  __device__ void clear() {
#pragma unroll
    for (int k = 0; k < 4; k++) best[0][k] = best[1][k] = -INF;
  }
  __device__ void reject(int64_t row, int i) {
    a.scores[row * a.scores_stride + i] = -INF;
  }
  __device__ void take(const float (&c)[2][4], const unit &, int, bool) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int k = 0; k < 4; k++) best[half][k] = fmaxf(best[half][k], value(c, half, k));
  }
  __device__ void end_unit(const unit &u) {
    for (int r = 0; r < cols.n_rows; r++) {
      int64_t row = cols.row0 + r;
      int live = live_blocks(a, row);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float high = fmaxf(cols.row[0] == r ? best[0][k] : -INF, cols.row[1] == r ? best[1][k] : -INF);
        for (int step = 4; step < WARP; step *= 2) high = fmaxf(high, __shfl_xor_sync(ALL_LANES, high, step));
        int b = key_of(k), i = u.first + b;
        if (lane_id() < 4 && b < u.n) a.scores[row * a.scores_stride + i] = u.has(b) && i < live ? high : -INF;
      }
    }
    clear();
  }
  __device__ void end() {}
};

/* What both masses need: where the logit of a head of this lane goes, and the running sums [n_warps, n_rows,
 * n_q_heads]. Lanes 0 and 1 of four end heads: one the low columns, one the high. */
struct mass {
  const tide_score_blocks_args &a;
  const columns &cols;
  softmax *states;
  int live[2], kv0; /* first kv head of the pack */
  float x[2][4];    /* token logits of the pack */

  __device__ mass(const tide_score_blocks_args &args, const columns &columns, softmax *all)
      : a(args), cols(columns), states(all + threadIdx.x / WARP * columns.n_rows * args.n_q_heads), kv0(0) {
    for (int i = lane_id(); i < cols.n_rows * a.n_q_heads; i += WARP) states[i] = {-INF, 0};
#pragma unroll
    for (int half = 0; half < 2; half++) live[half] = live_blocks(a, cols.row0 + cols.row[half]);
    __syncwarp();
  }
  __device__ void reject(int64_t row, int i) {
    *logits_of(a, row, i) = NOT_VALID;
  }
  /* Whether the pack is full. */
  __device__ bool gather(const float (&c)[2][4], int kv) {
#pragma unroll
    for (int half = 0; half < 2; half++)
      if (kv - kv0 == cols.kv[half])
#pragma unroll
        for (int k = 0; k < 4; k++) x[half][k] = a.scale * value(c, half, k);
    return kv + 1 == kv0 + cols.pack || kv + 1 == a.n_kv_heads;
  }
  __device__ bool has(int half) const {
    return cols.owns(half) && kv0 + cols.kv[half] < a.n_kv_heads;
  }
  __device__ int head(int half) const {
    return cols.at[half] + (kv0 + cols.kv[half]) * cols.group;
  }
  __device__ float *logit(int half, int i) const {
    return logits_of(a, cols.row0 + cols.row[half], i) + head(half) - cols.row[half] * a.n_q_heads;
  }
  __device__ void add(int h, softmax s) {
    softmax old = states[h];
    float high = fmaxf(old.high, s.high);
    states[h] = {high, old.sum * share_of(old.high, high) + s.sum * share_of(s.high, high)};
  }
  __device__ void next_pack(int kv) {
    kv0 = kv + 1 == a.n_kv_heads ? 0 : kv + 1;
  }
  /* A lane a warp's sum. */
  __device__ void end() {
    int n = cols.n_rows * a.n_q_heads, warp = threadIdx.x % MAX_WARPS;
    softmax *all = states - threadIdx.x / WARP * n;
    __syncthreads();
    for (int i = threadIdx.x / MAX_WARPS; i - i % 2 < n; i += blockDim.x / MAX_WARPS) {
      softmax s = {-INF, 0};
      if (i < n && warp < blockDim.x / WARP) s = all[warp * n + i];
      s = softmax_of_lanes<MAX_WARPS>(s);
      if (warp == 0 && i < n) log_sums_of(a, cols.row0 + i / a.n_q_heads, blockIdx.y)[i % a.n_q_heads] = log_of(s);
    }
  }
};

struct tokens_mass : mass {
  static constexpr bool MASS = true, MEANS = false;
  softmax s[2];
  int row, n_live, kv, head0; /* of the column that this lane ends: row, its length, kv head in the pack, head of the first */

  __device__ tokens_mass(const tide_score_blocks_args &args, const columns &columns, softmax *all)
      : mass(args, columns, all), s{{-INF, 0}, {-INF, 0}} {
    bool high = quarter() == 1, ends = quarter() < 2 && (high ? cols.owns(1) : cols.owns(0));
    row = high ? cols.row[1] : cols.row[0];
    n_live = ends ? live_blocks(a, cols.row0 + row) : 0;
    kv = high ? cols.kv[1] : cols.kv[0];
    head0 = (high ? cols.at[1] : cols.at[0]) - row * a.n_q_heads;
  }
  __device__ void take(const float (&c)[2][4], const unit &u, int kv_of_tile, bool ends_head) {
    if (!gather(c, kv_of_tile)) return;
#pragma unroll
    for (int half = 0; half < 2; half++) s[half] = softmax_add(s[half], x[half]);
    if (!ends_head) return;
#pragma unroll
    for (int half = 0; half < 2; half++) s[half] = softmax_of_lanes<4>(s[half]);
    end_head(u.first, quarter() == 1 ? s[1] : s[0]);
    s[0] = s[1] = {-INF, 0};
    next_pack(kv_of_tile);
  }
  __device__ void end_head(int i, softmax of_block) {
    if (i >= n_live || kv0 + kv >= a.n_kv_heads) return;
    float l = log_of(of_block);
    int h = head0 + (kv0 + kv) * cols.group;
    logits_of(a, cols.row0 + row, i)[h] = l;
    add(row * a.n_q_heads + h, {l, 1});
  }
  __device__ void end_unit(const unit &) {}
};

struct means_mass : mass {
  static constexpr bool MASS = true, MEANS = true;

  __device__ means_mass(const tide_score_blocks_args &args, const columns &columns, softmax *all) : mass(args, columns, all) {}
  __device__ void take(const float (&c)[2][4], const unit &u, int kv, bool) {
    if (!gather(c, kv)) return;
    softmax s[2];
#pragma unroll
    for (int half = 0; half < 2; half++) s[half] = softmax_of_lanes<4>(put(u, half));
#pragma unroll
    for (int half = 0; half < 2; half++)
      if (quarter() == half && has(half)) add(head(half), s[half]);
    next_pack(kv);
  }
  __device__ softmax put(const unit &u, int half) {
    float counted[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int i = u.first + key_of(k);
      bool live_one = u.has(key_of(k)) && i < live[half];
      counted[k] = live_one ? held_logit(x[half][k]) : -INF;
      if (live_one && has(half)) *logit(half, i) = counted[k];
    }
    return softmax_add({-INF, 0}, counted);
  }
  __device__ void end_unit(const unit &u) {
    if (lane_id() >= u.n || u.has(lane_id())) return;
    for (int r = 0; r < cols.n_rows; r++) reject(cols.row0 + r, u.first + lane_id());
  }
};

/* Asks for a run of blocks to be in the L2 cache; nothing is read, so nothing stale can be. */
__device__ static void bring_near(const tide_score_blocks_args &a, int64_t first, int n) {
#if __CUDA_ARCH__ >= 900
  int64_t id = a.first_block + first, block_bytes = (int64_t)a.n_kv_heads * a.n_entries * a.rank * 2;
  if (a.blocks || a.lengths || n <= 0 || id < 0 || id + n > a.n_pool || lane_id()) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"((const char *)a.keys + id * block_bytes),
               "r"((uint32_t)min(n * block_bytes, (int64_t)NEAR_BYTES))
               : "memory");
#endif
}

/* The run of this warp among n units, as blocks. The longer runs are shared out over the CTAs. */
struct share {
  int first, last;
  __device__ share(int n_blocks, int unit_blocks) {
    unsigned n = (n_blocks + unit_blocks - 1) / unit_blocks, n_warps = blockDim.x / WARP * gridDim.y;
    unsigned w = threadIdx.x / WARP * gridDim.y + blockIdx.y, each = n / n_warps, longer = n % n_warps;
    first = (int)(w * each + min(w, longer)) * unit_blocks;
    last = min(first + (int)(each + (w < longer)) * unit_blocks, n_blocks);
  }
};

/* A launch that follows may begin no earlier than this one's keys flow: what it asks for would drive them from the
 * cache. */
__device__ inline void begin_after_predecessor(const tide_score_blocks_args &a, int unit_blocks) {
  share guess(a.n_blocks, unit_blocks);
  bring_near(a, guess.first, guess.last - guess.first);
  wait_for_predecessor();
  let_successor_begin();
}

/* Number of blocks that may be valid for one of the rows. */
__device__ inline int live_for_any(const tide_score_blocks_args &a, const columns &cols) {
  int live = 0;
  for (int r = 0; r < cols.n_rows; r++) live = max(live, live_blocks(a, cols.row0 + r));
  return live;
}

/* After the runs of all warps. */
template <class Result>
__device__ inline void finish(const tide_score_blocks_args &a, const columns &cols, Result &result, int live) {
  result.end();
  int first_unseen = Result::MASS ? a.n_blocks : live;
  for (int i = first_unseen + blockIdx.y * blockDim.x + threadIdx.x; i < a.n_blocks; i += gridDim.y * blockDim.x)
    for (int r = 0; r < cols.n_rows; r++) result.reject(cols.row0 + r, i);
}

#endif
