/* copy.cu: words of up to 16 bytes where dtypes are equal, else conversions of one or eight elements. */
#include "copy_dims.h"
#include "device.cuh"

enum { IN_FLIGHT = COPY_IN_FLIGHT, CAST_WIDTH = COPY_CAST_WIDTH };

/* Offsets of an item in units of the item, for index types that hold its number. */
template <class index> __device__ inline void offsets(const copy_dims &c, index item, int64_t *to, int64_t *from) {
  *to = *from = 0;
  for (int d = c.n - 1; d > 0; d--) {
    index extent = (index)c.shape[d], i = item % extent;
    item /= extent;
    *to += (int64_t)i * c.dst_stride[d];
    *from += (int64_t)i * c.src_stride[d];
  }
  *to += (int64_t)item * c.dst_stride[0];
  *from += (int64_t)item * c.src_stride[0];
}

template <class word, class index>
__device__ inline void move_items(const tide_copy_args &a, const copy_dims &c, index n) {
  const word *src = (const word *)copy_source(&a);
  index step = (index)gridDim.x * blockDim.x;
  for (index first = (index)blockIdx.x * blockDim.x + threadIdx.x; first < n; first += IN_FLIGHT * step) {
    word words[IN_FLIGHT];
    int64_t to[IN_FLIGHT], from;
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++) {
      if (first + i * step >= n) break;
      offsets<index>(c, first + i * step, &to[i], &from);
      words[i] = src[from];
    }
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++)
      if (first + i * step < n) ((word *)a.dst)[to[i]] = words[i];
  }
}

/* What a single dimension leaves behind its last whole word. */
template <class T> __device__ inline void move_rest(const tide_copy_args &a, int64_t first, int64_t n) {
  int64_t i = first + threadIdx.x;
  if (blockIdx.x == 0 && i < n) ((T *)a.dst)[i] = ((const T *)copy_source(&a))[i];
}

template <class word> __device__ inline void move(const tide_copy_args &a) {
  __shared__ copy_dims c;
  __shared__ int64_t n_elements;
  int bytes = copy_bytes(a.src_dtype), width = (int)sizeof(word) / bytes;
  if (threadIdx.x == 0) {
    copy_join(&a, &c);
    n_elements = copy_count(&c);
    copy_widen(&c, width);
  }
  __syncthreads();
  int64_t n = copy_count(&c);
  if (n < 1ll << 30) move_items<word, uint32_t>(a, c, (uint32_t)n);
  else move_items<word, uint64_t>(a, c, (uint64_t)n);
  if (n_elements == n * width) return;
  if (bytes == 1) move_rest<uint8_t>(a, n * width, n_elements);
  else if (bytes == 2) move_rest<uint16_t>(a, n * width, n_elements);
  else if (bytes == 4) move_rest<uint32_t>(a, n * width, n_elements);
  else move_rest<uint64_t>(a, n * width, n_elements);
}

/* ---- conversions, as in copy.c ---- */

__device__ inline bool is_float(int32_t dtype) { return dtype >= DT_F32 && dtype <= DT_F8E4M3; }

__device__ inline double load_f64(const void *data, int32_t dtype, int64_t i) {
  switch (dtype) {
    case DT_I32: return ((const int32_t *)data)[i];
    case DT_U32: return ((const uint32_t *)data)[i];
    case DT_I64: return (double)((const int64_t *)data)[i];
    case DT_U8: return ((const uint8_t *)data)[i];
    default: return (double)load_f32(data, dtype, i);
  }
}

__device__ inline double to_integer(double x, double low, double high) {
  if (x != x) return 0;
  x = nearbyint(x);
  return x < low ? low : x > high ? high : x;
}

__device__ inline void store_f64(void *data, int32_t dtype, int64_t i, double x) {
  switch (dtype) {
    case DT_F32: ((float *)data)[i] = (float)x; break;
    case DT_F16: ((f16 *)data)[i] = f32_to_f16((float)x); break;
    case DT_BF16: ((bf16 *)data)[i] = f32_to_bf16((float)x); break;
    case DT_F8E4M3: ((f8 *)data)[i] = f32_to_f8((float)x); break;
    case DT_I32: ((int32_t *)data)[i] = (int32_t)to_integer(x, -2147483648.0, 2147483647.0); break;
    case DT_U32: ((uint32_t *)data)[i] = (uint32_t)to_integer(x, 0, 4294967295.0); break;
    case DT_I64: ((int64_t *)data)[i] = (int64_t)to_integer(x, -0x1p63, 0x1.fffffffffffffp62); break;
    case DT_U8: ((uint8_t *)data)[i] = (uint8_t)to_integer(x, 0, 255); break;
  }
}

