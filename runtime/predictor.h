/* predictor.h: the inside of a predictor. Everything that its calls need is a part, allocated when it opens. */
#ifndef TIDE_PREDICTOR_H
#define TIDE_PREDICTOR_H
#include "ctx.h"

enum { CHUNK_BLOCKS = 256 };   /* blocks projected at once before they are summarised */

typedef enum {
  PART_VECTORS,                /* bf16 [n_layers, n_blocks, n_kv_heads, entries, rank]: the summaries */
  PART_WRITTEN,                /* u8 [n_layers, n_blocks]: 1 where a summary stands */
  PART_K_MAPS,                 /* bf16 [map_layers, n_maps, head_dim, rank] */
  PART_Q_MAPS,                 /* the same for queries; empty: the keys' maps serve */
  PART_BIAS,                   /* f32 [n_layers, n_kv_heads, rank]: the projected mean key */
  PART_QUERIES,                /* bf16 [max_rows, n_q_heads, rank] */
  PART_SCRATCH,                /* f32 [n]: what score_blocks asks for */
  PART_STAGING,                /* [n_layers, block_size, n_kv_heads, head_dim] of 4 bytes: the unfinished block of append */
  PART_CHUNK,                  /* bf16 [CHUNK_BLOCKS, n_kv_heads, block_size, rank]: keys projected, not yet summarised */
  PART_CHUNK_WRITTEN,          /* u8 [CHUNK_BLOCKS] */
  N_PARTS
} predictor_part_id;

typedef struct predictor_part {
  const char *setting;         /* the setting that scales it */
  int32_t dtype, n_dims;
  int64_t shape[TIDE_MAX_DIMS];
  int64_t bytes;
} predictor_part;

typedef struct predictor_layout {
  tide_predictor_settings s;   /* resolved: no zero stands for a default */
  int32_t entries;             /* vectors a block and kv head */
  int32_t map_layers, n_maps;
  predictor_part parts[N_PARTS];
} predictor_layout;

/* What append has seen of a layer's sequence. */
typedef struct predictor_sequence {
  int64_t n_tokens;
  int32_t staged_dtype;        /* of the n_tokens % block_size tokens in staging */
} predictor_sequence;

struct tide_predictor {
  tide_ctx *ctx;
  tide_predictor_settings s;   /* resolved; its pointers are NULL */
  int32_t entries;
  int32_t map_layers, n_maps;  /* 1, or n_layers; 1, or n_kv_heads */
  tide_buf *parts[N_PARTS];    /* NULL where empty */
  predictor_sequence *sequences;
};

/* Defaults filled in, everything checked, every size computed. */
tide_status predictor_layout_of(const tide_predictor_settings *settings, predictor_layout *out, char *error,
                                int64_t error_bytes);
/* The rule of tide_predictor_admit. */
tide_status predictor_admit(const predictor_layout *layout, int64_t free_bytes, char *error, int64_t error_bytes);
/* marks[r][ids[i]] := 0 for n_rows rows of n_marks; ids NULL: the first n. */
tide_status predictor_clear(dev *d, uint8_t *marks, int32_t n_rows, int32_t n_marks, const int32_t *ids, int32_t n,
                            void *stream);
/* The address of an element of a part; NULL when the part is empty. */
void *predictor_at(const tide_predictor *p, predictor_part_id part, int64_t element);

#endif
