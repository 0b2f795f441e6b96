/* calibrate.c: maps for calibrated predictors, from keys (and queries) of a model.
 *
 *   S_k = E[(k - mu)(k - mu)^T]            mu = E[k] when centred, else 0
 *   plain:        k_map = q_map = U,       U = the rank first eigenvectors of S_k
 *   query-aware:  S_q = E[q q^T] + 1e-4 I = L L^T,  U those of L^T S_k L,  k_map = L U,  q_map = L^-T U
 *
 * All of it in f64 with an eigensolver of our own: a LAPACK would be a dependency, and its answer changes from one machine
 * to the next, while a map has to be the same file everywhere. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "view.h"
#include "../kernels/numeric.h"

/* Texts of one kind: views [n_i, n_heads, dim] of the host. */
typedef struct texts {
  const tide_view *views;
  int32_t n, n_heads, dim;
  int64_t n_rows;
} texts;

/* Matrices are [dim, dim], row-major. */
typedef struct work {
  double *s_k, *l, *a, *v, *x, *mean;
  int32_t order[256];
} work;

/* ---- moments ---- */

static void load_row(const tide_view *v, int64_t row, int64_t head, double *x) {
  int64_t at = row * v->stride[0] + head * v->stride[1];
  for (int64_t d = 0; d < v->shape[2]; d++) x[d] = (double)load_f32(v->data, v->dtype, at + d);
}

static void mean_of(const texts *t, int32_t head, double *x, double *mean) {
  for (int32_t d = 0; d < t->dim; d++) mean[d] = 0;
  for (int32_t i = 0; i < t->n; i++)
    for (int64_t row = 0; row < t->views[i].shape[0]; row++) {
      load_row(&t->views[i], row, head, x);
      for (int32_t d = 0; d < t->dim; d++) mean[d] += x[d];
    }
  for (int32_t d = 0; d < t->dim; d++) mean[d] /= (double)t->n_rows;
}

static void add_outer(const double *x, int32_t dim, double *s) {
  for (int32_t i = 0; i < dim; i++)
    for (int32_t j = 0; j <= i; j++) s[i * dim + j] += x[i] * x[j];
}

/* E[(x - mean)(x - mean)^T] over the rows of n_heads heads; mean NULL: 0. */
static void second_moment(const texts *t, int32_t first_head, int32_t n_heads, const double *mean, double *x, double *s) {
  int32_t dim = t->dim;
  double n = (double)t->n_rows * n_heads;
  for (int32_t i = 0; i < dim * dim; i++) s[i] = 0;
  for (int32_t i = 0; i < t->n; i++)
    for (int64_t row = 0; row < t->views[i].shape[0]; row++)
      for (int32_t head = first_head; head < first_head + n_heads; head++) {
        load_row(&t->views[i], row, head, x);
        for (int32_t d = 0; mean && d < dim; d++) x[d] -= mean[d];
        add_outer(x, dim, s);
      }
  for (int32_t i = 0; i < dim; i++)
    for (int32_t j = 0; j <= i; j++) s[i * dim + j] = s[j * dim + i] = s[i * dim + j] / n;
}

/* ---- linear algebra ---- */

/* s = L L^T of a positive definite s, in place; the upper triangle becomes 0. */
static void cholesky(double *s, int32_t n) {
  for (int32_t i = 0; i < n; i++)
    for (int32_t j = 0; j < n; j++) {
      double sum = s[i * n + j];
      for (int32_t k = 0; k < j && j <= i; k++) sum -= s[i * n + k] * s[j * n + k];
      s[i * n + j] = j > i ? 0 : j == i ? sqrt(sum) : sum / s[j * n + j];
    }
}

/* out = L^T S L, through t. */
static void conjugate(const double *l, const double *s, int32_t n, double *t, double *out) {
  for (int32_t i = 0; i < n * n; i++) t[i] = out[i] = 0;
  for (int32_t i = 0; i < n; i++)
    for (int32_t k = 0; k < n; k++)
      for (int32_t j = 0; j <= k; j++) t[i * n + j] += s[i * n + k] * l[k * n + j];
  for (int32_t k = 0; k < n; k++)
    for (int32_t i = 0; i <= k; i++)
      for (int32_t j = 0; j < n; j++) out[i * n + j] += l[k * n + i] * t[k * n + j];
}

static void rotate(double *x, double *y, int32_t n, int32_t step, double c, double s) {
  for (int32_t i = 0; i < n; i++) {
    double a = x[i * step], b = y[i * step];
    x[i * step] = c * a - s * b;
    y[i * step] = s * a + c * b;
  }
}

