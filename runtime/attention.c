/* attention.c: attention over blocks, and gathering rows: from views to the kernels' arguments. */
#include <limits.h>
#include <math.h>
#include "view.h"
#include "../kernels/attend.h"
#include "../kernels/gather.h"

/* Keys or values as a pool of blocks. */
typedef struct kv_pool {
  tide_view view;
  bool paged;
  int64_t n_tokens, n_blocks, block_stride, token_stride, head_stride;
} kv_pool;

static tide_status pool_of(tide_ctx *ctx, const dev *d, const char *what, const tide_view *in, const tide_attend_io *io,
                           kv_pool *out) {
  int64_t head_dim = io->q.shape[io->q.n_dims - 1], size = io->block_size ? io->block_size : 16;
  bool paged = in->n_dims == 4;
  view_want run = {d, ALL_FLOATS, 3, {ANY_EXTENT, ANY_EXTENT, head_dim}, 1, "the head_dim of q"};
  view_want pool = {d, ALL_FLOATS, 4, {ANY_EXTENT, io->block_size ? size : ANY_EXTENT, ANY_EXTENT, head_dim}, 1,
                    "block_size and the head_dim of q"};
  TRY(view_require(ctx, what, in, paged ? &pool : &run, &out->view));
  const tide_view *v = &out->view;
  if (paged) size = v->shape[1];
  if (size < 1) return tide_fail(ctx, TIDE_EINVAL, "%s: block_size must be 1 or more (got %lld)", what, (long long)size);
  out->paged = paged;
  out->n_tokens = paged ? v->shape[0] * size : v->shape[0];
  out->n_blocks = paged ? v->shape[0] : (v->shape[0] + size - 1) / size;
  out->block_stride = paged ? v->stride[0] : v->stride[0] * size;
  out->token_stride = v->stride[paged ? 1 : 0];
  out->head_stride = v->stride[paged ? 2 : 1];
  if (out->n_tokens > INT32_MAX)
    return tide_fail(ctx, TIDE_ERANGE, "%s: too many tokens (got %lld, want below 2^31)", what, (long long)out->n_tokens);
  return TIDE_OK;
}

/* q, k and v into the arguments; v may be missing (dtype 0) where only weights are wanted. */
static tide_status set_operands(tide_ctx *ctx, const tide_attend_io *io, tide_attend_args *a, dev **d) {
  tide_view q;
  kv_pool k, v;
  char one[160], other[160];
  TRY(ctx_device(ctx, io->q.device, d));
  TRY(view_require(ctx, "attend: q", &io->q, &(view_want){*d, PLAIN_FLOATS, 3, {ANY_EXTENT, ANY_EXTENT, ANY_EXTENT}, 1, NULL}, &q));
  TRY(pool_of(ctx, *d, "attend: k", &io->k, io, &k));
  v = k;
  if (io->v.dtype || io->out) TRY(pool_of(ctx, *d, "attend: v", &io->v, io, &v));
  bool same = v.view.dtype == k.view.dtype && v.view.n_dims == k.view.n_dims;
  for (int i = 0; same && i < k.view.n_dims; i++) same = v.view.shape[i] == k.view.shape[i];
  if (!same)
    return tide_fail(ctx, TIDE_ESHAPE, "attend: v differs from k (got %s, want %s)", view_text(&v.view, one),
                     view_text(&k.view, other));
  if (q.shape[0] > INT32_MAX) return tide_fail(ctx, TIDE_ERANGE, "attend: too many rows (got %lld)", (long long)q.shape[0]);
  *a = (tide_attend_args){
      .q = q.data, .k = k.view.data, .v = v.view.data, .q_row_stride = q.stride[0], .q_head_stride = q.stride[1],
      .k_block_stride = k.block_stride, .k_token_stride = k.token_stride, .k_head_stride = k.head_stride,
      .v_block_stride = v.block_stride, .v_token_stride = v.token_stride, .v_head_stride = v.head_stride,
      .q_dtype = q.dtype, .kv_dtype = k.view.dtype, .n_rows = (int32_t)q.shape[0], .n_q_heads = (int32_t)q.shape[1],
      .n_kv_heads = (int32_t)k.view.shape[k.paged ? 2 : 1], .head_dim = (int32_t)q.shape[2], .n_pool = (int32_t)k.n_blocks,
      .n_blocks = (int32_t)k.n_blocks, .n_tokens = (int32_t)k.n_tokens,
      .block_size = k.paged ? (int32_t)k.view.shape[1] : io->block_size ? io->block_size : 16};
  return TIDE_OK;
}

