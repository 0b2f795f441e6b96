/* predictor.c: keys in, scores out. Nothing here allocates or waits, but slot, which is for people.
 *
 *   write   keys -> [project] -> [summarise] -> vectors and written bits
 *   score   queries -> project -> compare with the vectors */
#include <limits.h>
#include <math.h>
#include "predictor.h"
#include "view.h"
#include "../kernels/lowrank_project.h"
#include "../kernels/score_blocks.h"
#include "../kernels/summarize_blocks.h"

/* Blocks of keys and where they go, in the words of the kernels. */
typedef struct key_blocks {
  const char *data;
  int32_t dtype, n_pool;                 /* n_pool: blocks that data holds */
  int64_t block_stride, token_stride, head_stride;
  const int32_t *src, *dst;              /* NULL: 0, 1, ... and first, first + 1, ... */
  int32_t n, first;
} key_blocks;

static tide_status open_device(const tide_predictor *p, dev **d) {
  if (!p) return TIDE_EINVAL;
  if (p->ctx->closed) return tide_fail(p->ctx, TIDE_ESTATE, "predictor: its context is closed");
  return ctx_device(p->ctx, p->s.device, d);
}

static tide_status check_layer(const tide_predictor *p, int32_t layer, int32_t least) {
  if (layer >= least && layer < p->s.n_layers) return TIDE_OK;
  return tide_fail(p->ctx, TIDE_ERANGE, "layer: out of range (got %d, want %d..%d); set by n_layers", layer, least,
                   p->s.n_layers - 1);
}

/* A list of n i32 in one piece; n ANY_EXTENT: any length. NULL gives NULL and leaves n_out alone. */
static tide_status id_list(const tide_predictor *p, dev *d, const char *what, const tide_view *in, int64_t n,
                           const int32_t **out, int64_t *n_out) {
  tide_view v;
  *out = NULL;
  if (!in) return TIDE_OK;
  TRY(view_require(p->ctx, what, in, &(view_want){d, 1 << TIDE_I32, 1, {n}, 1, NULL}, &v));
  *out = v.data;
  *n_out = v.shape[0];
  return TIDE_OK;
}

/* The maps of a layer. */
static const uint16_t *map_of(const tide_predictor *p, predictor_part_id part, int32_t layer) {
  int64_t one_layer = (int64_t)p->n_maps * p->s.head_dim * p->s.rank;
  return predictor_at(p, part, p->map_layers > 1 ? layer * one_layer : 0);
}

/* ---- keys ---- */

/* Projected keys go to y, a pool of n_y blocks. */
static tide_status project_keys(tide_predictor *p, dev *d, int32_t layer, const key_blocks *k, uint16_t *y, uint8_t *written,
                                int32_t n_y, void *stream) {
  tide_lowrank_project_args args = {
      .x = k->data, .p = map_of(p, PART_K_MAPS, layer), .y = y,
      .bias = predictor_at(p, PART_BIAS, (int64_t)layer * p->s.n_kv_heads * p->s.rank), .x_blocks = k->src, .y_blocks = k->dst, .written = written, .x_block_stride = k->block_stride,
      .x_token_stride = k->token_stride, .x_head_stride = k->head_stride, .x_dtype = k->dtype, .n_blocks = k->n,
      .block_size = p->s.block_size, .n_heads = p->s.n_kv_heads, .n_maps = p->n_maps,
      .head_dim = p->s.head_dim, .rank = p->s.rank, .n_x_blocks = k->n_pool, .n_y_blocks = n_y, .first_y = k->first};
  return kernel_launch_on(d, &kernel_lowrank_project, NULL, &args, stream);
}

static tide_status summarise(tide_predictor *p, dev *d, int32_t layer, const key_blocks *k, const uint8_t *x_written,
                             void *stream) {
  int64_t block = (int64_t)p->s.n_kv_heads * p->entries * p->s.rank;
  tide_summarize_blocks_args args = {
      .x = k->data, .y = predictor_at(p, PART_VECTORS, layer * p->s.n_blocks * block), .x_blocks = k->src, .y_blocks = k->dst,
      .written = predictor_at(p, PART_WRITTEN, (int64_t)layer * p->s.n_blocks), .x_written = x_written,
      .x_block_stride = k->block_stride, .x_token_stride = k->token_stride, .x_head_stride = k->head_stride,
      .x_dtype = k->dtype, .n_blocks = k->n, .block_size = p->s.block_size, .n_heads = p->s.n_kv_heads, .dim = p->s.rank,
      .minmax = p->s.summary == TIDE_SUMMARY_MINMAX, .n_x_blocks = k->n_pool, .n_y_blocks = p->s.n_blocks, .first_y = k->first};
  return kernel_launch_on(d, &kernel_summarize_blocks, NULL, &args, stream);
}

