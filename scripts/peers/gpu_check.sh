#!/bin/sh
# Builds and runs gpu_check: are the CUDA bodies right, how fast are they, would another launch geometry be faster.
#   scripts/peers/gpu_check.sh [check] [bench] [tune]     (default: check bench)
#   NVCC, ARCH (sm_90a), BUILD (build/gpu_check), EDIT (a sed script for the bodies: what would another constant do)
# Prints WRONG lines and counts, then a table of median us and ratios to the floors of the same run.
set -eu
cd "$(dirname "$0")/../.."
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
arch=${ARCH:-sm_90a}
out=${BUILD:-build/gpu_check}
rm -rf "$out"
mkdir -p "$out/kernels"
cp kernels/* "$out/kernels"
sed -i "${EDIT:-}" "$out"/kernels/*.cu
code="-gencode arch=compute_${arch#sm_},code=$arch -I$out/kernels"
jobs=
for source in "$out"/kernels/lowrank_project*.cu "$out"/kernels/score_blocks*.cu; do
  "$nvcc" -O3 -std=c++17 -lineinfo $code -cubin "$source" -o "$out/$(basename "$source" .cu).cubin" &
  jobs="$jobs $!"
done
for kernel in lowrank_project score_blocks; do
  cc -std=c11 -O2 -ffp-contract=off -DKERNEL_NO_SIMD -I"$out/kernels" -c "$out/kernels/$kernel.c" -o "$out/$kernel.o"
done
"$nvcc" -O2 -std=c++20 $code scripts/peers/gpu_check.cu "$out"/*.o -o "$out/gpu_check"
for job in $jobs; do wait "$job"; done
[ $# -gt 0 ] || set -- check bench
exec "$out/gpu_check" "$out" "$@"
