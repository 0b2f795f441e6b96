/* summarize_blocks.cu: a thread keeps neighbouring dimensions of a head and walks the tokens of its block, several of them
 * in flight, adding them in order. */
#include "device.cuh"
#include "summarize_blocks.h"

enum { TOKENS_IN_FLIGHT = 8 };

struct mean {
  float sum = 0;
  __device__ void add(float x) { sum += x; }
};

struct bounds {
  float low = __int_as_float(0x7fc00000), high = low;
  __device__ void add(float x) {
    low = fminf(low, x);
    high = fmaxf(high, x);
  }
};

template <class S, class T, int WIDTH> __device__ inline void add_token(S (&s)[WIDTH], const pack<T, WIDTH> &token) {
  float x[WIDTH];
  token.unpack(x);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) s[i].add(x[i]);
}

template <class S, class T, int WIDTH>
__device__ inline void walk(const T *x, int64_t stride, int n_tokens, S (&s)[WIDTH]) {
  int t = 0;
  for (; t + TOKENS_IN_FLIGHT <= n_tokens; t += TOKENS_IN_FLIGHT) {
    pack<T, WIDTH> tokens[TOKENS_IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < TOKENS_IN_FLIGHT; i++) tokens[i].load(x + (t + i) * stride);
#pragma unroll
    for (int i = 0; i < TOKENS_IN_FLIGHT; i++) add_token(s, tokens[i]);
  }
#pragma unroll 1
  for (; t < n_tokens; t++) {
    pack<T, WIDTH> token;
    token.load(x + t * stride);
    add_token(s, token);
  }
}

template <int WIDTH> __device__ inline void store(uint16_t *y, const float (&x)[WIDTH]) {
  bf16 rounded[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) rounded[i] = f32_to_bf16(x[i]);
  store_all((bf16 *)y, rounded);
}

template <class T, int WIDTH> __device__ inline void write_mean(const tide_summarize_blocks_args &a, const T *x, uint16_t *y) {
  mean s[WIDTH];
  float out[WIDTH];
  walk(x, a.x_token_stride, a.block_size, s);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) out[i] = s[i].sum / (float)a.block_size;
  store(y, out);
}

template <class T, int WIDTH> __device__ inline void write_bounds(const tide_summarize_blocks_args &a, const T *x, uint16_t *y) {
  bounds s[WIDTH];
  float low[WIDTH], high[WIDTH];
  walk(x, a.x_token_stride, a.block_size, s);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) low[i] = s[i].low, high[i] = s[i].high;
  store(y, low);
  store(y + a.dim, high);
}

template <class T, int WIDTH> __device__ inline void summarize(const tide_summarize_blocks_args &a) {
  int64_t item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  int a_head = a.dim / WIDTH, a_block = a.n_heads * a_head;
  int64_t b = item / a_block;
  int rest = (int)(item - b * a_block), h = rest / a_head, d = rest % a_head * WIDTH;
  if (b >= a.n_blocks) return;
  int64_t xb = a.x_blocks ? a.x_blocks[b] : b, yb = a.y_blocks ? a.y_blocks[b] : a.first_y + b;
  if (xb < 0 || xb >= a.n_x_blocks || yb < 0 || yb >= a.n_y_blocks || (a.x_written && !a.x_written[xb])) return;
  const T *x = (const T *)a.x + xb * a.x_block_stride + h * a.x_head_stride + d;
  uint16_t *y = a.y + (yb * a.n_heads + h) * (a.minmax ? 2 : 1) * a.dim + d;
  if (a.minmax) write_bounds<T, WIDTH>(a, x, y);
  else write_mean<T, WIDTH>(a, x, y);
  if (a.written && rest == 0) a.written[yb] = 1;
}

#define BODY(name, T, width) \
  extern "C" __global__ void __launch_bounds__(128, 6) name(const __grid_constant__ tide_summarize_blocks_args a) { \
    summarize<T, width>(a);                                                                                         \
  }
BODY(summarize_blocks_f32, float, 1)
BODY(summarize_blocks_f16, f16, 1)
BODY(summarize_blocks_bf16, bf16, 1)
BODY(summarize_blocks_f32_wide, float, 4)
BODY(summarize_blocks_f16_wide, f16, 8)
BODY(summarize_blocks_bf16_wide, bf16, 8)
