/* lowrank_project_mma.cu: bf16 projections on the tensor cores, at the speed of reading x and writing y.
 *
 * The rows of y that share a map and a block lie side by side: row f of map m is head m * n + f / block_size, token
 * f % block_size, n the heads of a map. A tile is 16 such rows. Grid y counts maps.
 *   stream   for many tiles: the map in shared memory, each warp's next tiles on their way there; a lane fetches just
 *            what it multiplies, so that no barrier is needed
 *   spread   for few: a warp takes 8 columns of one tile and needs nobody, one round trip to memory
 */
#include "mma.cuh"
#include "lowrank_project.h"

enum { N_WARPS = 8, TILE = 16, N_WORDS = TILE / 2 };

/* What the tiles of one map have in common, and this lane's rows lane / 4 and lane / 4 + 8 of a tile. */
struct tiles {
  const tide_lowrank_project_args &a;
  int map, n_heads, n_rows;
  unsigned per_block;

  __device__ tiles(const tide_lowrank_project_args &args)
      : a(args), map(blockIdx.y), n_heads(args.n_heads / args.n_maps), n_rows(n_heads * args.block_size),
        per_block((n_rows + TILE - 1) / TILE) {}
  __device__ unsigned count() const { return a.n_blocks * per_block; }
  __device__ int row(unsigned tile, int half) const { return (int)(tile % per_block) * TILE + threadIdx.x % WARP / 4 + 8 * half; }
  /* Rows beyond the last are read as the last. */
  __device__ const uint16_t *x(unsigned tile, int x_block, int half) const {
    int f = min(row(tile, half), n_rows - 1), h = map * n_heads + f / a.block_size, t = f % a.block_size;
    return (const uint16_t *)a.x + x_block * a.x_block_stride + t * a.x_token_stride + h * a.x_head_stride;
  }
  __device__ uint16_t *y(unsigned tile, int y_block, int half) const {
    int64_t first = ((int64_t)y_block * a.n_heads + map * n_heads) * a.block_size;
    return a.y + (first + row(tile, half)) * a.rank;
  }
  __device__ bool has(unsigned tile, int half) const { return row(tile, half) < n_rows; }
};

/* The block of x and of y of a tile; y is -1 where either is outside its pool. */
struct place {
  int x, y;

  __device__ place(const tiles &all, unsigned tile) : x(-1), y(-1) {
    if (tile >= all.count()) return;
    const tide_lowrank_project_args &a = all.a;
    int b = (int)(tile / all.per_block);
    x = a.x_blocks ? a.x_blocks[b] : b;
    y = a.y_blocks ? a.y_blocks[b] : a.first_y + b;
    if (x < 0 || x >= a.n_x_blocks || y < 0 || y >= a.n_y_blocks)
      y = -1;
    else if (a.written && all.map == 0 && tile % all.per_block == 0)
      a.written[y] = 1;
  }
};

/* ---- stream ---- */

/* The map in shared memory: row k_position(d), [rank + 8] bf16 each, and within every COLUMNS columns that order in which
 * a lane's results of a row are neighbours: product i, column 2 q + e holds column q * COLUMNS / 4 + 2 i + e. */
template <int DIM, int COLUMNS> __device__ static void stage_map(const tide_lowrank_project_args &a, uint16_t *p) {
  const uint16_t *from = a.p + (int64_t)blockIdx.y * DIM * a.rank;
#pragma unroll 2
  for (int i = threadIdx.x; i < DIM * a.rank / 8; i += blockDim.x) {
    int d = i * 8 / a.rank, j0 = i * 8 % a.rank;
    uint4 v = __ldg((const uint4 *)from + i);
    uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
    uint16_t *row = p + k_position(d) * (a.rank + 8) + j0 / COLUMNS * COLUMNS;
    for (int k = 0; k < 4; k++) {
      int j = j0 % COLUMNS + 2 * k, quarter = j / (COLUMNS / 4), product = j % (COLUMNS / 4) / 2;
      *(uint32_t *)(row + product * 8 + quarter * 2) = pairs[k];
    }
  }
}

/* A warp's ring: N_STAGES tiles, in each [DIM / 32, rows lane / 4 or lane / 4 + 8, WARP] pieces of 16 bytes. */
enum { HALF_BYTES = WARP * 16, CHUNK = 32, CHUNK_BYTES = 2 * HALF_BYTES };
template <int DIM> struct ring {
  static constexpr int N_STAGES = DIM == 64 ? 4 : 2, N_CHUNKS = DIM / CHUNK, TILE_BYTES = N_CHUNKS * CHUNK_BYTES;
  static constexpr int BYTES = N_STAGES * TILE_BYTES;
};

