/* tide.h: the KV cache of a language model as a C library.
 *
 * The whole public interface; page one (contexts, buffers, predictors, policies) suffices for most users.
 * Without the lines that start with '#' this text is also what LuaJIT's ffi.cdef reads, so there is one list of
 * names and no binding to keep in step. C++ includes tide.hpp.
 *
 * Conventions
 *   status     functions return a tide_status, 0 is success; on failure no output is touched and
 *              tide_errmsg(ctx) says what, why, got, wanted, and the setting to change.
 *   settings   structs whose zero means the documented default. Strings are copied.
 *   ids        blocks, layers, heads, rows and devices count from 0.
 *   device     an id within a context: TIDE_DEVICE_DEFAULT (0, the context's own device), TIDE_DEVICE_HOST, or what
 *              tide_device_open gave.
 *   stream     the device's own handle (a CUstream as a pointer); NULL is the context's stream. Calls enqueue; only
 *              functions that say "waits" wait. The cpu device runs a call to its end.
 *   threads    one context, one thread at a time; many contexts, many threads.
 *   ownership  tide owns what an _open or _new returned until its _close; closing in any order is safe, and a closed
 *              context turns what is left of it into handles that only refuse and close.
 */
#ifndef TIDE_H
#define TIDE_H
#include <stdint.h>
#pragma GCC visibility push(default)

typedef int32_t tide_status;
enum {
  TIDE_OK = 0,
  TIDE_EINVAL = 1,       /* an argument breaks its contract */
  TIDE_ESHAPE = 2,       /* shape, stride or rank do not fit */
  TIDE_EDTYPE = 3,       /* dtype not accepted here */
  TIDE_ERANGE = 4,       /* an index or a count is out of range */
  TIDE_EMEM = 5,         /* refused by the ledger or the allocator, before anything changed */
  TIDE_EDEVICE = 6,      /* the device is absent, or its driver failed */
  TIDE_EFILE = 7,        /* the operating system refused a file */
  TIDE_EFORMAT = 8,      /* a file or a script is not what it should be */
  TIDE_EUNSUPPORTED = 9, /* not in this build, or no kernel variant serves this geometry */
  TIDE_ESTATE = 10,      /* called in the wrong order, or after the context was closed */
  TIDE_ESCRIPT = 11,     /* a script failed; the fallback decided and the reason is kept */
  TIDE_EREENTRY = 12     /* a script was entered from itself */
};

enum { TIDE_F32 = 1, TIDE_F16 = 2, TIDE_BF16 = 3, TIDE_F8E4M3 = 4, TIDE_I32 = 5, TIDE_U32 = 6, TIDE_I64 = 7, TIDE_U8 = 8 };
enum { TIDE_MAX_DIMS = 5 };
enum { TIDE_DEVICE_DEFAULT = 0, TIDE_DEVICE_HOST = 1 };
enum { TIDE_TIER_DEVICE = 0, TIDE_TIER_HOST = 1, TIDE_TIER_DISK = 2, TIDE_TIER_REMOTE = 3 };

typedef struct tide_ctx tide_ctx;
typedef struct tide_buf tide_buf;
typedef struct tide_event tide_event;
typedef struct tide_graph tide_graph;
typedef struct tide_predictor tide_predictor;
typedef struct tide_policy tide_policy;

/* ---- library ---------------------------------------------------------------------------------------------------- */

enum { TIDE_ABI = 1 };
int32_t tide_abi(void);                        /* TIDE_ABI of the library that is loaded */
const char *tide_version(void);                /* "0.1.0" */
const char *tide_status_name(tide_status s);   /* "EMEM"; "OK" for 0; "EUNKNOWN" else */

/* ---- context ---------------------------------------------------------------------------------------------------- */

enum { TIDE_CPU_BEST = 0, TIDE_CPU_PLAIN = 1, TIDE_CPU_V3 = 2, TIDE_CPU_V4 = 3 };

typedef struct tide_ctx_settings {
  const char *device;          /* "cpu" (NULL), "cuda" or "cuda:N", "null" (accounts, moves nothing) */
  int64_t device_limit_bytes;  /* most that the device tier may hold; 0: what the device has free */
  int64_t host_limit_bytes;    /* most that the host tier may hold; 0: what the machine has free */
  int32_t n_threads;           /* of the cpu device; 0: all cores */
  int32_t cpu_level;           /* TIDE_CPU_...: the best instruction set that kernels may use */
} tide_ctx_settings;

