/* score_blocks_mma.cu: scores on the tensor cores, at the speed of reading the keys.
 *
 *   product     16 columns (the group's query heads of up to 16 / group rows) x 8 keys, k over the rank
 *   tile        16 keys of one kv head, in chunks of 32 values: four products a chunk
 *   unit        tokens: one block, its tiles one after the other; means (n_entries 1): 16 blocks, a tile a kv
 * head
 *
 * A warp takes a run of consecutive units. A lane fetches just the 16-byte pieces that it will multiply,
 * DEPTH chunks ahead, and nobody else reads them: no barrier is needed. Values beyond the rank are zeros on
 * both sides. Columns beyond the last repeat it, so they change no maximum. Rows of one group share their
 * block list, so a key is read once for them. Before its predecessor ends a CTA only asks for keys to be
 * brought into the L2 cache, which reads nothing.
 */
#include "mma.cuh"
#include "score_blocks.cuh"

enum { MAX_WARPS = 8, N_COLUMNS = 16, TILE = 16, CHUNK = 32, PIECE = 8, DEPTH = 8, NEAR_BYTES = 32768 };

__device__ inline int lane_id() {
  return threadIdx.x % WARP;
}
__device__ inline int quarter() {
  return threadIdx.x % 4;
}

/* Rows that share a CTA, and this lane's columns lane / 4 and lane / 4 + 8: those of one kv head repeat, and
 * where `packed` each repetition stands for the next kv head. */
struct columns {
  int64_t row0;
  int n_rows, n_q_heads, group, n, pack, pairs; /* pairs: what lane / 4 has repeats after so many */
  int row[2], at[2], kv[2];                     /* row in the group of rows; row and head in it; kv head in the pack */

  __device__ columns(const tide_score_blocks_args &a, bool packed) {
    int together = (a.n_rows + gridDim.x - 1) / gridDim.x;
    row0 = (int64_t)blockIdx.x * together;
    n_rows = (int)min((int64_t)together, a.n_rows - row0);
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
      const uint16_t *from = a.q + (cols.row0 * a.n_q_heads + head) * a.rank + d;
      v[half] = d < a.rank ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
    }
    uint4 *at = to + step * 2 * n_places + place;
    at[0] = {v[0].x, v[1].x, v[0].y, v[1].y};
    at[n_places] = {v[0].z, v[1].z, v[0].w, v[1].w};
  }
}

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
  static constexpr bool PACKED = false, MEANS = false;
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
  __device__ void end_unit(const unit &u) {
    float mine = -INF;
    for (int r = 0; r < cols.n_rows; r++) {
      float high = warp_max(fmaxf(cols.row[0] == r ? best[0] : -INF, cols.row[1] == r ? best[1] : -INF));
      if (lane_id() == r) mine = high;
    }
    int64_t row = cols.row0 + lane_id();
    if (lane_id() < cols.n_rows) a.scores[row * a.scores_stride + u.first] = u.first < live_blocks(a, row) ? mine : -INF;
    best[0] = best[1] = -INF;
  }
  __device__ void end() {}
};

struct means_max {
  static constexpr bool PACKED = false, MEANS = true;
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
  __device__ void add(int half, softmax s) {
    softmax old = states[head(half)];
    float high = fmaxf(old.high, s.high);
    states[head(half)] = {high, old.sum * share_of(old.high, high) + s.sum * share_of(s.high, high)};
  }
  __device__ void next_pack(int kv) {
    kv0 = kv + 1 == a.n_kv_heads ? 0 : kv + 1;
  }
  __device__ void end() {
    int n = cols.n_rows * a.n_q_heads;
    softmax *all = states - threadIdx.x / WARP * n;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
      float high = -INF, sum = 0;
      for (int w = 0; w < blockDim.x / WARP; w++) high = fmaxf(high, all[w * n + i].high);
      for (int w = 0; w < blockDim.x / WARP; w++) sum += all[w * n + i].sum * share_of(all[w * n + i].high, high);
      log_sums_of(a, cols.row0 + i / a.n_q_heads, blockIdx.y)[i % a.n_q_heads] = log_of({high, sum});
    }
  }
};

struct tokens_mass : mass {
  static constexpr bool PACKED = true, MEANS = false;
  softmax s[2];

  __device__ tokens_mass(const tide_score_blocks_args &args, const columns &columns, softmax *all)
      : mass(args, columns, all), s{{-INF, 0}, {-INF, 0}} {}
  __device__ void take(const float (&c)[2][4], const unit &u, int kv, bool ends_head) {
    if (!gather(c, kv)) return;
#pragma unroll
    for (int half = 0; half < 2; half++) s[half] = softmax_add(s[half], x[half]);
    if (!ends_head) return;
#pragma unroll
    for (int half = 0; half < 2; half++) s[half] = softmax_of_lanes<4>(s[half]);
    end_head(u.first, 0);
    end_head(u.first, 1);
    s[0] = s[1] = {-INF, 0};
    next_pack(kv);
  }
  __device__ void end_head(int i, int half) {
    if (quarter() != half || !has(half) || i >= live[half]) return;
    float l = log_of(s[half]);
    *logit(half, i) = l;
    add(half, {l, 1});
  }
  __device__ void end_unit(const unit &) {}
};

struct means_mass : mass {
  static constexpr bool PACKED = true, MEANS = true;

  __device__ means_mass(const tide_score_blocks_args &args, const columns &columns, softmax *all) : mass(args, columns, all) {}
  __device__ void take(const float (&c)[2][4], const unit &u, int kv, bool) {
    if (!gather(c, kv)) return;
    softmax s[2];
#pragma unroll
    for (int half = 0; half < 2; half++) s[half] = softmax_of_lanes<4>(put(u, half));
#pragma unroll
    for (int half = 0; half < 2; half++)
      if (quarter() == half && has(half)) add(half, s[half]);
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

/* ---- the kernel ---- */

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
  columns cols(a, Result::PACKED && a.n_entries <= TILE);
  let_successor_begin();
  share guess(a.n_blocks, UNIT);
  bring_near(a, guess.first, guess.last - guess.first);
  wait_for_predecessor();
  if (cols.n_rows <= 0) return;

  uint32_t ring = shared_address(shared) + threadIdx.x / WARP * RING_BYTES + lane_id() * 16;
  uint4 *queries = shared + blockDim.x / WARP * (RING_BYTES / 16);
  uint32_t query = shared_address(queries) + (lane_id() / 4 % cols.pairs * 4 + quarter()) * 16;
  int n_steps = a.n_kv_heads * ((a.rank + CHUNK - 1) / CHUNK);
  int live = 0;
  for (int r = 0; r < cols.n_rows; r++) live = max(live, live_blocks(a, cols.row0 + r));
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
  result.end();
  if (!a.mass)
    for (int i = live + blockIdx.y * blockDim.x + threadIdx.x; i < a.n_blocks; i += gridDim.y * blockDim.x)
      for (int r = 0; r < cols.n_rows; r++) result.reject(cols.row0 + r, i);
}

#define ENTRY(NAME, RESULT)                                                                                                      \
  extern "C" __global__ void __launch_bounds__(MAX_WARPS *WARP, 2) NAME(const __grid_constant__ tide_score_blocks_args a) {      \
    score<RESULT>(a);                                                                                                            \
  }
ENTRY(score_blocks_tokens, tokens_max)
ENTRY(score_blocks_tokens_logits, tokens_mass)
ENTRY(score_blocks_means, means_max)
ENTRY(score_blocks_means_logits, means_mass)
