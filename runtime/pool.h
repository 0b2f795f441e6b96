/* pool.h: threads that share the pieces of one job. The caller works too and waits only for threads that took part, so a job
 * never waits for a thread that the machine has no core for. */
#ifndef TIDE_POOL_H
#define TIDE_POOL_H
#include <stdbool.h>
#include <stdint.h>

typedef struct pool pool;

/* n_threads counts the caller; threads start with the first job. NULL: out of memory. */
pool *pool_new(int n_threads);
/* Runs work(arg, piece) for pieces 0 .. n_pieces-1, each once, and returns when all are done. One job at a time. */
void pool_run(pool *p, void (*work)(void *arg, int64_t piece), void *arg, int64_t n_pieces);
void pool_free(pool *p);

#endif
