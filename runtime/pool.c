/* pool.c: see pool.h.
 *
 * A job is open while the caller works on it. A thread joins an open job under the lock and leaves it under the lock; the
 * caller closes the job when the pieces have run out, and then waits for those inside. Pieces are dealt by a counter. */
#define _GNU_SOURCE
#include "pool.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

/* How long a thread looks for the next job before it sleeps: longer than the gap between two launches, shorter than what a
 * core is worth to others. */
enum { N_LOOKS = 4000 };

struct pool {
  pthread_mutex_t lock;
  pthread_cond_t opened, left;
  int n_threads, n_started, n_inside;
  bool open, stop;
  atomic_uint n_jobs;                     /* counts openings; read without the lock by those who look */
  atomic_llong next;
  int64_t n_pieces;
  void (*work)(void *arg, int64_t piece);
  void *arg;
  pthread_t threads[];
};

static inline void breathe(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static void deal(pool *p) {
  for (int64_t piece; (piece = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->n_pieces;)
    p->work(p->arg, piece);
}

static void *serve(void *arg) {
  pool *p = arg;
  unsigned seen = 0;
  for (;;) {
    for (int i = 0; i < N_LOOKS && atomic_load_explicit(&p->n_jobs, memory_order_relaxed) == seen; i++) breathe();
    pthread_mutex_lock(&p->lock);
    while (!p->stop && atomic_load(&p->n_jobs) == seen) pthread_cond_wait(&p->opened, &p->lock);
    seen = atomic_load(&p->n_jobs);
    bool stop = p->stop, join = p->open;
    p->n_inside += join;
    pthread_mutex_unlock(&p->lock);
    if (stop) return NULL;
    if (!join) continue;
    deal(p);
    pthread_mutex_lock(&p->lock);
    if (--p->n_inside == 0) pthread_cond_signal(&p->left);
    pthread_mutex_unlock(&p->lock);
  }
}

/* Signals are the program's: these threads take none. A thread that cannot be had is done without. */
static void start(pool *p) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (p->n_started < p->n_threads - 1 && !pthread_create(&p->threads[p->n_started], NULL, serve, p)) p->n_started++;
  p->n_threads = p->n_started + 1;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

pool *pool_new(int n_threads) {
  pool *p = calloc(1, sizeof *p + (size_t)n_threads * sizeof(pthread_t));
  if (!p) return NULL;
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->opened, NULL);
  pthread_cond_init(&p->left, NULL);
  p->n_threads = n_threads;
  return p;
}

void pool_run(pool *p, void (*work)(void *arg, int64_t piece), void *arg, int64_t n_pieces) {
  if (p->n_started < p->n_threads - 1) start(p);
  pthread_mutex_lock(&p->lock);
  p->work = work;
  p->arg = arg;
  p->n_pieces = n_pieces;
  atomic_store(&p->next, 0);
  p->open = true;
  atomic_fetch_add(&p->n_jobs, 1);
  pthread_cond_broadcast(&p->opened);
  pthread_mutex_unlock(&p->lock);
  deal(p);
  pthread_mutex_lock(&p->lock);
  p->open = false;
  while (p->n_inside > 0) pthread_cond_wait(&p->left, &p->lock);
  pthread_mutex_unlock(&p->lock);
}

void pool_free(pool *p) {
  pthread_mutex_lock(&p->lock);
  p->stop = true;
  atomic_fetch_add(&p->n_jobs, 1);
  pthread_cond_broadcast(&p->opened);
  pthread_mutex_unlock(&p->lock);
  for (int i = 0; i < p->n_started; i++) pthread_join(p->threads[i], NULL);
  pthread_mutex_destroy(&p->lock);
  pthread_cond_destroy(&p->opened);
  pthread_cond_destroy(&p->left);
  free(p);
}
