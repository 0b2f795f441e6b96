/* score_blocks_minmax.cu: blocks known by the minima and maxima of their keys. A warp takes a run of blocks;
 * a lane has 8 dimensions of a kv head's minima and maxima, the ones of the next step on their way, and meets
 * them with the queries of that head from shared memory. */
#include "mma.cuh"
#include "score_blocks.cuh"

enum { N_WARPS = 8, PIECE = 8 };

struct bounds {
  uint4 low, high;
};

/* 32 / n_lanes kv heads at once; a lane without a piece, or of no head, has zeros. */
struct layout {
  int n_pieces, n_lanes, piece, kv, heads_at_once;

  __device__ layout(const tide_score_blocks_args &a) : n_pieces(a.rank / PIECE), n_lanes(1) {
    while (n_lanes < n_pieces) n_lanes *= 2;
    heads_at_once = WARP / n_lanes;
    piece = threadIdx.x % n_lanes;
    kv = threadIdx.x % WARP / n_lanes;
  }
};

/* The steps of a warp over its blocks: block i, then within it heads_at_once kv heads at a time. */
struct walk {
  const tide_score_blocks_args &a;
  const layout &l;
  int64_t row;
  int i, last, live, id, kv0;

  __device__ walk(const tide_score_blocks_args &args, const layout &layout, int64_t r, int first, int end)
      : a(args), l(layout), row(r), i(first), last(end), live(live_blocks(args, r)), kv0(0) {
    find();
  }
  __device__ void find() { id = i < min(last, live) ? valid_block(a, row, i) : -1; }
  __device__ bool done() const { return i >= last; }
  __device__ bool ends_block() const { return id < 0 || kv0 + l.heads_at_once >= a.n_kv_heads; }
  __device__ void advance() {
    if (!ends_block())
      kv0 += l.heads_at_once;
    else
      kv0 = 0, i++, find();
  }
  __device__ int kv() const { return kv0 + l.kv; }
  __device__ bool has_piece() const { return l.piece < l.n_pieces && kv() < a.n_kv_heads; }
  __device__ bounds fetch() const {
    if (id < 0 || !has_piece()) return {};
    const uint4 *k = (const uint4 *)a.keys + ((int64_t)id * a.n_kv_heads + kv()) * 2 * l.n_pieces + l.piece;
    return {load_streaming()(k), load_streaming()(k + l.n_pieces)};
  }
};

__device__ static void unpack(float (&x)[PIECE], uint4 v) {
  uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; i++) x[2 * i] = __uint_as_float(words[i] << 16), x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
}

/* The largest estimate of the heads of one kv head; take(j, e) gets the one of each. q: this lane's piece of
 * the first. */
template <class Take>
__device__ static void meet(const bounds &b, const uint4 *q, int group, const layout &l, bool has_piece, Take take) {
  float low[PIECE], high[PIECE], query[PIECE];
  unpack(low, b.low);
  unpack(high, b.high);
  for (int j = 0; j < group; j++) {
    unpack(query, has_piece ? q[j * l.n_pieces] : make_uint4(0, 0, 0, 0));
    float e = 0;
#pragma unroll
    for (int d = 0; d < PIECE; d++) e += fmaxf(query[d] * low[d], query[d] * high[d]);
    for (int step = l.n_lanes / 2; step > 0; step /= 2) e += __shfl_xor_sync(ALL_LANES, e, step);
    take(j, e);
  }
}

/* Dynamic shared memory: q of the row [n_q_heads, rank]. */
template <bool MASS> __device__ inline void score(const tide_score_blocks_args &a) {
  extern __shared__ uint4 q[];
  wait_for_predecessor();
  let_successor_begin();
  layout l(a);
  int64_t row = blockIdx.x;
  int n_words = a.n_q_heads * l.n_pieces, group = a.n_q_heads / a.n_kv_heads, warp = threadIdx.x / WARP;
  int64_t n = a.n_blocks, w = blockIdx.y * N_WARPS, n_warps = (int64_t)gridDim.y * N_WARPS;
  walk now(a, l, row, (int)(n * (w + warp) / n_warps), (int)(n * (w + warp + 1) / n_warps));
  bounds next = now.fetch();
  for (int i = threadIdx.x; i < n_words; i += blockDim.x) q[i] = ((const uint4 *)a.q)[row * n_words + i];
  __syncthreads();

  float best = -INF;
  while (!now.done()) {
    bounds b = next;
    walk here = now;
    now.advance();
    next = now.fetch();
    if (here.id >= 0)
      meet(b, q + here.kv() * group * l.n_pieces + l.piece, group, l, here.has_piece(), [&](int j, float e) {
        if (here.kv() >= a.n_kv_heads) return;
        if (!MASS)
          best = fmaxf(best, e);
        else if (l.piece == 0)
          logits_of(a, row, here.i)[here.kv() * group + j] = held_logit(a.scale * e);
      });
    if (!here.ends_block()) continue;
    if (MASS && here.id < 0 && here.i < here.live) logits_of(a, row, here.i)[0] = NOT_VALID;
    float score = warp_max(best);
    if (!MASS && threadIdx.x % WARP == 0) a.scores[row * a.scores_stride + here.i] = here.id < 0 ? -INF : score;
    best = -INF;
  }
  if (MASS) {
    int live = live_blocks(a, row), first = (int)(n * w / n_warps), last = (int)(n * (w + N_WARPS) / n_warps);
    sum_logits<N_WARPS>(a, row, first, min(live, last));
  }
}

extern "C" __global__ void __launch_bounds__(N_WARPS *WARP, 4)
    score_blocks_minmax(const __grid_constant__ tide_score_blocks_args a) {
  score<false>(a);
}
extern "C" __global__ void __launch_bounds__(N_WARPS *WARP, 4)
    score_blocks_minmax_logits(const __grid_constant__ tide_score_blocks_args a) {
  score<true>(a);
}