__device__ inline void cast_one(const tide_copy_args &a, int64_t to, int64_t from) {
  store_f64(a.dst, a.dst_dtype, to, load_f64(copy_source(&a), a.src_dtype, from));
}

__device__ inline void load_eight(const void *data, int32_t dtype, int64_t i, float (&x)[CAST_WIDTH]) {
  switch (dtype) {
    case DT_F32: load_f32s((const float *)data + i, x); break;
    case DT_F16: load_f32s((const f16 *)data + i, x); break;
    case DT_BF16: load_f32s((const bf16 *)data + i, x); break;
    default: load_f32s((const f8 *)data + i, x); break;
  }
}

template <class T> __device__ inline void store_as(void *data, int64_t i, T (*round)(float), const float (&x)[CAST_WIDTH]) {
  T y[CAST_WIDTH];
#pragma unroll
  for (int e = 0; e < CAST_WIDTH; e++) y[e] = round(x[e]);
  store_all((T *)data + i, y);
}

__device__ inline void store_eight(void *data, int32_t dtype, int64_t i, const float (&x)[CAST_WIDTH]) {
  switch (dtype) {
    case DT_F32: store_all((float *)data + i, x); break;
    case DT_F16: store_as(data, i, f32_to_f16, x); break;
    case DT_BF16: store_as(data, i, f32_to_bf16, x); break;
    default: store_as(data, i, f32_to_f8, x); break;
  }
}

extern "C" __global__ void copy_cast(const __grid_constant__ tide_copy_args a) {
  __shared__ copy_dims c;
  if (threadIdx.x == 0) copy_join(&a, &c);
  __syncthreads();
  uint64_t n = (uint64_t)copy_count(&c), step = (uint64_t)gridDim.x * blockDim.x;
  for (uint64_t item = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; item < n; item += step) {
    int64_t to, from;
    if (n < 1ull << 31) offsets<uint32_t>(c, (uint32_t)item, &to, &from);
    else offsets<uint64_t>(c, item, &to, &from);
    cast_one(a, to, from);
  }
}

/* Between floats. */
extern "C" __global__ void copy_cast_8(const __grid_constant__ tide_copy_args a) {
  __shared__ copy_dims c;
  __shared__ int64_t n_elements;
  if (threadIdx.x == 0) {
    copy_join(&a, &c);
    n_elements = copy_count(&c);
    copy_widen(&c, CAST_WIDTH);
  }
  __syncthreads();
  uint64_t n = (uint64_t)copy_count(&c), step = (uint64_t)gridDim.x * blockDim.x;
  for (uint64_t item = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; item < n; item += step) {
    int64_t to, from;
    float x[CAST_WIDTH];
    if (n < 1ull << 31) offsets<uint32_t>(c, (uint32_t)item, &to, &from);
    else offsets<uint64_t>(c, item, &to, &from);
    load_eight(copy_source(&a), a.src_dtype, from * CAST_WIDTH, x);
    store_eight(a.dst, a.dst_dtype, to * CAST_WIDTH, x);
  }
  int64_t rest = (int64_t)n * CAST_WIDTH + threadIdx.x;
  if (blockIdx.x == 0 && rest < n_elements) cast_one(a, rest, rest);
}

extern "C" __global__ void copy_move_1(const __grid_constant__ tide_copy_args a) { move<uint8_t>(a); }
extern "C" __global__ void copy_move_2(const __grid_constant__ tide_copy_args a) { move<uint16_t>(a); }
extern "C" __global__ void copy_move_4(const __grid_constant__ tide_copy_args a) { move<uint32_t>(a); }
extern "C" __global__ void copy_move_8(const __grid_constant__ tide_copy_args a) { move<uint2>(a); }
extern "C" __global__ void copy_move_16(const __grid_constant__ tide_copy_args a) { move<uint4>(a); }