/* Block i of the run and what follows, count of them. */
static key_blocks part_of(const key_blocks *k, int32_t i, int32_t count) {
  key_blocks part = *k;
  if (k->src) part.src = k->src + i;
  else part.data += i * k->block_stride * dtype_bytes(k->dtype), part.n_pool -= i;
  if (k->dst) part.dst = k->dst + i;
  part.first += i;
  part.n = count;
  return part;
}

/* Projects into the chunk, then summarises from there. The chunk's bits tell which sources existed. */
static tide_status summarise_projected(tide_predictor *p, dev *d, int32_t layer, const key_blocks *k, void *stream) {
  uint16_t *chunk = predictor_at(p, PART_CHUNK, 0);
  uint8_t *bits = predictor_at(p, PART_CHUNK_WRITTEN, 0);
  int64_t head = (int64_t)p->s.block_size * p->s.rank;
  for (int32_t i = 0; i < k->n; i += CHUNK_BLOCKS) {
    int32_t count = k->n - i < CHUNK_BLOCKS ? k->n - i : CHUNK_BLOCKS;
    key_blocks from = part_of(k, i, count), to = from;
    from.dst = NULL;
    from.first = 0;
    to.src = NULL;
    to.data = (const char *)chunk, to.dtype = TIDE_BF16, to.n_pool = count;
    to.block_stride = p->s.n_kv_heads * head, to.head_stride = head, to.token_stride = p->s.rank;
    TRY(predictor_clear(d, bits, 1, CHUNK_BLOCKS, NULL, count, stream));
    TRY(project_keys(p, d, layer, &from, chunk, bits, CHUNK_BLOCKS, stream));
    TRY(summarise(p, d, layer, &to, bits, stream));
  }
  return TIDE_OK;
}

static tide_status store(tide_predictor *p, dev *d, int32_t layer, const key_blocks *k, void *stream) {
  if (k->n == 0 || p->s.no_predict) return TIDE_OK;
  int64_t pool = (int64_t)layer * p->s.n_blocks, block = (int64_t)p->s.n_kv_heads * p->entries * p->s.rank;
  if (p->s.summary == TIDE_SUMMARY_TOKENS)
    return project_keys(p, d, layer, k, predictor_at(p, PART_VECTORS, pool * block), predictor_at(p, PART_WRITTEN, pool),
                        p->s.n_blocks, stream);
  if (p->parts[PART_CHUNK]) return summarise_projected(p, d, layer, k, stream);
  return summarise(p, d, layer, k, NULL, stream);
}

/* A run of tokens or a paged pool, as blocks; an unfinished last block of a run does not count. */
static tide_status keys_of(const tide_predictor *p, dev *d, const char *what, const tide_view *in, bool may_be_paged,
                           key_blocks *out) {
  bool paged = may_be_paged && in && in->n_dims == 4;
  view_want run = {d, PLAIN_FLOATS, 3, {ANY_EXTENT, p->s.n_kv_heads, p->s.head_dim}, 1, "n_kv_heads and head_dim"};
  view_want pool = {d, PLAIN_FLOATS, 4, {ANY_EXTENT, p->s.block_size, p->s.n_kv_heads, p->s.head_dim}, 1,
                    "block_size, n_kv_heads and head_dim"};
  tide_view v;
  TRY(view_require(p->ctx, what, in, paged ? &pool : &run, &v));
  int64_t n = paged ? v.shape[0] : v.shape[0] / p->s.block_size;
  if (n > INT32_MAX) return tide_fail(p->ctx, TIDE_ERANGE, "%s: too many blocks (got %lld, want below 2^31)", what, (long long)n);
  *out = (key_blocks){.data = v.data, .dtype = v.dtype, .n_pool = (int32_t)n, .n = (int32_t)n,
                      .block_stride = paged ? v.stride[0] : v.stride[0] * p->s.block_size,
                      .token_stride = paged ? v.stride[1] : v.stride[0], .head_stride = paged ? v.stride[2] : v.stride[1]};
  return TIDE_OK;
}

