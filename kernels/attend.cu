/* attend.cu: a block of threads serves a row and up to HEADS query heads of one kv head, so keys and values are read once for
 * them; a cluster of blocks shares the tokens of a row where there are few rows.
 *
 * LANES lanes hold a token, EACH dimensions a lane. Such a group walks runs of RUN tokens with a softmax of its own; groups
 * are merged within the warp, warps and then blocks through shared memory, always in the same order.
 */
#include "attend.h"
#include "device.cuh"

enum { RUN = 4, EACH = 8, MAX_WARPS = 8 };

/* ---- the part of a token that a lane holds: DIM a multiple of 64, aligned; or 0: any head_dim ---- */

template <class T, int DIM> struct slice {
  static constexpr int LANES = DIM / EACH, WIDTH = DIM;
  pack<T, EACH> data;
  __device__ static int dim(int lane, int i) { return lane % LANES * EACH + i; }
  __device__ void load(const T *token, int lane, int) { data.load(token + dim(lane, 0)); }
  __device__ void unpack(float (&x)[EACH]) const { data.unpack(x); }
};

template <class T> struct slice<T, 0> {
  static constexpr int LANES = WARP, WIDTH = WARP * EACH;
  T data[EACH];
  __device__ static int dim(int lane, int i) { return lane + i * WARP; }
  __device__ void load(const T *token, int lane, int head_dim) {
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (dim(lane, i) < head_dim) data[i] = token[dim(lane, i)];
  }
  __device__ void unpack(float (&x)[EACH]) const {
#pragma unroll
    for (int i = 0; i < EACH; i++) x[i] = to_f32(data[i]);
  }
};

/* ---- which tokens ---- */

/* Neighbouring tokens of one block; n 0: none of them is read. */
struct run {
  int64_t pool;
  int first, n;
};

__device__ inline int64_t tokens_seen(const tide_attend_args &a, int64_t row) {
  int64_t position = a.positions ? a.positions[row] : a.first_position + row;
  return position + 1 < a.n_tokens ? position + 1 : a.n_tokens;
}

/* Sequence block j from its token first on. */
__device__ inline run find_run(const tide_attend_args &a, int64_t row, int64_t n_seen, int64_t j, int first, int most) {
  run r = {0, first, 0};
  if (j < 0 || j >= a.n_blocks) return r;
  int64_t visible = n_seen - j * a.block_size;
  int64_t n = (visible < a.block_size ? visible : a.block_size) - first;
  if (n <= 0) return r;
  r.pool = a.table ? a.table[row * a.table_stride + j] : j;
  if (r.pool >= 0 && r.pool < a.n_pool) r.n = n < most ? (int)n : most;
  return r;
}

/* ---- queries ---- */

template <class S, int HEADS> struct queries {
  float q[HEADS][EACH];

  __device__ void load(const tide_attend_args &a, int64_t row, int first_head, int n_heads, int lane) {
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        int d = S::dim(lane, i);
        bool there = h < n_heads && d < a.head_dim;
        q[h][i] = there ? load_f32(a.q, a.q_dtype, row * a.q_row_stride + (first_head + h) * a.q_head_stride + d) : 0;
      }
  }

  /* The logits of a token; every lane of its group gets them. */
  __device__ void logits(const S &key, float scale, float (&s)[HEADS]) const {
    float x[EACH];
    key.unpack(x);
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < EACH; i++) sum = fmaf(q[h][i], x[i], sum);
      s[h] = scale * warp_sum<S::LANES>(sum);
    }
  }
};

/* ---- the state of a walk ---- */

template <int HEADS> struct state {
  softmax total[HEADS];
  float out[HEADS][EACH];
};

template <int HEADS> __device__ inline void clear(state<HEADS> &st) {
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    st.total[h] = {-INF, 0};
#pragma unroll
    for (int i = 0; i < EACH; i++) st.out[h][i] = 0;
  }
}

/* Adds RUN tokens with logits s (-infinity: not read). */
template <class S, int HEADS> __device__ inline void add_run(state<HEADS> &st, const float (&s)[RUN][HEADS], const S (&values)[RUN]) {
  float w[RUN][HEADS];
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    float high = st.total[h].high;
#pragma unroll
    for (int t = 0; t < RUN; t++) high = fmaxf(high, s[t][h]);
    float keep = exp_below(st.total[h].high, high), sum = st.total[h].sum * keep;
#pragma unroll
    for (int t = 0; t < RUN; t++) sum += w[t][h] = exp_below(s[t][h], high);
    st.total[h] = {high, sum};
#pragma unroll
    for (int i = 0; i < EACH; i++) st.out[h][i] *= keep;
  }
