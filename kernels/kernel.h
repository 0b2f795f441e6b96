/* kernel.h: what every kernel is made of.
 *
 * A kernel NAME is one args struct (NAME.h), a reference body that is its definition, and faster variants of the same
 * struct. NAME.c holds the reference, the table of variants with their refusals, and the launch geometry of the CUDA
 * bodies (NAME.cu); kernels.def lists the kernels. This folder is a leaf: it knows nobody above.
 */
#ifndef TIDE_KERNEL_H
#define TIDE_KERNEL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbered as in tide.h. */
enum { DT_F32 = 1, DT_F16 = 2, DT_BF16 = 3, DT_F8E4M3 = 4, DT_I32 = 5, DT_U32 = 6, DT_I64 = 7, DT_U8 = 8 };

enum { KERNEL_CPU = 1, KERNEL_CUDA = 2 };
enum { CPU_PLAIN = 1, CPU_V3 = 2, CPU_V4 = 3 };

typedef struct kernel_caps {
  int backend;          /* KERNEL_CPU, KERNEL_CUDA */
  int level;            /* cpu: CPU_...; cuda: 90 for sm_90, the lesser of the device's and of what the code was built for */
  int n_processors;     /* threads, or multiprocessors */
  int smem_bytes;       /* most dynamic shared memory of a block */
} kernel_caps;

/* One launch of a CUDA body. The args struct is the only parameter, by value. */
typedef struct kernel_launch {
  const char *fatbin;   /* file NAME of NAME.cu */
  const char *entry;    /* extern "C" name of the kernel */
  unsigned grid[3], block[3], smem_bytes;
  unsigned cluster;     /* blocks along x that form a cluster: up to 16 at level 90, 8 above; 0: none */
  int overlaps;         /* 1: begins while its predecessor ends (it calls griddepcontrol.wait before reading) */
} kernel_launch;
enum { KERNEL_MAX_LAUNCHES = 4 };

/* A refusal writes its reason: what was asked, what is supported. */
typedef bool kernel_refuse(const void *args, char *why, size_t why_bytes);

typedef struct kernel_variant {
  const char *name;     /* "ref", "v3", "v4", "cuda", ... unique in its kernel; "ref" is the first */
  int backend;
  int level;            /* least kernel_caps.level */
  int level_only;       /* 1: exactly this level (sm_90a code) */
  kernel_refuse *refuse;                                                     /* NULL: serves all that check passed */
  void (*run)(const void *args, int phase, int64_t first, int64_t last);     /* cpu: items first .. last-1 of a phase */
  int (*plan)(const void *args, const kernel_caps *caps, kernel_launch *out);/* cuda: number of launches */
} kernel_variant;

typedef struct kernel {
  const char *name;
  size_t args_bytes;
  kernel_refuse *check;                                 /* arguments that no variant may see */
  int n_phases;                                         /* cpu: run one after the other, items of each in parallel */
  int64_t (*n_items)(const void *args, int phase);      /* independent items; 0: nothing to do */
  int64_t (*scratch)(const void *args);                 /* f32 values of args->scratch; NULL: 0 */
  int n_variants;
  const kernel_variant *variants;                       /* best last: the last that does not refuse serves */
} kernel;

#define TIDE_KERNEL(name) extern const kernel kernel_##name;
#include "kernels.def"
#undef TIDE_KERNEL

#endif