/* Blocks first .. first + n - 1 must exist: ids that only the device knows are left out, these are refused. */
static tide_status check_run(const tide_predictor *p, const char *what, int64_t first, int64_t n) {
  if (first >= 0 && first + n <= p->s.n_blocks) return TIDE_OK;
  return tide_fail(p->ctx, TIDE_ERANGE, "%s: the blocks do not fit (got %lld..%lld, want within 0..%d); set by n_blocks", what,
                   (long long)first, (long long)(first + n - 1), p->s.n_blocks - 1);
}

tide_status tide_predictor_write(tide_predictor *p, int32_t layer, const tide_view *k, const tide_view *src,
                                 const tide_view *dst, int32_t first_block, void *stream) {
  dev *d;
  key_blocks keys;
  int64_t n = 0;
  TRY(open_device(p, &d));
  TRY(check_layer(p, layer, 0));
  TRY(keys_of(p, d, "write: k", k, true, &keys));
  n = keys.n;
  TRY(id_list(p, d, "write: src", src, ANY_EXTENT, &keys.src, &n));
  TRY(id_list(p, d, "write: dst", dst, src ? n : ANY_EXTENT, &keys.dst, &n));
  if (!src && n > keys.n_pool)
    return tide_fail(p->ctx, TIDE_ESHAPE, "write: dst names more blocks than k holds (got %lld, want at most %d of block_size %d)",
                     (long long)n, keys.n_pool, p->s.block_size);
  if (!dst) TRY(check_run(p, "write: first_block", first_block, n));
  keys.n = (int32_t)n;
  keys.first = first_block;
  return store(p, d, layer, &keys, stream);
}

/* ---- keys that arrive in pieces ---- */

/* Rows from .. from + n - 1 of the piece become tokens at .. at + n - 1 of the layer's staged block. */
static tide_status stage(tide_predictor *p, dev *d, int32_t layer, const key_blocks *k, int64_t from, int64_t at, int64_t n,
                         void *stream) {
  int64_t token = (int64_t)p->s.n_kv_heads * p->s.head_dim;
  tide_view src = {.data = (void *)(uintptr_t)(k->data + from * k->token_stride * dtype_bytes(k->dtype)), .dtype = k->dtype,
                   .n_dims = 3, .shape = {n, p->s.n_kv_heads, p->s.head_dim}, .stride = {k->token_stride, k->head_stride, 1}};
  tide_view dst = src;
  dst.data = (char *)predictor_at(p, PART_STAGING, layer * p->s.block_size * token) + at * token * dtype_bytes(k->dtype);
  dst.stride[0] = token;
  dst.stride[1] = p->s.head_dim;
  return n > 0 ? view_copy(d, &dst, &src, stream) : TIDE_OK;
}

static tide_status check_piece(const tide_predictor *p, const predictor_sequence *seq, int64_t first_token, int64_t n,
                               const key_blocks *k, const int32_t *table, int64_t n_table) {
  if (first_token != 0 && first_token != seq->n_tokens)
    return tide_fail(p->ctx, TIDE_ESTATE, "append: the piece does not follow the last one (got first_token %lld, want %lld, or "
                     "0 to start anew)", (long long)first_token, (long long)seq->n_tokens);
  int64_t n_complete = (first_token + n) / p->s.block_size;
  if (first_token % p->s.block_size && k->dtype != seq->staged_dtype)
    return tide_fail(p->ctx, TIDE_EDTYPE, "append: k changes its dtype within a block (got %s, want %s)", dtype_name(k->dtype),
                     dtype_name(seq->staged_dtype));
  if (table && n_complete > n_table)
    return tide_fail(p->ctx, TIDE_ESHAPE, "append: table is too short (got %lld blocks, want %lld for %lld tokens)",
                     (long long)n_table, (long long)n_complete, (long long)(first_token + n));
  return table ? TIDE_OK : check_run(p, "append: k", 0, n_complete);
}

