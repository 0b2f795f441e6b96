// The device code that the build embedded: one fatbin for each kernels/NAME.cu, sorted by name. A size of 0
// means that this library was built without nvcc (or with TIDE_CUDA=off), not that the kernel does not exist.
#ifndef TIDE_FATBIN_H
#define TIDE_FATBIN_H

struct tide_fatbin {
  const char *name; // "score_blocks", "score_blocks_tc": the stem of the .cu
  const unsigned char *data;
  const unsigned long long *size; // bytes
};

extern const struct tide_fatbin tide_fatbins[]; // one more entry than counted, all zero
extern const int tide_n_fatbins;

#endif