/* Opens a context. settings may be NULL. On failure *out is untouched and error (may be NULL) holds the sentence. */
tide_status tide_ctx_open(const tide_ctx_settings *settings, tide_ctx **out, char *error, int64_t error_bytes);
void tide_ctx_close(tide_ctx *ctx);            /* NULL is fine */
const char *tide_errmsg(const tide_ctx *ctx);  /* the last failure in this context; valid until the next call */

/* ---- devices ---------------------------------------------------------------------------------------------------- */

typedef struct tide_device_info {
  char name[32];          /* "cpu", "cuda:0", "null": what tide_ctx_settings.device takes */
  char model[96];         /* as the vendor names it */
  char why_absent[192];   /* empty when the device can be used */
  int32_t n_processors;   /* cores or multiprocessors */
  int32_t capability;     /* cuda: 90 for sm_90; cpu: TIDE_CPU_... */
  int64_t total_bytes;
  int64_t free_bytes;     /* at the time of the call; cuda: 0 until the device is opened */
} tide_device_info;

/* The index-th device that this machine could offer, absent ones with the reason. TIDE_ERANGE past the last one. */
tide_status tide_device_probe(int32_t index, tide_device_info *out);
/* Opens a further device for copies and buffers; an open one is returned again. */
tide_status tide_device_open(tide_ctx *ctx, const char *name, int32_t *out_device);
tide_status tide_device_describe(tide_ctx *ctx, int32_t device, tide_device_info *out);

tide_status tide_stream_new(tide_ctx *ctx, int32_t device, void **out_stream);
tide_status tide_stream_free(tide_ctx *ctx, int32_t device, void *stream);
tide_status tide_sync(tide_ctx *ctx, int32_t device, void *stream);                /* waits */
/* TIDE_OK: idle. TIDE_ESTATE: still busy (errmsg is left alone). Never waits. */
tide_status tide_stream_query(tide_ctx *ctx, int32_t device, void *stream);

tide_status tide_event_new(tide_ctx *ctx, int32_t device, tide_event **out);
tide_status tide_event_record(tide_event *event, void *stream);
tide_status tide_stream_wait(tide_event *event, void *stream);                      /* stream waits, the caller does not */
tide_status tide_event_elapsed_us(tide_event *first, tide_event *last, double *out); /* waits for last */
void tide_event_close(tide_event *event);

/* Captures what the caller enqueues on stream between begin and end, to be replayed. cuda only. */
tide_status tide_graph_begin(tide_ctx *ctx, int32_t device, void *stream);
tide_status tide_graph_end(tide_ctx *ctx, int32_t device, void *stream, tide_graph **out);
tide_status tide_graph_replay(tide_graph *graph, void *stream);
void tide_graph_close(tide_graph *graph);

/* ---- memory ----------------------------------------------------------------------------------------------------- */

typedef struct tide_mem_line {
  char label[48];         /* who holds it: "predictor 'main'" */
  char setting[48];       /* the setting that scales it: "blocks" */
  int32_t device, tier;
  int64_t bytes, peak_bytes;
} tide_mem_line;

/* The ledger, largest first: up to capacity lines into out, all of them counted in *n. */
tide_status tide_mem_lines(tide_ctx *ctx, tide_mem_line *out, int32_t capacity, int32_t *n);
/* What an allocation of bytes would meet: TIDE_OK, or TIDE_EMEM with the sentence that the allocation would give. */
tide_status tide_mem_check(tide_ctx *ctx, int32_t device, int64_t bytes, const char *label, const char *setting);

/* ---- views and buffers ------------------------------------------------------------------------------------------ */

/* Memory that somebody owns, described. Plain data: engines fill it in for their own pointers. */
typedef struct tide_view {
  void *data;
  int32_t dtype;                 /* TIDE_F32 ... */
  int32_t n_dims;                /* 0 (a scalar) .. TIDE_MAX_DIMS */
  int64_t shape[5];
  int64_t stride[5];             /* in elements; all zero: contiguous, last dimension fastest */
  int32_t device;
  int32_t reserved;              /* 0 */
} tide_view;

/* A contiguous view on the context's own device; shape holds n_dims extents. For C callers; tide_view_of(...). */
tide_view tide_view_of(int32_t dtype, void *data, int32_t n_dims, const int64_t *shape);