/* Completes the staged block with the first n rows and stores it. */
static tide_status store_staged(tide_predictor *p, dev *d, int32_t layer, const key_blocks *k, int64_t staged, int64_t n,
                                const int32_t *dst, int32_t first, void *stream) {
  int64_t token = (int64_t)p->s.n_kv_heads * p->s.head_dim;
  key_blocks block = {.data = predictor_at(p, PART_STAGING, layer * p->s.block_size * token), .dtype = k->dtype, .n_pool = 1,
                      .block_stride = token * p->s.block_size, .token_stride = token, .head_stride = p->s.head_dim,
                      .dst = dst, .n = 1, .first = first};
  TRY(stage(p, d, layer, k, 0, staged, n, stream));
  return store(p, d, layer, &block, stream);
}

tide_status tide_predictor_append(tide_predictor *p, int32_t layer, int64_t first_token, const tide_view *k,
                                  const tide_view *table, void *stream) {
  dev *d;
  key_blocks piece;
  const int32_t *ids;
  int64_t n_table = 0;
  TRY(open_device(p, &d));
  TRY(check_layer(p, layer, 0));
  TRY(keys_of(p, d, "append: k", k, false, &piece));
  TRY(id_list(p, d, "append: table", table, ANY_EXTENT, &ids, &n_table));
  predictor_sequence *seq = &p->sequences[layer];
  int64_t n = k->shape[0], size = p->s.block_size;
  TRY(check_piece(p, seq, first_token, n, &piece, ids, n_table));
  int64_t staged = first_token % size, block = first_token / size, done = 0;
  if (!p->s.no_predict) {
    if (staged && staged + n >= size) {
      done = size - staged;
      TRY(store_staged(p, d, layer, &piece, staged, done, ids ? ids + block : NULL, (int32_t)block, stream));
      staged = 0;
      block++;
    }
    key_blocks whole = piece;
    if (staged == 0) {
      whole.data += done * piece.token_stride * dtype_bytes(piece.dtype);
      whole.n = whole.n_pool = (int32_t)((n - done) / size);
      whole.dst = ids ? ids + block : NULL;
      whole.first = (int32_t)block;
      TRY(store(p, d, layer, &whole, stream));
      done += whole.n * size;
    }
    TRY(stage(p, d, layer, &piece, done, staged, n - done, stream));
  }
  *seq = (predictor_sequence){.n_tokens = first_token + n, .staged_dtype = piece.dtype};
  return TIDE_OK;
}

tide_status tide_predictor_forget(tide_predictor *p, int32_t layer, const tide_view *blocks, void *stream) {
  dev *d;
  const int32_t *ids;
  TRY(open_device(p, &d));
  TRY(check_layer(p, layer, -1));
  int64_t n = p->s.n_blocks;
  TRY(id_list(p, d, "forget: blocks", blocks, ANY_EXTENT, &ids, &n));
  if (n == 0 || p->s.no_predict) return TIDE_OK;
  int32_t first = layer < 0 ? 0 : layer, n_layers = layer < 0 ? p->s.n_layers : 1;
  return predictor_clear(d, predictor_at(p, PART_WRITTEN, (int64_t)first * p->s.n_blocks), n_layers, p->s.n_blocks, ids,
                         (int32_t)n, stream);
}

/* ---- queries ---- */

/* Rows of queries: [n_rows, n_q_heads, head_dim], or one row without its first dimension. */
static tide_status queries_of(const tide_predictor *p, dev *d, const char *what, const tide_view *in, tide_view *out) {
  bool one = in && in->n_dims == 2;
  view_want row = {d, PLAIN_FLOATS, 2, {p->s.n_q_heads, p->s.head_dim}, 1, "n_q_heads and head_dim"};
  view_want rows = {d, PLAIN_FLOATS, 3, {ANY_EXTENT, p->s.n_q_heads, p->s.head_dim}, 1, "n_q_heads and head_dim"};
  TRY(view_require(p->ctx, what, in, one ? &row : &rows, out));
  if (!one) return TIDE_OK;
  *out = (tide_view){.data = out->data, .dtype = out->dtype, .n_dims = 3, .device = out->device,
                     .shape = {1, out->shape[0], out->shape[1]}, .stride = {0, out->stride[0], out->stride[1]}};
  return TIDE_OK;
}

