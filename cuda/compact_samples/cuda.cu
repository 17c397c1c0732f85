// SPDX-License-Identifier: Apache-2.0
// Eight lanes per ray, as in composite/cuda.cu. The number of samples is known on the GPU alone, so the same threads
// then clear the padding rows behind them in a grid-stride loop.

#include "common/gpu.cuh"
#include "compact_samples/args.h"

namespace nerfkit {
namespace {

constexpr int LANES = 8;            // of a ray
constexpr int ROWS_PER_THREAD = 8;  // that a thread clears where all rows are padding

template <class P>
__global__ void __launch_bounds__(THREADS) compact_samples_rows(CompactArguments in,
                                                                P* __restrict__ positions,          // [n_rows, 3]
                                                                P* __restrict__ t_starts,           // [n_rows]
                                                                P* __restrict__ t_ends,             // [n_rows]
                                                                int64_t* __restrict__ ray_index) {  // [n_rows]
  const int64_t thread = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  const int64_t r = thread / LANES;
  if (r < in.n_rays) {
    const CompactedRay<P> ray = compacted_ray<P>(in, r);
    for (int64_t n = ray.begin + thread % LANES; n < ray.end; n += LANES) {
      const P start = ((const P*)in.t_starts)[n + ray.shift], stop = ((const P*)in.t_ends)[n + ray.shift];
      for (int i = 0; i < 3; ++i) positions[3 * n + i] = ray.origin[i] + ray.direction[i] * ((start + stop) / P(2));
      t_starts[n] = start;
      t_ends[n] = stop;
      ray_index[n] = r;
    }
  }
  const int64_t threads = int64_t(gridDim.x) * THREADS, last_ray = in.last_ray();
  for (int64_t n = in.ray_offsets[in.n_rays] + thread; n < in.n_rows; n += threads) {
    for (int i = 0; i < 3; ++i) positions[3 * n + i] = P(0);
    t_starts[n] = P(0);
    t_ends[n] = P(0);
    ray_index[n] = last_ray;
  }
}

}  // namespace

Status compact_samples(DType dtype, const CompactArguments& in, void* positions, void* t_starts, void* t_ends,
                       int64_t* ray_index, Stream stream) {
  if (in.n_rows == 0) return 0;
  const unsigned blocks = blocks_for(std::max(in.n_rays * LANES, (in.n_rows + ROWS_PER_THREAD - 1) / ROWS_PER_THREAD));
  if (dtype == DType::f64)
    compact_samples_rows<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(in, (double*)positions, (double*)t_starts,
                                                                       (double*)t_ends, ray_index);
  else
    compact_samples_rows<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(in, (float*)positions, (float*)t_starts,
                                                                       (float*)t_ends, ray_index);
  return launched();
}

}  // namespace nerfkit
