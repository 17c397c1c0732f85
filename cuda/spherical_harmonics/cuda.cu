// SPDX-License-Identifier: Apache-2.0
// One thread per row. Directions come from L1, for neighbouring rows mostly share a ray; the stores take the time.

#include "common/gpu.cuh"
#include "spherical_harmonics/args.h"

namespace nerfkit {
namespace {

template <class P, class T>
__global__ void __launch_bounds__(THREADS)
    spherical_harmonics_rows(const P* __restrict__ directions,       // [R, 3]
                             const int64_t* __restrict__ ray_index,  // [n_rows] or null
                             T* __restrict__ out,                    // [n_rows, 16]
                             int64_t n_rows) {
  const int64_t n = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (n >= n_rows) return;
  P values[HARMONICS];
  harmonics_of(directions + 3 * (ray_index ? ray_index[n] : n), values);
#pragma unroll
  for (int first = 0; first < HARMONICS; first += VECTOR_WIDTH<T>) {
    acc_t<T> values_of_access[VECTOR_WIDTH<T>];
#pragma unroll
    for (int i = 0; i < VECTOR_WIDTH<T>; ++i) values_of_access[i] = acc_t<T>(values[first + i]);
    store(out + HARMONICS * n + first, values_of_access);
  }
}

}  // namespace

Status spherical_harmonics(DType from, DType to, const void* directions, const int64_t* ray_index, void* out,
                           int64_t n_rows, Stream stream) {
  if (n_rows == 0) return 0;
  dispatch(to, [&](auto element) {
    using T = decltype(element);
    const unsigned blocks = blocks_for(n_rows);
    if (from == DType::f64)
      spherical_harmonics_rows<<<blocks, THREADS, 0, (cudaStream_t)stream>>>((const double*)directions, ray_index,
                                                                             (T*)out, n_rows);
    else
      spherical_harmonics_rows<<<blocks, THREADS, 0, (cudaStream_t)stream>>>((const float*)directions, ray_index,
                                                                             (T*)out, n_rows);
  });
  return launched();
}

}  // namespace nerfkit