/* Rows first .. first + n - 1 of q become rows 0 .. n - 1 of y. */
static tide_status project_rows(tide_predictor *p, dev *d, int32_t layer, const tide_view *q, int64_t first, int32_t n,
                                uint16_t *y, void *stream) {
  predictor_part_id part = p->parts[PART_Q_MAPS] ? PART_Q_MAPS : PART_K_MAPS;
  tide_lowrank_project_args args = {
      .x = (const char *)q->data + first * q->stride[0] * dtype_bytes(q->dtype), .y = y,
      .p = map_of(p, part, layer), .x_block_stride = q->stride[0],
      .x_head_stride = q->stride[1], .x_dtype = q->dtype, .n_blocks = n, .block_size = 1, .n_heads = p->s.n_q_heads,
      .n_maps = p->n_maps, .head_dim = p->s.head_dim, .rank = p->s.rank, .n_x_blocks = n, .n_y_blocks = n};
  return kernel_launch_on(d, &kernel_lowrank_project, NULL, &args, stream);
}

tide_status tide_predictor_project(tide_predictor *p, int32_t layer, const tide_view *q, const tide_view *out, void *stream) {
  dev *d;
  tide_view rows, y;
  TRY(open_device(p, &d));
  TRY(check_layer(p, layer, 0));
  TRY(queries_of(p, d, "project: q", q, &rows));
  view_want want = {d, 1 << TIDE_BF16, 3, {rows.shape[0], p->s.n_q_heads, p->s.rank}, 3, "rank"};
  if (q->n_dims == 2) want = (view_want){d, 1 << TIDE_BF16, 2, {p->s.n_q_heads, p->s.rank}, 2, "rank"};
  TRY(view_require(p->ctx, "project: out", out, &want, &y));
  TRY(view_apart(p->ctx, d, "project: out", &y, "q", &rows));
  return rows.shape[0] ? project_rows(p, d, layer, &rows, 0, (int32_t)rows.shape[0], y.data, stream) : TIDE_OK;
}

/* What to score, in the words of the kernel: blocks, lengths, first_block, n_blocks and their strides. */
static tide_status request_of(const tide_predictor *p, dev *d, const tide_score_request *r, int64_t n_rows,
                              tide_score_blocks_args *out) {
  tide_view v;
  int64_t n = (int64_t)p->s.n_blocks - (r ? r->first : 0), n_lengths;
  if (r && !r->blocks && (r->first < 0 || r->count < 0 || r->count > n || n < 0))
    return tide_fail(p->ctx, TIDE_ERANGE, "score: first and count leave the pool (got %d and %d, want within %d blocks); set by "
                     "n_blocks", r->first, r->count, p->s.n_blocks);
  if (r && !r->blocks && r->count) n = r->count;
  out->first_block = r ? r->first : 0;
  if (r && r->blocks) {
    bool one = r->blocks->n_dims == 1;
    view_want list = {d, 1 << TIDE_I32, 1, {ANY_EXTENT}, 1, NULL};
    view_want lists = {d, 1 << TIDE_I32, 2, {n_rows, ANY_EXTENT}, 1, "the rows of q"};
    TRY(view_require(p->ctx, "score: blocks", r->blocks, one ? &list : &lists, &v));
    out->blocks = v.data;
    out->blocks_stride = one ? 0 : v.stride[0];
    out->first_block = 0;
    n = v.shape[one ? 0 : 1];
  }
  if (n > p->s.n_blocks)
    return tide_fail(p->ctx, TIDE_ESHAPE, "score: blocks lists more than the pool has (got %lld, want at most %d); set by n_blocks",
                     (long long)n, p->s.n_blocks);
  out->n_blocks = (int32_t)n;
  return r ? id_list(p, d, "score: lengths", r->lengths, n_rows, &out->lengths, &n_lengths) : TIDE_OK;
}

static tide_status scores_of(const tide_predictor *p, dev *d, const tide_view *in, bool one_row, int64_t n_rows, int64_t n,
                             tide_view *out) {
  view_want row = {d, 1 << TIDE_F32, 1, {n}, 1, "the blocks scored"};
  view_want rows = {d, 1 << TIDE_F32, 2, {n_rows, n}, 1, "the rows of q and the blocks scored"};
  return view_require(p->ctx, "score: scores", in, one_row ? &row : &rows, out);
}

