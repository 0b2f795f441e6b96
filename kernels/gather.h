/* gather: row i of dst = row r of src, where r = ids[i], or with a page table
 * r = table[ids[i] / page_size] * page_size + ids[i] % page_size. A row outside src, or an id below 0 or beyond the table,
 * gives zeros. */
#ifndef TIDE_GATHER_H
#define TIDE_GATHER_H
#include <stdint.h>
enum { GATHER_WORDS = 4 };         /* words that a thread of gather.cu has in flight */

typedef struct tide_gather_args {
  void *dst;                       /* [n, row_bytes] */
  const void *src;                 /* [n_src, row_bytes] */
  const int32_t *ids;              /* [n] */
  const int32_t *table;            /* [n_table] or NULL */
  int64_t dst_stride, src_stride;  /* bytes from row to row */
  int64_t row_bytes;
  int32_t n, n_src, n_table, page_size;
} tide_gather_args;
#endif