typedef struct tide_buf_settings {
  int32_t dtype, n_dims;
  int64_t shape[5];
  int32_t device;
  int32_t pinned;                /* host memory that a cuda device reads by itself */
  const char *label;             /* for the ledger; NULL: "buffer" */
  const char *setting;           /* the setting that scales it; NULL: "shape" */
} tide_buf_settings;

tide_status tide_buf_new(tide_ctx *ctx, const tide_buf_settings *settings, tide_buf **out);   /* contents undefined */
/* Wraps foreign memory without a copy. release(arg), if not NULL, is called once when the last view has gone. */
tide_status tide_buf_wrap(tide_ctx *ctx, const tide_view *view, void (*release)(void *), void *arg, tide_buf **out);
/* Views share memory and keep it alive. */
tide_status tide_buf_slice(tide_buf *b, int32_t dim, int64_t first, int64_t count, tide_buf **out);
tide_status tide_buf_index(tide_buf *b, int64_t i, tide_buf **out);                /* b[i]: one dimension less */
tide_status tide_buf_reshape(tide_buf *b, int32_t n_dims, const int64_t *shape, tide_buf **out); /* contiguous only */
tide_status tide_buf_permute(tide_buf *b, const int32_t *order, tide_buf **out);   /* dimension i of out is order[i] of b */
tide_status tide_buf_view(const tide_buf *b, tide_view *out);
tide_status tide_buf_fill(tide_buf *b, double value, void *stream);
/* Same shape; dtypes may differ (f32 in between, round to nearest even). Between any two devices, and between views that
 * share memory: then it waits. */
tide_status tide_buf_copy(tide_buf *dst, tide_buf *src, void *stream);
tide_status tide_buf_read(tide_buf *b, void *host, int64_t host_bytes);            /* waits; elements in row-major order */
tide_status tide_buf_write(tide_buf *b, const void *host, int64_t host_bytes);     /* waits; likewise */
tide_ctx *tide_buf_ctx(const tide_buf *b);                                         /* NULL once closed */
void tide_buf_close(tide_buf *b);

typedef struct tide_buf_stats {
  int64_t n, n_nan, n_inf, n_zero;
  double min, max, mean;         /* over finite elements; 0 when there are none */
  int64_t min_at, max_at;        /* flat row-major index, first of equals; -1 when there are none */
  double bins[24];               /* 8..24: mean of the finite elements of each of n_bins equal runs of the flat index */
  int32_t n_bins;
  int32_t reserved;
} tide_buf_stats;
tide_status tide_buf_describe(tide_buf *b, tide_buf_stats *out);                   /* waits */

/* DLPack 1.0: out is a DLManagedTensor *. The taker calls its deleter; a tensor given is deleted with the buffer. */
tide_status tide_buf_to_dlpack(tide_buf *b, void **out);
tide_status tide_buf_from_dlpack(tide_ctx *ctx, void *tensor, tide_buf **out);

/* Ids of the k best of n scores in ascending order. Total order: larger first, lower index on ties, -0 = +0, NaN after
 * every number by index. Writes min(k, n) ids and returns that count. Pure function of host memory. */
int32_t tide_topk(const float *scores, int32_t n, int32_t k, int32_t *ids);

/* ---- kernels ---------------------------------------------------------------------------------------------------- */

/* The name of the index-th kernel, NULL past the last. */
const char *tide_kernel_name(int32_t index);
/* One line a variant: which serves these arguments on this device, and why the others refuse. args is the kernel's
 * struct (kernels/NAME.h) of args_bytes. Returns the bytes that the text needs, in the manner of snprintf. */
int64_t tide_kernel_explain(tide_ctx *ctx, int32_t device, const char *name, const void *args, int64_t args_bytes,
                            char *text, int64_t text_bytes);
/* Runs a kernel; variant NULL chooses. For specs and benchmarks: pointers are taken at their word. */
tide_status tide_kernel_run(tide_ctx *ctx, int32_t device, const char *name, const char *variant, const void *args,
                            int64_t args_bytes, void *stream);
/* The index-th variant of a kernel, NULL past the last. */
const char *tide_kernel_variant(const char *name, int32_t index);
/* Float32 values of scratch that these arguments need (0 for most kernels); -1: no such kernel. */
int64_t tide_kernel_scratch(const char *name, const void *args, int64_t args_bytes);

/* ---- predictors ------------------------------------------------------------------------------------------------- */

/* A predictor keeps a summary of every KV block and ranks blocks for a query. Three choices (below). Its calls share
 * scratch: give them one stream, or order the streams that you give them. */