/* Cyclic Jacobi: row i of v becomes the eigenvector of a[i][i]. It ends when a sweep finds nothing left to turn. */
static void jacobi(double *a, double *v, int32_t n) {
  for (int32_t i = 0; i < n * n; i++) v[i] = i % (n + 1) == 0;
  bool turned = true;
  for (int sweep = 0; turned && sweep < 64; sweep++) {
    turned = false;
    for (int32_t p = 0; p < n; p++)
      for (int32_t q = p + 1; q < n; q++) {
        double apq = a[p * n + q], app = a[p * n + p], aqq = a[q * n + q];
        if (fabs(apq) <= 0x1p-52 * sqrt(fabs(app) * fabs(aqq)) || fabs(apq) < 0x1p-1000) continue;
        double theta = (aqq - app) / (2 * apq);
        double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1)), c = 1 / sqrt(t * t + 1);
        rotate(a + p * n, a + q * n, n, 1, c, t * c);
        rotate(a + p, a + q, n, n, c, t * c);
        rotate(v + p * n, v + q * n, n, 1, c, t * c);
        turned = true;
      }
  }
}

/* order := rows by eigenvalue, largest first, lower row on ties; each row of v turned so that its largest entry is positive. */
static void sort_eigenvectors(const double *a, double *v, int32_t n, int32_t *order) {
  for (int32_t i = 0; i < n; i++) {
    int32_t at = i, largest = 0;
    for (; at > 0 && a[order[at - 1] * (n + 1)] < a[i * (n + 1)]; at--) order[at] = order[at - 1];
    order[at] = i;
    for (int32_t d = 1; d < n; d++)
      if (fabs(v[i * n + d]) > fabs(v[i * n + largest])) largest = d;
    double sign = v[i * n + largest] < 0 ? -1 : 1;
    for (int32_t d = 0; d < n; d++) v[i * n + d] *= sign;
  }
}

/* y = L u */
static void lower_product(const double *l, const double *u, int32_t n, double *y) {
  for (int32_t i = 0; i < n; i++) {
    y[i] = 0;
    for (int32_t j = 0; j <= i; j++) y[i] += l[i * n + j] * u[j];
  }
}

/* L^T y = u */
static void upper_solve(const double *l, const double *u, int32_t n, double *y) {
  for (int32_t i = n - 1; i >= 0; i--) {
    y[i] = u[i];
    for (int32_t j = i + 1; j < n; j++) y[i] -= l[j * n + i] * y[j];
    y[i] /= l[i * n + i];
  }
}

/* ---- calibration ---- */

static void store_column(const double *x, int32_t n, int32_t rank, int32_t j, float *map) {
  for (int32_t d = 0; d < n; d++) map[(int64_t)d * rank + j] = (float)x[d];
}

static bool is_finite(const double *s, int32_t n) {
  for (int32_t i = 0; i < n * n; i++)
    if (!isfinite(s[i])) return false;
  return true;
}

/* The maps of one kv head, [dim, rank]. False: its keys or queries hold NaN or infinity. */
static bool calibrate_head(const tide_calibration_settings *c, const texts *k, const texts *q, int32_t head, work *w,
                           float *k_map, float *q_map) {
  int32_t n = k->dim, group = c->query_aware ? q->n_heads / k->n_heads : 0;
  if (c->centred) mean_of(k, head, w->x, w->mean);
  second_moment(k, head, 1, c->centred ? w->mean : NULL, w->x, w->s_k);
  if (c->query_aware) second_moment(q, head * group, group, NULL, w->x, w->l);
  if (!is_finite(w->s_k, n) || (c->query_aware && !is_finite(w->l, n))) return false;
  if (c->query_aware) {
    for (int32_t d = 0; d < n; d++) w->l[d * (n + 1)] += 1e-4;
    cholesky(w->l, n);
    conjugate(w->l, w->s_k, n, w->v, w->a);
  } else {
    memcpy(w->a, w->s_k, (size_t)n * (size_t)n * sizeof *w->a);
  }
  jacobi(w->a, w->v, n);
  sort_eigenvectors(w->a, w->v, n, w->order);
  for (int32_t j = 0; j < c->rank; j++) {
    const double *u = w->v + (int64_t)w->order[j] * n;
    if (c->query_aware) lower_product(w->l, u, n, w->x);
    store_column(c->query_aware ? w->x : u, n, c->rank, j, k_map);
    if (c->query_aware) upper_solve(w->l, u, n, w->x);
    store_column(c->query_aware ? w->x : u, n, c->rank, j, q_map);
  }
  return true;
}

