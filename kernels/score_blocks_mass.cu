/* score_blocks_mass.cu: from logits and the parts' log-sums to the mean over heads of each block's share.
 * Eight lanes take 32 heads of a block, four each; the first logits come in while the log-sums are summed. */
#include "score_blocks.cuh"

enum { N_WARPS = 16, QUADS = 8, GROUPS = WARP / QUADS, HEADS = 4 * QUADS, BATCH = 5, AHEAD = 4 };

__device__ static void unpack(float (&x)[4], float4 v) {
  x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

/* This thread's share of the log-sums of heads h .. h + 3: every (N_WARPS * GROUPS)-th part. */
__device__ static void sum_my_parts(const tide_score_blocks_args &a, int64_t row, int h, softmax (&s)[4]) {
  const int step = N_WARPS * GROUPS;
  for (int e = 0; e < 4; e++) s[e] = {-INF, 0};
  for (int part = threadIdx.x / QUADS; part < gridDim.y; part += BATCH * step) {
    float l[BATCH][4];
#pragma unroll
    for (int k = 0; k < BATCH; k++) {
      bool in = part + k * step < gridDim.y && h < a.n_q_heads;
      unpack(l[k], in ? *(const float4 *)(log_sums_of(a, row, part + k * step) + h) : make_float4(-INF, -INF, -INF, -INF));
    }
    for (int e = 0; e < 4; e++) {
      float mine[BATCH];
      for (int k = 0; k < BATCH; k++) mine[k] = l[k][e];
      s[e] = softmax_add(s[e], mine);
    }
  }
}

/* The log of the sum over all parts per head; infinity for the padding, so that it has no share. */
__device__ static void sum_parts(const tide_score_blocks_args &a, int64_t row, float *sums) {
  __shared__ softmax states[N_WARPS][HEADS + 1];
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  for (int h0 = 0; h0 < padded_heads(a); h0 += HEADS) {
    softmax s[4];
    sum_my_parts(a, row, h0 + 4 * (lane % QUADS), s);
    for (int e = 0; e < 4; e++) {
      s[e] = softmax_of_lanes<GROUPS, QUADS>(s[e]);
      if (lane < QUADS) states[warp][4 * lane + e] = s[e];
    }
    __syncthreads();
    int h = 2 * warp + lane / N_WARPS;
    softmax total = softmax_of_lanes<N_WARPS>(states[lane % N_WARPS][h]);
    if (lane % N_WARPS == 0 && h0 + h < padded_heads(a)) sums[h0 + h] = h0 + h < a.n_q_heads ? log_of(total) : INF;
    __syncthreads();
  }
}

/* Four heads of a block, or what has no share in a block that is not valid. */
__device__ static float4 fetch(const tide_score_blocks_args &a, int64_t row, int i, int live, int h) {
  if (i < live && h < a.n_q_heads) return *(const float4 *)(logits_of(a, row, i) + h);
  return make_float4(NOT_VALID, -INF, -INF, -INF);
}

__device__ static float shares(float4 logits, float4 sums) {
  return share_of(logits.x, sums.x) + share_of(logits.y, sums.y) + share_of(logits.z, sums.z) + share_of(logits.w, sums.w);
}

/* Grid and parts of the launch before; dynamic shared memory: padded_heads floats. */
extern "C" __global__ void __launch_bounds__(N_WARPS *WARP, 2)
    score_blocks_mass(const __grid_constant__ tide_score_blocks_args a) {
  extern __shared__ float4 sums[];
  wait_for_predecessor();
  let_successor_begin();
  int lane = threadIdx.x % WARP, h0 = 4 * (lane % QUADS);
  int64_t row = blockIdx.x;
  int live = live_blocks(a, row), step = gridDim.y * N_WARPS * GROUPS;
  int first = (blockIdx.y * N_WARPS + threadIdx.x / WARP) * GROUPS + lane / QUADS;
  float4 logits[AHEAD];
#pragma unroll
  for (int k = 0; k < AHEAD; k++) logits[k] = fetch(a, row, first + k * step, live, h0);
  sum_parts(a, row, (float *)sums);
  for (int next = first; next - lane / QUADS < a.n_blocks; next += AHEAD * step)
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      int i = next + k * step;
      if (i - lane / QUADS >= a.n_blocks) break;
      float total = h0 < a.n_q_heads ? shares(logits[k], sums[h0 / 4]) : 0;
      for (int h = h0 + HEADS; i < live && h < a.n_q_heads; h += HEADS) total += shares(fetch(a, row, i, live, h), sums[h / 4]);
      total = warp_sum<QUADS>(total) / (float)a.n_q_heads;
      if (h0 == 0 && i < a.n_blocks) a.scores[row * a.scores_stride + i] = logits[k].x == logits[k].x ? total : -INF;
      logits[k] = fetch(a, row, i + AHEAD * step, live, h0);
    }
}