enum { TIDE_SUMMARY_MEAN = 0, TIDE_SUMMARY_TOKENS = 1, TIDE_SUMMARY_MINMAX = 2 };
enum { TIDE_PROJECTION_IDENTITY = 0, TIDE_PROJECTION_RANDOM = 1, TIDE_PROJECTION_CALIBRATED = 2 };
enum { TIDE_AGGREGATE_MASS = 0, TIDE_AGGREGATE_MAX = 1 };

typedef struct tide_predictor_settings {
  int32_t n_layers;              /* 0: 1 */
  int32_t n_blocks;              /* required: blocks of the pool, per layer */
  int32_t block_size;            /* tokens a block; 0: 16 */
  int32_t n_q_heads;             /* required; a multiple of n_kv_heads */
  int32_t n_kv_heads;            /* required */
  int32_t head_dim;              /* required, 1..256 */
  int32_t summary, projection, aggregate;
  int32_t rank;                  /* 0: 32, or head_dim when the projection is the identity; 1..128, identity: head_dim */
  int32_t max_rows;              /* query rows scored at once; more are done in turns. 0: 8 */
  int32_t no_predict;            /* 1: record nothing; every score is -infinity and order falls back to recency */
  uint64_t seed;                 /* of the random projection; 0: 0xCAFEF00D */
  double softmax_scale;          /* of the mass; 0: 1/sqrt(head_dim) */
  /* Host arrays, copied. Maps, for calibrated: [n_layers, n_kv_heads, head_dim, rank]; q_map NULL: k_map serves both. */
  const float *k_map, *q_map;
  const float *k_mean;           /* [n_layers, n_kv_heads, head_dim] subtracted from keys before any projection, or NULL */
  const char *label;             /* for the ledger; NULL: "predictor" */
  int32_t device;
  int32_t reserved;
} tide_predictor_settings;

typedef struct tide_predictor_sizes {
  int64_t vectors_bytes;         /* the summaries: n_layers * n_blocks * n_kv_heads * entries * rank * 2 */
  int64_t scratch_bytes;         /* all else */
  double bytes_per_token;        /* of the summaries, per token and kv head */
  int32_t entries, rank;         /* vectors a block and kv head; width of each */
} tide_predictor_sizes;

/* Sizes without allocating; error (may be NULL) says what is wrong with the settings. Maps need not be there yet: of
 * k_map, q_map and k_mean only whether they are NULL counts. */
tide_status tide_predictor_measure(const tide_predictor_settings *settings, tide_predictor_sizes *out, char *error,
                                   int64_t error_bytes);
/* The admission rule on its own: refuses when vectors_bytes > floor(free_bytes * 95 / 100), and says how to fit. Open
 * applies it to what its device has free. */
tide_status tide_predictor_admit(const tide_predictor_settings *settings, int64_t free_bytes, char *error,
                                 int64_t error_bytes);
tide_status tide_predictor_open(tide_ctx *ctx, const tide_predictor_settings *settings, tide_predictor **out);
void tide_predictor_close(tide_predictor *p);

/* Summarises whole blocks, all in one launch. k (f32, f16 or bf16; cached form, after rope) is a run of tokens
 * [n_tokens, n_kv_heads, head_dim], of which an unfinished last block is left out, or a paged pool
 * [n_pool_blocks, block_size, n_kv_heads, head_dim]. src (i32 [n], NULL: 0, 1, ...) picks blocks of k; dst (i32 [n], NULL:
 * first_block, first_block + 1, ...) says which block ids they are. Ids out of range in src or dst are left out; a run from
 * first_block that leaves the pool is refused. Views of device memory, here and below, lie on the predictor's device. */
tide_status tide_predictor_write(tide_predictor *p, int32_t layer, const tide_view *k, const tide_view *src,
                                 const tide_view *dst, int32_t first_block, void *stream);
/* The same for a prompt that arrives in pieces: k holds tokens first_token .. of one sequence whose block table is table
 * (i32, NULL: identity). A block is summarised once its last token has come; first_token 0 starts anew, and a gap is
 * refused with both positions. The table needs an entry for every block that the tokens so far complete. */
tide_status tide_predictor_append(tide_predictor *p, int32_t layer, int64_t first_token, const tide_view *k,
                                  const tide_view *table, void *stream);
/* Forgets blocks (i32 [n]; NULL: all) of a layer (-1: every layer): their score is -infinity until written again. */
tide_status tide_predictor_forget(tide_predictor *p, int32_t layer, const tide_view *blocks, void *stream);