/* COLUMNS results of rows lane / 4 and lane / 4 + 8: c[i] of product i. */
template <int DIM, int COLUMNS>
__device__ inline void multiply(uint32_t x, const uint16_t *p, int row_values, float (&c)[COLUMNS / 8][4]) {
  int lane = threadIdx.x % WARP;
  const uint16_t *mine = p + (lane % 16) * row_values + lane / 16 * 8;
#pragma unroll
  for (int i = 0; i < COLUMNS / 8; i++)
    for (int e = 0; e < 4; e++) c[i][e] = 0;
#pragma unroll 2
  for (int s = 0; s < DIM / 16; s += 2) {
    uint4 low = load_shared(x + s / 2 * CHUNK_BYTES), high = load_shared(x + s / 2 * CHUNK_BYTES + HALF_BYTES);
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i += 2) {
      uint32_t m[4];
      load_matrices_transposed(m, mine + s * 16 * row_values + i * 8);
      mma(c[i], low.x, high.x, low.y, high.y, m[0], m[1]);
      mma(c[i + 1], low.x, high.x, low.y, high.y, m[2], m[3]);
      load_matrices_transposed(m, mine + (s + 1) * 16 * row_values + i * 8);
      mma(c[i], low.z, high.z, low.w, high.w, m[0], m[1]);
      mma(c[i + 1], low.z, high.z, low.w, high.w, m[2], m[3]);
    }
  }
}

/* A lane's COLUMNS / 4 neighbouring values of one row. */
template <int COLUMNS> __device__ inline void store(uint16_t *y, const float *bias, const float (&c)[COLUMNS / 8][4], int half) {
  uint32_t v[COLUMNS / 8];
  for (int i = 0; i < COLUMNS / 8; i++) v[i] = pack_bf16(c[i][2 * half] - bias[2 * i], c[i][2 * half + 1] - bias[2 * i + 1]);
  if constexpr (COLUMNS == 32)
    __stcs((uint4 *)y, make_uint4(v[0], v[1], v[2], v[3]));
  else
    __stcs((uint2 *)y, make_uint2(v[0], v[1]));
}

/* Every warp takes each n_warps-th tile; lane l knows the place of the l-th next one. */
template <int DIM> struct tile_reader {
  const tiles &all;
  unsigned next, step;
  int n_fetched;
  place ahead;

  __device__ tile_reader(const tiles &t, unsigned first, unsigned n_warps)
      : all(t), next(first), step(n_warps), n_fetched(0), ahead(t, first + threadIdx.x % WARP * n_warps) {}
  /* Asks for the next tile; the block of y, or -1. */
  __device__ int fetch(uint32_t slot) {
    if (n_fetched == WARP) {
      ahead = place(all, next + threadIdx.x % WARP * step);
      n_fetched = 0;
    }
    int x_block = __shfl_sync(ALL_LANES, ahead.x, n_fetched), y_block = __shfl_sync(ALL_LANES, ahead.y, n_fetched);
#pragma unroll
    for (int half = 0; half < 2 && y_block >= 0; half++) {
      const uint16_t *row = all.x(next, x_block, half) + threadIdx.x % 4 * 8;
#pragma unroll
      for (int i = 0; i < ring<DIM>::N_CHUNKS; i++) copy_async(slot + i * CHUNK_BYTES + half * HALF_BYTES, row + i * CHUNK);
    }
    commit_copies();
    n_fetched++;
    next += step;
    return y_block;
  }
};