#pragma unroll
  for (int t = 0; t < RUN; t++) {
    float x[EACH];
    values[t].unpack(x);
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
      for (int i = 0; i < EACH; i++) st.out[h][i] = fmaf(w[t][h], x[i], st.out[h][i]);
  }
}

/* Joins the groups of a warp; every group ends with the same state. */
template <class S, int HEADS> __device__ inline void merge_groups(state<HEADS> &st) {
#pragma unroll
  for (int step = S::LANES; step < WARP; step *= 2)
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      softmax mine = st.total[h];
      softmax other = {__shfl_xor_sync(ALL_LANES, mine.high, step), __shfl_xor_sync(ALL_LANES, mine.sum, step)};
      st.total[h] = softmax_merge(mine, other);
      float keep = exp_below(mine.high, st.total[h].high), take = exp_below(other.high, st.total[h].high);
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        float theirs = __shfl_xor_sync(ALL_LANES, st.out[h][i], step);
        st.out[h][i] = st.out[h][i] * keep + theirs * take;
      }
    }
}

/* ---- the tokens of a block of threads ---- */

/* A group's place: entry of the list, and run of that block. Advances without a division. */
struct place {
  uint32_t entry;
  int part;
  __device__ void advance(uint32_t entries, int parts, int n_parts) {
    entry += entries;
    part += parts;
    if (part >= n_parts) part -= n_parts, entry++;
  }
};

template <class T, class S, int HEADS>
__device__ inline void walk(const tide_attend_args &a, int64_t row, int kv, const queries<S, HEADS> &q, int first, int step,
                            state<HEADS> &st) {
  int lane = threadIdx.x % WARP, n_parts = (a.block_size - 1) / RUN + 1;
  int64_t n_seen = tokens_seen(a, row);
  int64_t n_blocks = (max(n_seen, (int64_t)0) + a.block_size - 1) / a.block_size;
  uint32_t n = a.list ? a.n_list : (uint32_t)min((int64_t)a.n_blocks, n_blocks), step_entries = step / n_parts;
  int mine = first + lane / S::LANES, step_parts = step % n_parts;
  place at = {(uint32_t)(mine / n_parts), mine % n_parts};
  const T *k = (const T *)a.k + kv * a.k_head_stride, *v = (const T *)a.v + kv * a.v_head_stride;
  while (__any_sync(ALL_LANES, at.entry < n)) {
    run r = {0, 0, 0};
    if (at.entry < n)
      r = find_run(a, row, n_seen, a.list ? a.list[row * a.list_stride + at.entry] : at.entry, at.part * RUN, RUN);
    at.advance(step_entries, step_parts, n_parts);
    if (!__any_sync(ALL_LANES, r.n > 0)) continue;
    S keys[RUN] = {}, values[RUN] = {};
    float s[RUN][HEADS];
#pragma unroll
    for (int t = 0; t < RUN; t++)
      if (t < r.n) keys[t].load(k + r.pool * a.k_block_stride + (r.first + t) * a.k_token_stride, lane, a.head_dim);
#pragma unroll
    for (int t = 0; t < RUN; t++)
      if (t < r.n) values[t].load(v + r.pool * a.v_block_stride + (r.first + t) * a.v_token_stride, lane, a.head_dim);
#pragma unroll
    for (int t = 0; t < RUN; t++) {
      q.logits(keys[t], a.scale, s[t]);
#pragma unroll
      for (int h = 0; h < HEADS; h++)
        if (t >= r.n) s[t][h] = -INF;
    }
    add_run(st, s, values);
  }
}

/* ---- clusters: a launch without one is a cluster of one block ---- */

#if __CUDA_ARCH__ >= 900
__device__ inline int cluster_size() {
  int n;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
  return n;
}
__device__ inline int cluster_rank() {
  int n;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(n));
  return n;
}
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/* x, in shared memory, as the block of that rank has it. */
__device__ inline float of_rank(const float *x, int rank) {
  uint32_t address;
  float value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"((uint32_t)__cvta_generic_to_shared(x)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
}
#else
__device__ inline int cluster_size() { return 1; }
__device__ inline int cluster_rank() { return 0; }
__device__ inline void cluster_sync() { __syncthreads(); }
__device__ inline float of_rank(const float *x, int) { return *x; }
#endif