/* All texts share heads and width, lie on the host, and hold at least one row. */
static tide_status texts_of(tide_ctx *ctx, const char *what, const tide_view *in, int32_t n, int32_t dim, tide_view *views,
                            texts *out) {
  char name[32];
  dev *host;
  TRY(ctx_device(ctx, TIDE_DEVICE_HOST, &host));
  *out = (texts){.views = views, .n = n};
  for (int32_t i = 0; i < n; i++) {
    view_want want = {host, PLAIN_FLOATS, 3, {ANY_EXTENT, i ? out->n_heads : ANY_EXTENT, i ? out->dim : dim}, 1,
                      i ? "the first text" : dim == ANY_EXTENT ? NULL : "k"};
    snprintf(name, sizeof name, "calibrate: %s[%d]", what, i);
    TRY(view_require(ctx, name, &in[i], &want, &views[i]));
    if (views[i].shape[1] < 1 || views[i].shape[1] > INT16_MAX || views[i].shape[2] < 1 || views[i].shape[2] > 256)
      return tide_fail(ctx, TIDE_ESHAPE, "%s: out of range (got %lld heads of %lld, want heads of 1..256)", name,
                       (long long)views[i].shape[1], (long long)views[i].shape[2]);
    out->n_heads = (int32_t)views[i].shape[1];
    out->dim = (int32_t)views[i].shape[2];
    out->n_rows += views[i].shape[0];
  }
  return out->n_rows > 0 ? TIDE_OK : tide_fail(ctx, TIDE_EINVAL, "calibrate: %s holds no rows (got 0, want 1 or more)", what);
}

static tide_status check_settings(tide_ctx *ctx, const tide_calibration_settings *c, const texts *k, const texts *q) {
  if (c->rank < 1 || c->rank > 128 || c->rank > k->dim)
    return tide_fail(ctx, TIDE_EINVAL, "calibrate: rank out of range (got %d, want 1..%d for head_dim %d)", c->rank,
                     k->dim < 128 ? k->dim : 128, k->dim);
  if (c->query_aware && q->n_heads % k->n_heads)
    return tide_fail(ctx, TIDE_ESHAPE, "calibrate: n_q_heads of q must be a multiple of n_kv_heads of k (got %d and %d)",
                     q->n_heads, k->n_heads);
  return TIDE_OK;
}

/* Results stand behind the matrices until every head has succeeded. */
static tide_status calibrate(tide_ctx *ctx, const tide_calibration_settings *c, const texts *k, const texts *q, double *memory,
                             float *k_map, float *q_map, float *k_mean) {
  int64_t n = k->dim, square = n * n, one = n * c->rank, maps = k->n_heads * one;
  work w = {.s_k = memory, .l = memory + square, .a = memory + 2 * square, .v = memory + 3 * square,
            .x = memory + 4 * square, .mean = memory + 4 * square + n};
  float *k_out = (float *)(memory + 4 * square + 2 * n), *q_out = k_out + maps, *mean_out = q_out + maps;
  for (int64_t i = 0; i < n; i++) w.mean[i] = 0;
  for (int32_t head = 0; head < k->n_heads; head++) {
    if (!calibrate_head(c, k, q, head, &w, k_out + head * one, q_out + head * one))
      return tide_fail(ctx, TIDE_EINVAL, "calibrate: keys or queries of kv head %d hold NaN or infinity", head);
    store_column(w.mean, k->dim, 1, 0, mean_out + head * n);
  }
  memcpy(k_map, k_out, (size_t)maps * sizeof *k_map);
  if (q_map) memcpy(q_map, q_out, (size_t)maps * sizeof *q_map);
  if (k_mean) memcpy(k_mean, mean_out, (size_t)(k->n_heads * n) * sizeof *k_mean);
  return TIDE_OK;
}

tide_status tide_calibrate(tide_ctx *ctx, const tide_calibration_settings *settings, const tide_view *k, const tide_view *q,
                           int32_t n, float *k_map, float *q_map, float *k_mean) {
  tide_calibration_settings c = settings ? *settings : (tide_calibration_settings){0};
  texts keys, queries = {0};
  int32_t line;
  if (c.rank == 0) c.rank = 32;
  if (n < 1 || !k || !k_map || (c.query_aware && (!q || !q_map)) || (c.centred && !k_mean))
    return tide_fail(ctx, TIDE_EINVAL, "calibrate: n texts of k, and k_map, are required; q and q_map when query_aware; k_mean "
                     "when centred (got n %d)", n);
  tide_view *views = calloc((size_t)n * 2, sizeof *views);
  if (!views) return tide_fail(ctx, TIDE_EMEM, "calibrate: out of memory");
  tide_status status = texts_of(ctx, "k", k, n, ANY_EXTENT, views, &keys);
  if (!status && c.query_aware) status = texts_of(ctx, "q", q, n, keys.dim, views + n, &queries);
  if (!status) status = check_settings(ctx, &c, &keys, &queries);
  int64_t dim = status ? 0 : keys.dim, heads = status ? 0 : keys.n_heads;
  int64_t bytes = (4 * dim * dim + 2 * dim) * 8 + heads * dim * (2 * c.rank + 1) * 4;
  if (!status) status = mem_reserve(ctx, TIDE_DEVICE_HOST, bytes, "calibration", "head_dim", &line);
  if (!status) {
    double *memory = malloc((size_t)bytes);
    status = memory ? calibrate(ctx, &c, &keys, &queries, memory, k_map, q_map, k_mean)
                    : tide_fail(ctx, TIDE_EMEM, "calibrate: the allocator refused %lld bytes", (long long)bytes);
    free(memory);
    mem_release(ctx, line, bytes);
  }
  free(views);
  return status;
}