/* i32 [n] for all rows or [n_rows, n]: its data, its row stride (0: one list), its n. */
static tide_status list_of(tide_ctx *ctx, const dev *d, const char *what, const tide_view *in, int64_t n_rows,
                           const int32_t **data, int64_t *stride, int32_t *n) {
  bool one = in->n_dims == 1;
  tide_view v;
  view_want list = {d, 1 << TIDE_I32, 1, {ANY_EXTENT}, 1, NULL};
  view_want lists = {d, 1 << TIDE_I32, 2, {n_rows, ANY_EXTENT}, 1, "the rows of q"};
  TRY(view_require(ctx, what, in, one ? &list : &lists, &v));
  if (v.shape[v.n_dims - 1] > INT32_MAX) return tide_fail(ctx, TIDE_ERANGE, "%s: too long", what);
  *data = v.data;
  *stride = one ? 0 : v.stride[0];
  *n = (int32_t)v.shape[v.n_dims - 1];
  return TIDE_OK;
}

static tide_status set_lists(tide_ctx *ctx, const tide_attend_io *io, const dev *d, tide_attend_args *a) {
  tide_view v;
  if (io->table) {
    if (io->k.n_dims != 4)
      return tide_fail(ctx, TIDE_ESHAPE, "attend: table needs a paged k (got %d dimensions, want [n_pool, block_size, n_kv_heads, "
                       "head_dim])", io->k.n_dims);
    TRY(list_of(ctx, d, "attend: table", io->table, a->n_rows, &a->table, &a->table_stride, &a->n_blocks));
    if ((int64_t)a->n_blocks * a->block_size > INT32_MAX)
      return tide_fail(ctx, TIDE_ERANGE, "attend: table names too many tokens (got %d blocks of %d, want below 2^31 tokens)",
                       a->n_blocks, a->block_size);
    a->n_tokens = a->n_blocks * a->block_size;
  }
  if (io->blocks) TRY(list_of(ctx, d, "attend: blocks", io->blocks, a->n_rows, &a->list, &a->list_stride, &a->n_list));
  a->first_position = io->first_position;
  if (!io->positions) return TIDE_OK;
  TRY(view_require(ctx, "attend: positions", io->positions,
                   &(view_want){d, 1 << TIDE_I32, 1, {a->n_rows}, 1, "the rows of q"}, &v));
  a->positions = v.data;
  return TIDE_OK;
}

static tide_status output_of(tide_ctx *ctx, const dev *d, const char *what, const tide_view *in, view_want want, float **out) {
  tide_view v;
  want.device = d;
  want.dtypes = 1 << TIDE_F32;
  want.n_packed = want.n_dims;
  if (!in) return TIDE_OK;
  TRY(view_require(ctx, what, in, &want, &v));
  *out = v.data;
  return TIDE_OK;
}

static tide_status set_outputs(tide_ctx *ctx, const tide_attend_io *io, const dev *d, tide_attend_args *a) {
  TRY(output_of(ctx, d, "attend: out", io->out,
                (view_want){.n_dims = 3, .shape = {a->n_rows, a->n_q_heads, a->head_dim}, .setting = "q"}, &a->out));
  TRY(output_of(ctx, d, "attend: lse", io->lse,
                (view_want){.n_dims = 2, .shape = {a->n_rows, a->n_q_heads}, .setting = "q"}, &a->lse));
  TRY(output_of(ctx, d, "attend: mass", io->mass,
                (view_want){.n_dims = 2, .shape = {a->n_rows, a->n_blocks}, .setting = "q and the blocks of k"}, &a->mass));
  if (a->mass && !a->lse)
    return tide_fail(ctx, TIDE_EINVAL, "attend: mass needs lse (got NULL, want f32 [%d, %d])", a->n_rows, a->n_q_heads);
  return TIDE_OK;
}

