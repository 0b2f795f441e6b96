/* mark: marks[r][ids[i]] = value for every row r; ids out of range are left out. */
#ifndef TIDE_MARK_H
#define TIDE_MARK_H
#include <stdint.h>
typedef struct tide_mark_args {
  uint8_t *marks;                  /* u8 [n_rows, n_marks], rows stride apart */
  const int32_t *ids;              /* i32 [n], or NULL: 0, 1, ... */
  int64_t stride;                  /* elements from row to row */
  int32_t n_rows, n_marks, n, value;
} tide_mark_args;
#endif