/* ---- attention ---- */

template <int WIDTH, int HEADS> struct partials {
  float high[MAX_WARPS][HEADS], sum[MAX_WARPS][HEADS], out[MAX_WARPS][HEADS][WIDTH];
};

template <class S, int HEADS, class P> __device__ inline void put(P &p, const state<HEADS> &st) {
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  if (lane >= S::LANES) return;
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    if (lane == 0) p.high[warp][h] = st.total[h].high, p.sum[warp][h] = st.total[h].sum;
#pragma unroll
    for (int i = 0; i < EACH; i++) p.out[warp][h][S::dim(lane, i)] = st.out[h][i];
  }
}

/* One value over the warps of this block, into the place of warp 0, which nobody else reads or writes. */
template <class P> __device__ inline float over_warps(P &p, int h, int d, softmax *total) {
  int n = blockDim.x / WARP;
  float high = -INF, sum = 0, out = 0;
  for (int w = 0; w < n; w++) high = fmaxf(high, p.high[w][h]);
  for (int w = 0; w < n; w++) {
    float keep = exp_below(p.high[w][h], high);
    sum += p.sum[w][h] * keep;
    out += p.out[w][h][d] * keep;
  }
  *total = {high, sum};
  return out;
}

/* The same over the blocks of a cluster. */
template <int HEADS> struct totals {
  float high[HEADS], sum[HEADS];
};

template <class P, class Q> __device__ inline float over_ranks(const P &p, const Q &q, int h, int d, softmax *total) {
  int n = cluster_size();
  float high = -INF, sum = 0, out = 0;
  for (int r = 0; r < n; r++) high = fmaxf(high, of_rank(&q.high[h], r));
  for (int r = 0; r < n; r++) {
    float keep = exp_below(of_rank(&q.high[h], r), high);
    sum += of_rank(&q.sum[h], r) * keep;
    out += of_rank(&p.out[0][h][d], r) * keep;
  }
  *total = {high, sum};
  return out;
}

__device__ inline void write(const tide_attend_args &a, int64_t row, int head, int d, float out, softmax total) {
  int64_t at = row * a.n_q_heads + head;
  if (a.out) a.out[at * a.head_dim + d] = total.sum == 0 ? 0 : a.v_scale * (out / total.sum);
  if (a.lse && d == 0) a.lse[at] = total.sum == 0 ? -INF : total.high + logf(total.sum);
}

template <class S, int HEADS>
__device__ inline void finish(const tide_attend_args &a, int64_t row, int first_head, int n_heads, const state<HEADS> &st) {
  __shared__ partials<S::WIDTH, HEADS> p;
  __shared__ totals<HEADS> q;
  put<S>(p, st);
  __syncthreads();
  int n = n_heads * a.head_dim;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    int h = i / a.head_dim, d = i % a.head_dim;
    softmax total;
    p.out[0][h][d] = over_warps(p, h, d, &total);
    if (d == 0) q.high[h] = total.high, q.sum[h] = total.sum;
  }
  cluster_sync();
  for (int i = threadIdx.x + cluster_rank() * blockDim.x; i < n; i += blockDim.x * cluster_size()) {
    int h = i / a.head_dim, d = i % a.head_dim;
    softmax total;
    float out = over_ranks(p, q, h, d, &total);
    write(a, row, first_head + h, d, out, total);
  }
  cluster_sync();
}

/* The masses of blocks outside the list are zero; the others are written by the next launch. */
__device__ inline void clear_mass(const tide_attend_args &a, int64_t row) {
  for (int64_t j = threadIdx.x + cluster_rank() * blockDim.x; j < a.n_blocks; j += blockDim.x * cluster_size())
    a.mass[row * a.n_blocks + j] = 0;
}

