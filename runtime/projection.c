/* projection.c: the random projection, bit-exact for a seed.
 *
 *   P[d][j] = bf16( f32(z) * f32(1 / sqrt(f32(head_dim))) ),  z standard normal, in row-major order
 *
 * z comes from a ziggurat of 256 layers over the words of a ChaCha stream of 8 rounds. */
#include <math.h>
#include "base.h"
#include "../kernels/numeric.h"

/* ---- stream: words of ChaCha8, counter from 0, key drawn from the seed by a PCG ---- */

typedef struct stream {
  uint32_t key[8], words[16];
  uint64_t counter;
  int at;                                 /* next of words; 16: none left */
} stream;

static uint32_t rotate_left(uint32_t x, int by) { return x << by | x >> (-by & 31); }

static stream stream_of(uint64_t seed) {
  stream s = {.at = 16};
  for (int i = 0; i < 8; i++) {
    seed = seed * 6364136223846793005u + 11634580027462260723u;
    s.key[i] = rotate_left((uint32_t)((seed >> 18 ^ seed) >> 27), -(int)(seed >> 59) & 31);
  }
  return s;
}

static void quarter_round(uint32_t *x, int a, int b, int c, int d) {
  x[a] += x[b], x[d] = rotate_left(x[d] ^ x[a], 16);
  x[c] += x[d], x[b] = rotate_left(x[b] ^ x[c], 12);
  x[a] += x[b], x[d] = rotate_left(x[d] ^ x[a], 8);
  x[c] += x[d], x[b] = rotate_left(x[b] ^ x[c], 7);
}

static void refill(stream *s) {
  uint32_t start[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
  memcpy(start + 4, s->key, sizeof s->key);
  start[12] = (uint32_t)s->counter;
  start[13] = (uint32_t)(s->counter >> 32);
  memcpy(s->words, start, sizeof start);
  for (int pair = 0; pair < 4; pair++) {
    for (int i = 0; i < 4; i++) quarter_round(s->words, i, 4 + i, 8 + i, 12 + i);
    for (int i = 0; i < 4; i++) quarter_round(s->words, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4);
  }
  for (int i = 0; i < 16; i++) s->words[i] += start[i];
  s->counter++;
  s->at = 0;
}

static uint64_t draw(stream *s) {
  if (s->at == 16) refill(s);
  uint64_t low = s->words[s->at], high = s->words[s->at + 1];
  s->at += 2;
  return high << 32 | low;
}

/* ---- variates ---- */

/* The double of [1, 2) (exponent 1023) or [2, 4) (exponent 1024) with these 52 bits. */
static double with_exponent(uint64_t bits, uint64_t exponent) {
  uint64_t u = bits >> 12 | exponent << 52;
  double x;
  memcpy(&x, &u, sizeof x);
  return x;
}

/* Of the open interval (0, 1). */
static double draw_open(stream *s) { return with_exponent(draw(s), 1023) - (1 - 0x1p-53); }

/* The layers' right edges, x[0] .. x[256], widest first, and the density there. */
typedef struct ziggurat {
  double x[257], f[257];
} ziggurat;

static const double tail_begin = 3.654152885361008796;

static double density(double x) { return exp(-x * x / 2); }

static void ziggurat_fill(ziggurat *z) {
  double tail_area = sqrt(acos(0)) * erfc(tail_begin / sqrt(2));
  double layer_area = tail_begin * density(tail_begin) + tail_area;
  z->x[0] = layer_area / density(tail_begin);
  z->x[1] = tail_begin;
  for (int i = 2; i < 256; i++) z->x[i] = sqrt(-2 * log(layer_area / z->x[i - 1] + density(z->x[i - 1])));
  z->x[256] = 0;
  for (int i = 0; i <= 256; i++) z->f[i] = density(z->x[i]);
}

static double draw_tail(stream *s, double sign) {
  double t = 1, y = 0;
  while (-2 * y < t * t) {
    t = log(draw_open(s)) / tail_begin;
    y = log(draw_open(s));
  }
  return sign < 0 ? t - tail_begin : tail_begin - t;
}

static double draw_normal(stream *s, const ziggurat *z) {
  for (;;) {
    uint64_t bits = draw(s);
    int i = bits & 255;
    double u = with_exponent(bits, 1024) - 3, x = u * z->x[i];
    if (fabs(x) < z->x[i + 1]) return x;
    if (i == 0) return draw_tail(s, u);
    double height = (double)(draw(s) >> 11) * 0x1p-53;
    if (z->f[i + 1] + (z->f[i] - z->f[i + 1]) * height < density(x)) return x;
  }
}

tide_status tide_random_projection(int32_t head_dim, int32_t rank, uint64_t seed, uint16_t *out) {
  if (!out || head_dim < 1 || head_dim > 256 || rank < 1 || rank > 128) return TIDE_EINVAL;
  stream s = stream_of(seed ? seed : 0xCAFEF00D);
  ziggurat z;
  ziggurat_fill(&z);
  float scale = 1 / sqrtf((float)head_dim);
  for (int32_t i = 0; i < head_dim * rank; i++) out[i] = f32_to_bf16((float)draw_normal(&s, &z) * scale);
  return TIDE_OK;
}
