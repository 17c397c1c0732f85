// SPDX-License-Identifier: Apache-2.0
// Eight lanes a ray, which look at neighbouring intervals, to count the samples. The first of them are kept and only moved
// to where the counts say; a ray that has more walks again.

#include "gpu.cuh"
#include "march.h"

namespace nerfkit {
namespace {

constexpr int LANES = 8;
constexpr int KEPT = 64;

// Calls emit(whether this lane's interval is a sample, its middle, the samples of the lower lanes, those of all lanes);
// false if the ray has too many intervals. The lanes of a warp call this together.
template <class P, class F>
__device__ __forceinline__ bool march_together(const MarchArguments& in, int64_t index, const F& emit) {
  const int lane = threadIdx.x % LANES, shift = threadIdx.x % 32 / LANES * LANES;
  const P* jitter = (const P*)in.jitter;
  bool is_ray = index < in.n_rays;
  GridRay<P> ray{};
  if (is_ray)
    ray = grid_ray((const P*)in.origins + 3 * index, (const P*)in.directions + 3 * index, (const P*)in.box,
                   jitter ? jitter[index] : P(0), jitter != nullptr, in.grid, in.limits);
  const bool too_long = is_ray && ray.too_long();
  is_ray = is_ray && !too_long;
  int base = 0;
  while (true) {
    const P t = ray.middle(base + lane);
    const bool inside = is_ray && t < ray.leave;
    if (!__any_sync(ALL_LANES, inside)) return !too_long;
    MarchCell at{};
    bool some = false, occupied = false;
    if (inside) {
      at = cell_at(ray, in.grid, t);
      some = in.grid.any[place_in(at.block, in.grid.coarse)];
      occupied = in.grid.occupancy[place_in(at.cell, in.grid.cells)];  // not to wait for one before the other
    }
    constexpr unsigned MINE = (1u << LANES) - 1;
    const unsigned samples = __ballot_sync(ALL_LANES, occupied) >> shift & MINE;
    emit(occupied, t, __popc(samples & ((1u << lane) - 1)), __popc(samples));
    const bool nothing = (__ballot_sync(ALL_LANES, some) >> shift & MINE) == 0;
    int next = base + LANES;
    if (nothing && inside) next = max(next, last_in_block(ray, at.block) + 1);
    base = __shfl_sync(ALL_LANES, next, LANES - 1, LANES);  // all lanes before the last have nothing
  }
}

template <class P>
__global__ void __launch_bounds__(THREADS) count(MarchArguments in, int64_t* __restrict__ counts, P* __restrict__ kept) {
  const int64_t ray = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / LANES;
  int count = 0;
  const bool fits = march_together<P>(in, ray, [&](bool sample, P t, int before, int all) {
    if (sample && count + before < KEPT) kept[ray * KEPT + count + before] = t;
    count += all;
  });
  if (ray < in.n_rays && threadIdx.x % LANES == 0) counts[ray] = fits ? count : TOO_MANY;
}

template <class P>
__global__ void __launch_bounds__(THREADS)
    fill(MarchArguments in, const int64_t* __restrict__ ray_offsets, int64_t n_rows, const P* __restrict__ kept,
         P* __restrict__ t_starts, P* __restrict__ t_ends) {
  const int64_t ray = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / LANES;
  const P half = P(in.limits.step / 2);
  int64_t n = ray < in.n_rays ? ray_offsets[ray] : 0;
  const int64_t end = ray < in.n_rays ? ray_offsets[ray + 1] : 0, count = end <= n_rows ? end - n : 0;
  for (int i = threadIdx.x % LANES; i < count && count <= KEPT; i += LANES) {
    const P t = kept[ray * KEPT + i];
    t_starts[n + i] = t - half, t_ends[n + i] = t + half;
  }
  march_together<P>(in, count <= KEPT ? in.n_rays : ray, [&](bool sample, P t, int before, int all) {
    if (sample) t_starts[n + before] = t - half, t_ends[n + before] = t + half;
    n += all;
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

int64_t march_kept() { return KEPT; }

Status march_count(DType dtype, const MarchArguments& in, int64_t* counts, void* kept, Stream stream) {
  if (in.n_rays == 0) return 0;
  const unsigned blocks = blocks_for(in.n_rays * LANES);
  if (dtype == DType::f64)
    count<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(in, counts, (double*)kept);
  else
    count<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(in, counts, (float*)kept);
  return launched();
}

Status march_fill(DType dtype, const MarchArguments& in, const int64_t* ray_offsets, int64_t n_rows, const void* kept,
                  void* t_starts, void* t_ends, Stream stream) {
  if (in.n_rays == 0) return 0;
  const unsigned blocks = blocks_for(in.n_rays * LANES);
  if (dtype == DType::f64)
    fill<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(in, ray_offsets, n_rows, (const double*)kept, (double*)t_starts, (double*)t_ends);
  else
    fill<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(in, ray_offsets, n_rows, (const float*)kept, (float*)t_starts, (float*)t_ends);
  return launched();
}

}  // namespace nerfkit
