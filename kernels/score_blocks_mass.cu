/* score_blocks_mass.cu: from logits and partial sums to the mean over heads of each block's share. */
#include "score_blocks.cuh"

enum { N_WARPS = 8 };

/* log of the sum over all parts, per head; a warp takes 32 heads and every N_WARPS-th part. */
__device__ static void sum_parts(const tide_score_blocks_args &a, int64_t row, float *sums) {
  __shared__ softmax mine[N_WARPS][WARP];
  int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  for (int h0 = 0; h0 < a.n_q_heads; h0 += WARP) {
    softmax s = {-INF, 0};
    int h = h0 + lane;
#pragma unroll 4
    for (int part = warp; part < gridDim.y && h < a.n_q_heads; part += N_WARPS)
      s = softmax_merge(s, partials_of(a, row, part)[h]);
    mine[warp][lane] = s;
    __syncthreads();
    if (warp == 0 && h < a.n_q_heads) {
      for (int w = 1; w < N_WARPS; w++) s = softmax_merge(s, mine[w][lane]);
      sums[h] = s.high + __logf(s.sum);
    }
    __syncthreads();
  }
}

/* Grid and parts of the launch before; dynamic shared memory: n_q_heads floats. */
extern "C" __global__ void __launch_bounds__(N_WARPS *WARP) score_blocks_mass(const __grid_constant__ tide_score_blocks_args a) {
  extern __shared__ float sums[];
  wait_for_predecessor();
  let_successor_begin();
  int lane = threadIdx.x % WARP;
  int64_t row = blockIdx.x;
  int live = live_blocks(a, row);
  sum_parts(a, row, sums);
#pragma unroll 4
  for (int i = blockIdx.y * N_WARPS + threadIdx.x / WARP; i < a.n_blocks; i += gridDim.y * N_WARPS) {
    float total = 0;
    bool valid = i < live;
    for (int h = lane; valid && h < a.n_q_heads; h += WARP) {
      float l = logits_of(a, row, i)[h];
      if (h == 0) valid = l == l;
      if (l > -INF) total += __expf(l - sums[h]);
    }
    total = warp_sum(total) / (float)a.n_q_heads;
    if (lane == 0) a.scores[row * a.scores_stride + i] = valid ? total : -INF;
  }
}
