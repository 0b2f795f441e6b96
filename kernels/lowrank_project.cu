/* lowrank_project.cu: any geometry. A thread sums one value of y over d in order, so y is the reference's bits. */
#include "device.cuh"
#include "lowrank_project.h"

/* Grid: x counts blocks; y shares out the tokens and heads of a block. A warp takes 32 columns of one row of y. */
extern "C" __global__ void lowrank_project(const __grid_constant__ tide_lowrank_project_args a) {
  wait_for_predecessor();
  let_successor_begin();
  int64_t b = blockIdx.x;
  int64_t xb = a.x_blocks ? a.x_blocks[b] : b, yb = a.y_blocks ? a.y_blocks[b] : a.first_y + b;
  if (xb < 0 || xb >= a.n_x_blocks || yb < 0 || yb >= a.n_y_blocks) return;
  if (a.written && blockIdx.y == 0 && threadIdx.x == 0) a.written[yb] = 1;

  int n_slices = (a.rank + WARP - 1) / WARP, n_rows = a.n_heads * a.block_size;
  int n_warps = blockDim.x / WARP * gridDim.y, warp = blockIdx.y * (blockDim.x / WARP) + threadIdx.x / WARP;
  for (int64_t item = warp; item < (int64_t)n_rows * n_slices; item += n_warps) {
    int row = (int)(item / n_slices), j = (int)(item % n_slices) * WARP + threadIdx.x % WARP;
    if (j >= a.rank) continue;
    int h = row / a.block_size, t = row % a.block_size, map = h / (a.n_heads / a.n_maps);
    int64_t x = xb * a.x_block_stride + t * a.x_token_stride + h * a.x_head_stride;
    float sum = a.p ? 0 : load_f32(a.x, a.x_dtype, x + j);
    if (a.p) {
      const bf16 *p = (const bf16 *)a.p + (int64_t)map * a.head_dim * a.rank + j;
#pragma unroll 8
      for (int d = 0; d < a.head_dim; d++) sum = fmaf(load_f32(a.x, a.x_dtype, x + d), to_f32(p[(int64_t)d * a.rank]), sum);
    }
    if (a.bias) sum -= a.bias[(int64_t)map * a.rank + j];
    ((bf16 *)a.y)[((yb * a.n_heads + h) * a.block_size + t) * a.rank + j] = f32_to_bf16(sum);
  }
}
