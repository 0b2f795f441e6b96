/* mark.cu: one thread a mark. */
#include "device.cuh"
#include "mark.h"

extern "C" __global__ void mark(const __grid_constant__ tide_mark_args a) {
  int64_t item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= (int64_t)a.n_rows * a.n) return;
  int64_t row = item / a.n, i = item % a.n, id = a.ids ? a.ids[i] : i;
  if (id >= 0 && id < a.n_marks) a.marks[row * a.stride + id] = (uint8_t)a.value;
}
