/* gather.cu: a group of threads a row, its words in flight at once. */
#include "device.cuh"
#include "gather.h"

__device__ inline int64_t source_row(const tide_gather_args &a, int32_t id) {
  int64_t row = id;
  if (id < 0) return -1;
  if (a.table) {
    int32_t page = id / a.page_size;
    if (page >= a.n_table || a.table[page] < 0) return -1;
    row = (int64_t)a.table[page] * a.page_size + id % a.page_size;
  }
  return row < a.n_src ? row : -1;
}

template <class word> __device__ inline void gather(const tide_gather_args &a) {
  int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
  if (i >= a.n) return;
  int64_t row = source_row(a, a.ids[i]), n_words = a.row_bytes / (int64_t)sizeof(word);
  word *dst = (word *)((char *)a.dst + i * a.dst_stride);
  const word *src = (const word *)((const char *)a.src + row * a.src_stride);
  int64_t first = (int64_t)blockIdx.y * blockDim.x * GATHER_WORDS + threadIdx.x;
  for (; first < n_words; first += (int64_t)gridDim.y * blockDim.x * GATHER_WORDS) {
    word words[GATHER_WORDS] = {};
#pragma unroll
    for (int w = 0; w < GATHER_WORDS; w++)
      if (row >= 0 && first + w * blockDim.x < n_words) words[w] = __ldg(src + first + w * blockDim.x);
#pragma unroll
    for (int w = 0; w < GATHER_WORDS; w++)
      if (first + w * blockDim.x < n_words) dst[first + w * blockDim.x] = words[w];
  }
}

extern "C" __global__ void gather_1(const __grid_constant__ tide_gather_args a) { gather<uint8_t>(a); }
extern "C" __global__ void gather_2(const __grid_constant__ tide_gather_args a) { gather<uint16_t>(a); }
extern "C" __global__ void gather_4(const __grid_constant__ tide_gather_args a) { gather<uint32_t>(a); }
extern "C" __global__ void gather_8(const __grid_constant__ tide_gather_args a) { gather<uint2>(a); }
extern "C" __global__ void gather_16(const __grid_constant__ tide_gather_args a) { gather<uint4>(a); }
