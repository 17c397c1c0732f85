// SPDX-License-Identifier: Apache-2.0
// A thread a ray, twice: to count its samples, then to write them where the counts say.

#include "gpu.cuh"
#include "march.h"

namespace nerfkit {
namespace {

constexpr int RAY_THREADS = 64;  // small blocks: rays differ in length

template <class P, class F>
__device__ __forceinline__ void march_one(const MarchArguments& in, int64_t ray, const F& emit) {
  const P* jitter = (const P*)in.jitter;
  march_ray((const P*)in.origins + 3 * ray, (const P*)in.directions + 3 * ray, (const P*)in.box,
            jitter ? jitter[ray] : P(0), jitter != nullptr, in.grid, in.limits, emit);
}

template <class P>
__global__ void __launch_bounds__(RAY_THREADS) count(MarchArguments in, int64_t* __restrict__ counts) {
  const int64_t ray = int64_t(blockIdx.x) * RAY_THREADS + threadIdx.x;
  if (ray >= in.n_rays) return;
  int64_t count = 0;
  march_one<P>(in, ray, [&](int64_t, P) { ++count; });
  counts[ray] = count;
}

template <class P>
__global__ void __launch_bounds__(RAY_THREADS)
    fill(MarchArguments in, const int64_t* __restrict__ ray_offsets, P* __restrict__ t_starts, P* __restrict__ t_ends) {
  const int64_t ray = int64_t(blockIdx.x) * RAY_THREADS + threadIdx.x;
  if (ray >= in.n_rays) return;
  const P half = P(in.limits.step / 2);
  int64_t n = ray_offsets[ray];
  if (n == ray_offsets[ray + 1]) return;
  march_one<P>(in, ray, [&](int64_t, P t) {
    t_starts[n] = t - half;
    t_ends[n++] = t + half;
  });
}

// A thread for a row of COARSE cells along z; `any` is zero at the start.
__global__ void __launch_bounds__(THREADS) coarse(const bool* __restrict__ occupancy, bool* __restrict__ any, int nx, int ny, int nz) {
  const int bx = (nx + COARSE - 1) / COARSE, by = (ny + COARSE - 1) / COARSE, bz = (nz + COARSE - 1) / COARSE;
  const int64_t row = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  const int z = int(row % bz) * COARSE;
  const int64_t xy = row / bz;
  const int y = int(xy % ny), x = int(xy / ny);
  if (x >= nx || x / COARSE >= bx) return;
  bool found = false;
  for (int i = 0; i < COARSE && z + i < nz; ++i) found = found || occupancy[xy * nz + z + i];
  if (found) any[(int64_t(x / COARSE) * by + y / COARSE) * bz + z / COARSE] = true;
}

}  // namespace

Status march_coarse(const bool* occupancy, bool* any, const int cells[3], Stream stream) {
  const int64_t by = (cells[1] + COARSE - 1) / COARSE, bz = (cells[2] + COARSE - 1) / COARSE;
  const int64_t n = (cells[0] + COARSE - 1) / COARSE * by * bz, rows = int64_t(cells[0]) * cells[1] * bz;
  if (n == 0) return 0;
  const cudaError_t cleared = cudaMemsetAsync(any, 0, n, (cudaStream_t)stream);
  if (cleared != cudaSuccess) return cleared;
  coarse<<<blocks_for(rows), THREADS, 0, (cudaStream_t)stream>>>(occupancy, any, cells[0], cells[1], cells[2]);
  return launched();
}

Status march_count(DType dtype, const MarchArguments& in, int64_t* counts, Stream stream) {
  if (in.n_rays == 0) return 0;
  auto kernel = dtype == DType::f64 ? count<double> : count<float>;
  kernel<<<blocks_for(in.n_rays, RAY_THREADS), RAY_THREADS, 0, (cudaStream_t)stream>>>(in, counts);
  return launched();
}

Status march_fill(DType dtype, const MarchArguments& in, const int64_t* ray_offsets, void* t_starts, void* t_ends,
                  Stream stream) {
  if (in.n_rays == 0) return 0;
  const unsigned blocks = blocks_for(in.n_rays, RAY_THREADS);
  if (dtype == DType::f64)
    fill<<<blocks, RAY_THREADS, 0, (cudaStream_t)stream>>>(in, ray_offsets, (double*)t_starts, (double*)t_ends);
  else
    fill<<<blocks, RAY_THREADS, 0, (cudaStream_t)stream>>>(in, ray_offsets, (float*)t_starts, (float*)t_ends);
  return launched();
}

}  // namespace nerfkit
