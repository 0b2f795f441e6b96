/* cuda_api.h: what is used of the CUDA driver, as facts: sizes, orders, numbers. No header of CUDA is needed to build; where
 * there is one, spec/cuda_api_spec.lua compares every line. */
#ifndef TIDE_CUDA_API_H
#define TIDE_CUDA_API_H
#include <stddef.h>
#include <stdint.h>

typedef int cu_result, cu_device, cu_device_attribute, cu_function_attribute, cu_capture_mode;
typedef unsigned long long cu_pointer;
typedef void *cu_context, *cu_module, *cu_function, *cu_stream, *cu_event, *cu_graph, *cu_graph_exec;

typedef struct cu_launch_attribute {
  int id;
  int pad;
  union {
    unsigned cluster[3];                  /* CUDA_CLUSTER */
    int programmatic;                     /* CUDA_PROGRAMMATIC */
    uint64_t reserved[8];
  } value;
} cu_launch_attribute;

typedef struct cu_launch_config {
  unsigned grid[3], block[3], smem_bytes;
  cu_stream stream;
  cu_launch_attribute *attributes;
  unsigned n_attributes;
} cu_launch_config;

enum {
  CUDA_OUT_OF_MEMORY = 2,
  CUDA_NO_DEVICE = 100,
  CUDA_NO_BINARY = 209,
  CUDA_NOT_READY = 600,
  CUDA_PEER_ENABLED = 704,

  CUDA_N_PROCESSORS = 16,                 /* device attributes */
  CUDA_LEVEL_MAJOR = 75,
  CUDA_LEVEL_MINOR = 76,
  CUDA_SMEM_BYTES = 97,

  CUDA_STATIC_SMEM = 1,                   /* function attributes */
  CUDA_PTX_VERSION = 5,
  CUDA_MAX_DYNAMIC_SMEM = 8,
  CUDA_LARGE_CLUSTER = 14,

  CUDA_HOST_PORTABLE = 1,
  CUDA_STREAM_NON_BLOCKING = 1,
  CUDA_EVENT_NO_TIMING = 2,
  CUDA_CAPTURE_THREAD_LOCAL = 1,
  CUDA_CAPTURE_RELAXED = 2,
  CUDA_CLUSTER = 4,                       /* launch attributes: blocks of a cluster */
  CUDA_PROGRAMMATIC = 6,                  /* programmatic stream serialization */
};

typedef struct cuda_api {
#define CUDA_ENTRY(name, parameters) cu_result (*name) parameters;
#include "cuda_api.def"
#undef CUDA_ENTRY
} cuda_api;

#endif
