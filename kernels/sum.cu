/* sum.cu: a block takes a piece, four 16-byte loads in flight a thread. */
#include "device.cuh"
#include "sum.h"

enum { IN_FLIGHT = 4 };

__device__ static float sum_of(float4 x) { return (x.x + x.y) + (x.z + x.w); }

extern "C" __global__ void __launch_bounds__(512) sum(const __grid_constant__ tide_sum_args a) {
  int64_t begin = blockIdx.x * a.piece, end = begin + a.piece < a.n ? begin + a.piece : a.n, step = blockDim.x;
  const float4 *x = (const float4 *)a.x;
  __shared__ float parts[WARP];
  float total = 0, ways[IN_FLIGHT] = {0};
  int64_t i = begin / 4 + threadIdx.x;
  for (; i + (IN_FLIGHT - 1) * step < end / 4; i += IN_FLIGHT * step) {
    float4 got[IN_FLIGHT];
#pragma unroll
    for (int way = 0; way < IN_FLIGHT; way++) got[way] = __ldcs(x + i + way * step);
#pragma unroll
    for (int way = 0; way < IN_FLIGHT; way++) ways[way] += sum_of(got[way]);
  }
  for (; i < end / 4; i += step) total += sum_of(x[i]);
  int64_t rest = end / 4 * 4 + threadIdx.x;
  if (begin < end && rest < end) total += a.x[rest];
#pragma unroll
  for (int way = 0; way < IN_FLIGHT; way++) total += ways[way];
  total = block_sum(total, parts);
  if (threadIdx.x == 0) a.out[blockIdx.x] = total;
}
