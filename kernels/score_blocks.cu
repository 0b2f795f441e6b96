/* score_blocks.cu: any geometry. A warp takes a block, a lane sums a whole estimate in the reference's order,
 * so the estimates are the reference's bits. */
#include "score_blocks.cuh"

enum { N_WARPS = 8 };

__device__ static float estimate(const tide_score_blocks_args &a, int64_t row, int h, int id, int t) {
  const bf16 *q = (const bf16 *)a.q + (row * a.n_q_heads + h) * a.rank;
  int64_t kv = (int64_t)id * a.n_kv_heads + h / (a.n_q_heads / a.n_kv_heads);
  const bf16 *k = (const bf16 *)a.keys + (kv * a.n_entries + t) * a.rank;
  float sum = 0;
  if (a.minmax)
    for (int j = 0; j < a.rank; j++) sum += fmaxf(to_f32(q[j]) * to_f32(k[j]), to_f32(q[j]) * to_f32(k[a.rank + j]));
  else
    for (int j = 0; j < a.rank; j++) sum = fmaf(to_f32(q[j]), to_f32(k[j]), sum);
  return sum;
}

__device__ static float max_score(const tide_score_blocks_args &a, int64_t row, int id, int n_tokens) {
  float best = -INF;
  for (int item = threadIdx.x % WARP; item < a.n_q_heads * n_tokens; item += WARP)
    best = fmaxf(best, estimate(a, row, item / n_tokens, id, item % n_tokens));
  return warp_max(best);
}

__device__ static float logit(const tide_score_blocks_args &a, int64_t row, int h, int id, int n_tokens) {
  softmax s = {-INF, 0};
  for (int t = 0; t < n_tokens; t++) s = softmax_add(s, {a.scale * estimate(a, row, h, id, t)});
  return log_of(s);
}

extern "C" __global__ void __launch_bounds__(N_WARPS *WARP) score_blocks(const __grid_constant__ tide_score_blocks_args a) {
  wait_for_predecessor();
  let_successor_begin();
  int n_tokens = a.minmax ? 1 : a.n_entries;
  int64_t row = blockIdx.x;
  int live = live_blocks(a, row);
  for (int i = blockIdx.y * N_WARPS + threadIdx.x / WARP; i < a.n_blocks; i += gridDim.y * N_WARPS) {
    int id = i < live ? valid_block(a, row, i) : -1;
    float score = id < 0 ? -INF : max_score(a, row, id, n_tokens);
    if (threadIdx.x % WARP == 0) a.scores[row * a.scores_stride + i] = score;
  }
}

/* A thread takes a head of a block. */
extern "C" __global__ void __launch_bounds__(N_WARPS *WARP)
    score_blocks_logits(const __grid_constant__ tide_score_blocks_args a) {
  wait_for_predecessor();
  let_successor_begin();
  int n_tokens = a.minmax ? 1 : a.n_entries;
  int64_t row = blockIdx.x, n = live_blocks(a, row);
  int first = (int)(n * blockIdx.y / gridDim.y), last = (int)(n * (blockIdx.y + 1) / gridDim.y);
  for (int64_t item = threadIdx.x; item < (int64_t)(last - first) * a.n_q_heads; item += N_WARPS * WARP) {
    int i = first + (int)(item / a.n_q_heads), h = (int)(item % a.n_q_heads), id = valid_block(a, row, i);
    logits_of(a, row, i)[h] = id < 0 ? NOT_VALID : logit(a, row, h, id, n_tokens);
  }
  sum_logits<N_WARPS>(a, row, first, last);
}