/* No output may share memory with an input or with another output. */
static tide_status check_apart(tide_ctx *ctx, const tide_attend_io *io, const dev *d) {
  static const char *const names[] = {"attend: out", "attend: lse", "attend: mass", "q", "k", "v", "table", "positions", "blocks"};
  const tide_view *given[] = {io->out, io->lse, io->mass, &io->q, &io->k, io->v.dtype ? &io->v : NULL, io->table,
                              io->positions, io->blocks};
  tide_view views[COUNT_OF(given)];
  for (int i = 0; i < COUNT_OF(given); i++)
    if (given[i]) TRY(view_resolve(ctx, names[i], given[i], &views[i]));
  for (int out = 0; out < 3; out++)
    for (int i = out + 1; given[out] && i < COUNT_OF(given); i++)
      if (given[i]) TRY(view_apart(ctx, d, names[out], &views[out], names[i], &views[i]));
  return TIDE_OK;
}

static tide_status factor(tide_ctx *ctx, const char *what, double given, double standard, double *out) {
  *out = given == 0 ? standard : given;
  return isfinite(given) ? TIDE_OK : tide_fail(ctx, TIDE_EINVAL, "attend: %s must be finite (got %g)", what, given);
}

tide_status tide_attend(tide_ctx *ctx, const tide_attend_io *io, void *stream) {
  tide_attend_args a;
  dev *d;
  double scale, k_scale, v_scale;
  if (!io) return tide_fail(ctx, TIDE_EINVAL, "attend: io is required");
  if (io->q.n_dims != 3) return tide_fail(ctx, TIDE_ESHAPE, "attend: q: wrong shape (got %d dimensions, want [n_rows, n_q_heads, "
                                          "head_dim])", io->q.n_dims);
  TRY(set_operands(ctx, io, &a, &d));
  TRY(set_lists(ctx, io, d, &a));
  TRY(set_outputs(ctx, io, d, &a));
  TRY(check_apart(ctx, io, d));
  TRY(factor(ctx, "softmax_scale", io->softmax_scale, 1 / sqrt(a.head_dim > 0 ? a.head_dim : 1), &scale));
  TRY(factor(ctx, "k_scale", io->k_scale, 1, &k_scale));
  TRY(factor(ctx, "v_scale", io->v_scale, 1, &v_scale));
  a.scale = (float)(scale * k_scale);
  a.v_scale = (float)v_scale;
  return kernel_launch_on(d, &kernel_attend, NULL, &a, stream);
}

tide_status tide_gather(tide_ctx *ctx, const tide_view *dst, const tide_view *src, const tide_view *ids, void *stream) {
  tide_view from, to, list;
  dev *d;
  TRY(view_resolve(ctx, "gather: src", src, &from));
  TRY(ctx_device(ctx, from.device, &d));
  if (from.n_dims < 1) return tide_fail(ctx, TIDE_ESHAPE, "gather: src has no rows (got a scalar, want 1 dimension or more)");
  view_want rows = {d, 1u << from.dtype, from.n_dims, {0}, from.n_dims - 1, "src"};
  memcpy(rows.shape, from.shape, sizeof rows.shape);
  TRY(view_require(ctx, "gather: src", src, &rows, &from));
  TRY(view_require(ctx, "gather: ids", ids, &(view_want){d, 1 << TIDE_I32, 1, {ANY_EXTENT}, 1, NULL}, &list));
  rows.shape[0] = list.shape[0];
  rows.setting = "ids and the rows of src";
  TRY(view_require(ctx, "gather: dst", dst, &rows, &to));
  TRY(view_apart(ctx, d, "gather: dst", &to, "src", &from));
  TRY(view_apart(ctx, d, "gather: dst", &to, "ids", &list));
  if (list.shape[0] > INT32_MAX || from.shape[0] > INT32_MAX)
    return tide_fail(ctx, TIDE_ERANGE, "gather: too many rows (got %lld ids and %lld rows, want below 2^31)",
                     (long long)list.shape[0], (long long)from.shape[0]);
  int64_t bytes = dtype_bytes(from.dtype), row_bytes = bytes;
  for (int i = 1; i < from.n_dims; i++) row_bytes *= from.shape[i];
  tide_gather_args args = {.dst = to.data, .src = from.data, .ids = list.data, .dst_stride = to.stride[0] * bytes,
                           .src_stride = from.stride[0] * bytes, .row_bytes = row_bytes, .n = (int32_t)list.shape[0],
                           .n_src = (int32_t)from.shape[0]};
  return kernel_launch_on(d, &kernel_gather, NULL, &args, stream);
}