/* Dynamic shared memory: the rings of the warps, the map, then bias [rank] f32. */
template <int DIM, int COLUMNS> __device__ inline void stream(const tide_lowrank_project_args &a) {
  extern __shared__ uint4 shared[];
  constexpr int N_STAGES = ring<DIM>::N_STAGES, TILE_BYTES = ring<DIM>::TILE_BYTES;
  tiles all(a);
  int row_values = a.rank + 8, warp = threadIdx.x / WARP, n_warps_here = blockDim.x / WARP;
  uint32_t mine = shared_address(shared) + warp * ring<DIM>::BYTES + threadIdx.x % WARP * 16, slot = 0;
  uint16_t *p = (uint16_t *)((char *)shared + n_warps_here * ring<DIM>::BYTES);
  float *bias = (float *)(p + DIM * row_values);
  unsigned n_warps = gridDim.x * n_warps_here, tile = blockIdx.x * n_warps_here + warp;
  let_successor_begin();
  wait_for_predecessor();
  tile_reader<DIM> reader(all, tile, n_warps);
  int y_block[N_STAGES];
#pragma unroll
  for (int s = 0; s < N_STAGES; s++) y_block[s] = reader.fetch(mine + s * TILE_BYTES);
  stage_map<DIM, COLUMNS>(a, p);
  for (int j = threadIdx.x; j < a.rank; j += blockDim.x) bias[j] = a.bias ? a.bias[all.map * a.rank + j] : 0;
  __syncthreads();

#pragma unroll 1
  for (; tile < all.count(); tile += n_warps) {
    wait_for_copies<N_STAGES - 1>();
#pragma unroll 1
    for (int j = 0; y_block[0] >= 0 && j < a.rank; j += COLUMNS) {
      float c[COLUMNS / 8][4];
      multiply<DIM, COLUMNS>(mine + slot, p + j, row_values, c);
      int column = j + threadIdx.x % 4 * (COLUMNS / 4);
#pragma unroll
      for (int half = 0; half < 2; half++)
        if (all.has(tile, half)) store<COLUMNS>(all.y(tile, y_block[0], half) + column, bias + column, c, half);
    }
#pragma unroll
    for (int s = 0; s + 1 < N_STAGES; s++) y_block[s] = y_block[s + 1];
    y_block[N_STAGES - 1] = reader.fetch(mine + slot);
    slot = slot + TILE_BYTES == ring<DIM>::BYTES ? 0 : slot + TILE_BYTES;
  }
}

#define STREAM(DIM, COLUMNS)                                                                                                     \
  extern "C" __global__ void __launch_bounds__(N_WARPS *WARP, DIM > 128 ? 1 : 3)                                                 \
      lowrank_project_mma_##DIM##_##COLUMNS(const __grid_constant__ tide_lowrank_project_args a) {                               \
    stream<DIM, COLUMNS>(a);                                                                                                     \
  }
STREAM(64, 16)
STREAM(64, 32)
STREAM(128, 16)
STREAM(128, 32)
STREAM(256, 16)
STREAM(256, 32)

/* ---- spread ---- */

/* Grid x: n_tiles * rank / 8 warps, the columns of a tile side by side. */
template <int DIM> __device__ inline void spread(const tide_lowrank_project_args &a) {
  __shared__ uint4 staged[N_WARPS][DIM];
  tiles all(a);
  uint4 *p = staged[threadIdx.x / WARP];
  int lane = threadIdx.x % WARP, n_slices = a.rank / 8;
  unsigned task = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, tile = task / n_slices;
  int j = (int)(task % n_slices) * 8;
  let_successor_begin();
  wait_for_predecessor();
  const uint16_t *from = a.p + (int64_t)all.map * DIM * a.rank + j;
  uint4 columns[DIM / WARP];
  for (int i = 0; i < DIM / WARP; i++) columns[i] = __ldg((const uint4 *)(from + (i * WARP + lane) * a.rank));
  place at(all, tile);
  if (at.y < 0) return;
  row_share<DIM> x[2];
  for (int half = 0; half < 2; half++) x[half].take(all.x(tile, at.x, half), lane % 4, load_plain());
  for (int i = 0; i < DIM / WARP; i++) p[k_position(i * WARP + lane)] = columns[i];
  __syncwarp();

  float c[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < DIM / WARP; i++) {
    uint32_t m[4];
    load_matrices_transposed(m, p + i * WARP + lane);
    for (int s = 0; s < 2; s++) {
      int k = 4 * i + 2 * s;
      mma(c, x[0].words[k], x[1].words[k], x[0].words[k + 1], x[1].words[k + 1], m[2 * s], m[2 * s + 1]);
    }
  }
  j += lane % 4 * 2;
  const float *bias = a.bias ? a.bias + (int64_t)all.map * a.rank + j : NULL;
  for (int half = 0; half < 2; half++)
    if (all.has(tile, half))
      *(uint32_t *)(all.y(tile, at.y, half) + j) =
          pack_bf16(c[2 * half] - (bias ? bias[0] : 0), c[2 * half + 1] - (bias ? bias[1] : 0));
}

#define SPREAD(DIM)                                                                                                              \
  extern "C" __global__ void lowrank_project_spread_##DIM(const __grid_constant__ tide_lowrank_project_args a) {                 \
    spread<DIM>(a);                                                                                                              \
  }
SPREAD(64)
SPREAD(128)
SPREAD(256)