typedef struct tide_score_request {
  const tide_view *blocks;       /* i32 [n] for all rows or [n_rows, n], n <= n_blocks: pool ids to score, any other id scores
                                  * -infinity; NULL: first .. first+count-1 */
  const tide_view *lengths;      /* i32 [n_rows]: how many of them belong to the row (the rest score -infinity); NULL: all */
  int32_t first, count;          /* without blocks; count 0: to the end of the pool */
} tide_score_request;

/* scores f32 [n_rows, n]. max: the largest product of a projected query and key of any head and token (an estimate of q.k; of
 * rank / head_dim times q.k when the projection is random). mass: estimated share of attention, softmax per head over the row's
 * blocks, mean over heads. A block never written scores -infinity; NaN never wins. request NULL: the whole pool.
 * q (f32, f16 or bf16) is [n_rows, n_q_heads, head_dim] or [n_q_heads, head_dim] with scores [n]. */
tide_status tide_predictor_score(tide_predictor *p, int32_t layer, const tide_view *q, const tide_score_request *request,
                                 const tide_view *scores, void *stream);
/* Projected queries, bf16 [n_rows, n_q_heads, rank]: what the score multiplies with. */
tide_status tide_predictor_project(tide_predictor *p, int32_t layer, const tide_view *q, const tide_view *out, void *stream);
/* The stored vectors of a block as a view, bf16 [n_kv_heads, entries, rank]; *written (NULL: not asked) says whether they hold
 * anything, which waits. The view lives as long as the predictor. */
tide_status tide_predictor_slot(tide_predictor *p, int32_t layer, int32_t block, tide_view *out, int32_t *written);

/* The random projection, bf16 patterns [head_dim, rank], bit-exact for a seed (0: 0xCAFEF00D); head_dim 1..256, rank 1..128. */
tide_status tide_random_projection(int32_t head_dim, int32_t rank, uint64_t seed, uint16_t *out);

typedef struct tide_calibration_settings {
  int32_t rank;                  /* 0: 32 */
  int32_t centred;               /* 1: subtract the mean key */
  int32_t query_aware;           /* 1: weigh by the second moment of the queries */
  int32_t reserved;
} tide_calibration_settings;

/* Principal directions of keys, per kv head, over n texts. k[i] [tokens, n_kv_heads, head_dim]; q[i] [rows, n_q_heads,
 * head_dim] (query_aware only, else q may be NULL); f32, f16 or bf16, host memory. Host outputs: k_map, q_map [n_kv_heads, head_dim, rank],
 * k_mean [n_kv_heads, head_dim] (zeros unless centred). */
tide_status tide_calibrate(tide_ctx *ctx, const tide_calibration_settings *settings, const tide_view *k, const tide_view *q,
                           int32_t n, float *k_map, float *q_map, float *k_mean);

/* ---- attention over blocks -------------------------------------------------------------------------------------- */

typedef struct tide_attend_io {
  tide_view q;                   /* f32, f16, bf16 [n_rows, n_q_heads, head_dim] */
  tide_view k, v;                /* any float dtype: [n_tokens, n_kv_heads, head_dim], or paged [n_pool, block_size, ...]; v may
                                  * stay zero when out is NULL */
  const tide_view *table;        /* i32 [n] or [n_rows, n]: pool block of each block of the sequence, paged k only; NULL: identity */
  const tide_view *positions;    /* i32 [n_rows]: a row attends tokens 0 .. its position; NULL: first_position + row */
  const tide_view *blocks;       /* i32 [n] or [n_rows, n]: the blocks to read, distinct, -1 padded; NULL: all */
  const tide_view *out;          /* f32 [n_rows, n_q_heads, head_dim]; NULL: not wanted */
  const tide_view *lse;          /* f32 [n_rows, n_q_heads], natural log of the softmax denominator; NULL; required with mass */
  const tide_view *mass;         /* f32 [n_rows, n_blocks]: share of attention per block, mean over heads; NULL. An unfinished
                                  * last block counts: n_blocks = ceil(n_tokens / block_size), or the table's n */
  int32_t block_size;            /* 0: 16, or what a paged k says */
  int32_t first_position;
  double softmax_scale;          /* 0: 1/sqrt(head_dim) */
  double k_scale, v_scale;       /* factors of stored k and v (fp8); 0: 1 */
} tide_attend_io;