template <class T, int DIM, int HEADS> __device__ inline void attend(const tide_attend_args &a) {
  typedef slice<T, DIM> S;
  int group = a.n_q_heads / a.n_kv_heads, n_chunks = (group - 1) / HEADS + 1, lane = threadIdx.x % WARP;
  int64_t item = blockIdx.x / cluster_size(), row = item / (a.n_kv_heads * n_chunks);
  int rest = (int)(item % (a.n_kv_heads * n_chunks)), kv = rest / n_chunks, chunk = rest % n_chunks * HEADS;
  int first_head = kv * group + chunk, n_heads = min(HEADS, group - chunk), n_warps = blockDim.x / WARP;
  constexpr int GROUPS = WARP / S::LANES;
  queries<S, HEADS> q;
  state<HEADS> st;
  if (a.mass && rest == 0) clear_mass(a, row);
  q.load(a, row, first_head, n_heads, lane);
  clear(st);
  int warp = cluster_rank() * n_warps + threadIdx.x / WARP;
  walk<T>(a, row, kv, q, warp * GROUPS, cluster_size() * n_warps * GROUPS, st);
  merge_groups<S>(st);
  finish<S>(a, row, first_head, n_heads, st);
}

/* ---- mass: a block of threads for a block of tokens of a row, a warp for every so-manieth kv head ---- */

template <class T, int DIM> __device__ inline float mass_of_head(const tide_attend_args &a, int64_t row, int head, const run &r) {
  typedef slice<T, DIM> S;
  constexpr int GROUPS = WARP / S::LANES;
  int lane = threadIdx.x % WARP;
  const T *k = (const T *)a.k + r.pool * a.k_block_stride + head / (a.n_q_heads / a.n_kv_heads) * a.k_head_stride;
  float lse = a.lse[row * a.n_q_heads + head], sum = 0, s[1];
  queries<S, 1> q;
  q.load(a, row, head, 1, lane);
  for (int first = 0; first < r.n; first += GROUPS) {
    int t = first + lane / S::LANES;
    S key = {};
    if (t < r.n) key.load(k + t * a.k_token_stride, lane, a.head_dim);
    q.logits(key, a.scale, s);
    if (t < r.n && lane % S::LANES == 0) sum += __expf(s[0] > lse ? 0 : s[0] - lse);
  }
  return warp_sum(sum);
}

template <class T, int DIM> __device__ inline void mass(const tide_attend_args &a) {
  __shared__ float sums[WARP];
  int n_entries = a.list ? a.n_list : a.n_blocks, n_warps = blockDim.x / WARP, warp = threadIdx.x / WARP;
  int64_t row = blockIdx.x / n_entries, entry = blockIdx.x % n_entries;
  int64_t j = a.list ? a.list[row * a.list_stride + entry] : entry;
  run r = find_run(a, row, tokens_seen(a, row), j, 0, a.block_size);
  float sum = 0;
  if (r.n == 0) return;
  for (int head = warp; head < a.n_q_heads; head += n_warps) sum += mass_of_head<T, DIM>(a, row, head, r);
  sum = block_sum(threadIdx.x % WARP == 0 ? sum : 0, sums);
  if (threadIdx.x == 0) a.mass[row * a.n_blocks + j] = sum / (float)a.n_q_heads;
}

/* ---- entries: kv dtype, head_dim (any: no wide loads), query heads at once ---- */

#define BODIES(name, T, dim, per_sm)                                                                                             \
  extern "C" __global__ void __launch_bounds__(256, 2) attend_##name##_1(const __grid_constant__ tide_attend_args a) {      \
    attend<T, dim, 1>(a);                                                                                                   \
  }                                                                                                                         \
  extern "C" __global__ void __launch_bounds__(256, per_sm) attend_##name##_4(const __grid_constant__ tide_attend_args a) {      \
    attend<T, dim, 4>(a);                                                                                                   \
  }                                                                                                                         \
  extern "C" __global__ void __launch_bounds__(128) attend_##name##_mass(const __grid_constant__ tide_attend_args a) {      \
    mass<T, dim>(a);                                                                                                        \
  }
BODIES(f32_any, float, 0, 1)
BODIES(f16_any, f16, 0, 1)
BODIES(bf16_any, bf16, 0, 1)
BODIES(f8_any, f8, 0, 1)
BODIES(f16_64, f16, 64, 2)
BODIES(f16_128, f16, 128, 2)
BODIES(f16_256, f16, 256, 2)
BODIES(bf16_64, bf16, 64, 2)
BODIES(bf16_128, bf16, 128, 2)
BODIES(bf16_256, bf16, 256, 2)
BODIES(f8_64, f8, 64, 2)
BODIES(f8_128, f8, 128, 2)
BODIES(f8_256, f8, 256, 2)