/* At most max_rows rows: projected, then compared. */
static tide_status score_rows(tide_predictor *p, dev *d, int32_t layer, const tide_view *q, int64_t first, int32_t n,
                              tide_score_blocks_args args, void *stream) {
  uint16_t *rows = predictor_at(p, PART_QUERIES, 0);
  args.q = rows;
  args.n_rows = n;
  args.scores += first * args.scores_stride;
  if (args.blocks) args.blocks += first * args.blocks_stride;
  if (args.lengths) args.lengths += first;
  TRY(project_rows(p, d, layer, q, first, n, rows, stream));
  return kernel_launch_on(d, &kernel_score_blocks, NULL, &args, stream);
}

tide_status tide_predictor_score(tide_predictor *p, int32_t layer, const tide_view *q, const tide_score_request *request,
                                 const tide_view *scores, void *stream) {
  dev *d;
  tide_view rows, out;
  tide_score_blocks_args args = {0};
  TRY(open_device(p, &d));
  TRY(check_layer(p, layer, 0));
  TRY(queries_of(p, d, "score: q", q, &rows));
  TRY(request_of(p, d, request, rows.shape[0], &args));
  TRY(scores_of(p, d, scores, q->n_dims == 2, rows.shape[0], args.n_blocks, &out));
  TRY(view_apart(p->ctx, d, "score: scores", &out, "q", &rows));
  int64_t n_rows = rows.shape[0], pool = (int64_t)layer * p->s.n_blocks;
  if (n_rows == 0 || args.n_blocks == 0) return TIDE_OK;
  if (p->s.no_predict) return view_fill(d, &out, -INFINITY, stream);
  bool random = p->s.projection == TIDE_PROJECTION_RANDOM;
  args.keys = predictor_at(p, PART_VECTORS, pool * p->s.n_kv_heads * p->entries * p->s.rank);
  args.written = predictor_at(p, PART_WRITTEN, pool);
  args.scores = out.data;
  args.scores_stride = out.n_dims == 2 ? out.stride[0] : 0;
  args.scratch = predictor_at(p, PART_SCRATCH, 0);
  args.scale = (float)(p->s.softmax_scale * (random ? (double)p->s.head_dim / p->s.rank : 1));
  args.n_q_heads = p->s.n_q_heads;
  args.n_kv_heads = p->s.n_kv_heads;
  args.rank = p->s.rank;
  args.n_entries = p->entries;
  args.n_pool = p->s.n_blocks;
  args.minmax = p->s.summary == TIDE_SUMMARY_MINMAX;
  args.mass = p->s.aggregate == TIDE_AGGREGATE_MASS;
  for (int64_t first = 0; first < n_rows; first += p->s.max_rows) {
    int64_t left = n_rows - first;
    TRY(score_rows(p, d, layer, &rows, first, left < p->s.max_rows ? (int32_t)left : p->s.max_rows, args, stream));
  }
  return TIDE_OK;
}

/* ---- for people ---- */

tide_status tide_predictor_slot(tide_predictor *p, int32_t layer, int32_t block, tide_view *out, int32_t *written) {
  dev *d;
  TRY(open_device(p, &d));
  TRY(check_layer(p, layer, 0));
  if (!out) return tide_fail(p->ctx, TIDE_EINVAL, "slot: out is required");
  TRY(check_run(p, "slot: block", block, 1));
  if (p->s.no_predict) return tide_fail(p->ctx, TIDE_ESTATE, "slot: this predictor records nothing; set by no_predict");
  uint8_t bit = 0;
  int64_t at = (int64_t)layer * p->s.n_blocks + block, vectors = (int64_t)p->s.n_kv_heads * p->entries * p->s.rank;
  if (written) {
    TRY(d->ops->sync(d, NULL, true));
    TRY(d->ops->copy(d, COPY_TO_HOST, &bit, predictor_at(p, PART_WRITTEN, at), 1, NULL, NULL));
    TRY(d->ops->sync(d, NULL, false));
    *written = bit;
  }
  *out = tide_view_of(TIDE_BF16, predictor_at(p, PART_VECTORS, at * vectors), 3,
                      (int64_t[]){p->s.n_kv_heads, p->entries, p->s.rank});
  out->device = d->id;
  out->stride[0] = (int64_t)p->entries * p->s.rank;
  out->stride[1] = p->s.rank;
  out->stride[2] = 1;
  return TIDE_OK;
}