/* Softmax attention of the rows over the blocks, in f32; what is not wanted stays NULL. A row that reads nothing gives zeros
 * and an lse of -infinity. Outputs share memory neither with inputs nor with each other; that is refused, here and by score,
 * project and gather. */
tide_status tide_attend(tide_ctx *ctx, const tide_attend_io *io, void *stream);
/* dst[i] = src[ids[i]] over the first dimension; an id out of range gives a row of zeros. ids i32 [n], same device. */
tide_status tide_gather(tide_ctx *ctx, const tide_view *dst, const tide_view *src, const tide_view *ids, void *stream);

/* ---- policies --------------------------------------------------------------------------------------------------- */

/* The candidates of one decision as columns, all host memory of n entries, index 0 .. n-1 by strictly ascending slot.
 * A column that the caller does not have is NULL and reads as its default. Ticks are never NaN. */
typedef struct tide_candidates {
  int32_t n;
  int32_t reserved;
  const int32_t *slot;           /* NULL: 0, 1, ... */
  const uint64_t *key;           /* content key; NULL: slot */
  const int32_t *index;          /* place of the block in its sequence; NULL: slot */
  const double *born;            /* tick of arrival; NULL: 0 */
  const double *last_use;        /* tick of the last read; NULL: born */
  const float *score;            /* predictor score, -infinity: never scored; NULL: -infinity */
} tide_candidates;

typedef struct tide_decision {
  int32_t n_victims;             /* written to victims: n_wanted */
  int32_t n_rejected;            /* proposals that C refused */
  int32_t used_fallback;         /* 1: tail-first LRU decided, or filled up what the script left open */
  int32_t n_strikes;             /* faults of this policy so far; three in a row switch it off */
  double policy_us;              /* time in the script */
} tide_decision;

enum { TIDE_POLICY_TRUSTED = 0, TIDE_POLICY_GUARDED = 1 };

typedef struct tide_policy_settings {
  const char *path;              /* a file, or */
  const char *source;            /* text of source_bytes */
  int64_t source_bytes;
  const char *name;              /* in errors and the ledger; NULL: "policy", or what the file is called */
  double budget_us;              /* time that the script may take for a decision; 0: 5000 */
  /* trusted: time is measured after the call; a late decision stands, and is a fault.
   * guarded: a script that never ends is ended within budget and 100 ms, at load within 1.1 s. One such policy a process:
   * it takes SIGPROF and has a thread. */
  int32_t level;
  int32_t reserved;
} tide_policy_settings;

/* Opens a policy: a script in a state of its own, sandboxed, limited to 16 MiB. Needs libtide_lua in the process, else
 * TIDE_EUNSUPPORTED. The script runs twice: once to practise on made-up candidates, so that its loop is compiled before the
 * first decision, and once more to start with nothing learnt from them. */
tide_status tide_policy_open(tide_ctx *ctx, const tide_policy_settings *settings, tide_policy **out);
/* The same with the defaults. */
tide_status tide_policy_load(tide_ctx *ctx, const char *name, const char *source, int64_t source_bytes, tide_policy **out);
tide_status tide_policy_load_file(tide_ctx *ctx, const char *path, tide_policy **out);
/* The n_wanted (0 .. n) slots that should leave, first to leave first. C ranks, breaks ties (older last use, then lower
 * slot), checks NaN and fills up from tail-first LRU (older last use, then larger index, then lower slot) when the script
 * errs or comes up short; then the status is TIDE_OK still and tide_policy_fault says why. victims holds n_wanted entries;
 * report may be NULL. */
tide_status tide_policy_victims(tide_policy *policy, const tide_candidates *candidates, double now, int32_t n_wanted,
                                int32_t *victims, tide_decision *report);
/* keep[i] as the script wrote it, for inspection: the last decision's column, n entries; NULL when no script wrote it. */
const float *tide_policy_keep(tide_policy *policy, int32_t *n);
const char *tide_policy_name(tide_policy *policy);
const char *tide_policy_fault(tide_policy *policy);           /* the last fault with its traceback; "" when none */
/* "compiled, 2 traces", or why it runs interpreted. */
const char *tide_policy_describe(tide_policy *policy);
/* A setting of the script by name, checked against its declaration. */
tide_status tide_policy_set(tide_policy *policy, const char *setting, double value);
tide_status tide_policy_get(tide_policy *policy, const char *setting, double *value);
/* Changes the setting budget_us. */
tide_status tide_policy_budget(tide_policy *policy, double budget_us);
void tide_policy_close(tide_policy *policy);

#pragma GCC visibility pop
#endif
