// SPDX-License-Identifier: Apache-2.0
// A warp takes some rays, one after the other: 32 lanes look which chunks of intervals come near anything, then whether the
// intervals of such chunks are samples. The first samples of a ray are kept and only moved to where the counts say; a ray that
// has more walks again.

#include "gpu.cuh"
#include "march.h"

namespace nerfkit {
namespace {

constexpr int RAYS = 4;    // of a warp
constexpr int CHUNK = 16;  // intervals
constexpr int KEPT = 64;
constexpr int COARSE = 4;  // cells of the occupancy along one side of a coarse cell

// Whether an interval of the chunk from k on may be a sample. Along a ray a coordinate only rises or only falls, rounding
// included, so that all cells are between those of both ends.
template <class P>
__device__ __forceinline__ bool near_occupied(const GridRay<P>& ray, const MarchGrid& grid, int k) {
  const MarchCell a = cell_at(ray, grid, ray.middle(k)), b = cell_at(ray, grid, ray.middle(k + CHUNK - 1));
  int first[3];
  bool near = true;  // both ends are in the 2 x 2 x 2 coarse cells that one look tells of
  for (int axis = 0; axis < 3; ++axis) {
    const int from = a.cell[axis] / COARSE, to = b.cell[axis] / COARSE;
    first[axis] = min(from, to);
    near = near && max(from, to) - first[axis] <= 1;
  }
  return !near || grid.any[place_in(first, grid.coarse)];
}

// Calls emit(whether this lane's interval is a sample, its middle, the samples of the lower lanes, those of all lanes), near
// to far. The lanes of a warp call this together, with one ray.
template <class P, class F>
__device__ __forceinline__ void march_together(const GridRay<P>& ray, const MarchGrid& grid, const F& emit) {
  const int lane = threadIdx.x % 32;
  for (int base = 0;; base += 32 * CHUNK) {
    const int k = base + lane * CHUNK;
    const bool inside = ray.middle(k) < ray.leave;
    unsigned chunks = __ballot_sync(ALL_LANES, inside && near_occupied(ray, grid, k));
    while (chunks) {
#pragma unroll
      for (int i = 1; i < 32 / CHUNK; ++i)
        if (lane >= i * CHUNK) chunks &= chunks - 1;  // CHUNK lanes for each of the next chunks
      const P t = ray.middle(base + (__ffs(chunks) - 1) * CHUNK + lane % CHUNK);
      bool sample = chunks && t < ray.leave;
      if (sample) sample = grid.occupancy[place_in(cell_at(ray, grid, t).cell, grid.cells)];
      const unsigned samples = __ballot_sync(ALL_LANES, sample);
      emit(sample, t, __popc(samples & ((1u << lane) - 1)), __popc(samples));
      chunks = __shfl_sync(ALL_LANES, chunks & (chunks - 1), 31);
    }
    if (!__all_sync(ALL_LANES, inside)) return;
  }
}

// Ray `index`, without samples if it has too many.
template <class P>
__device__ __forceinline__ GridRay<P> ray_at(const MarchArguments& in, int64_t index, bool& too_long) {
  const P* jitter = (const P*)in.jitter;
  GridRay<P> ray = grid_ray((const P*)in.origins + 3 * index, (const P*)in.directions + 3 * index, (const P*)in.box,
                            jitter ? jitter[index] : P(0), jitter != nullptr, in.grid, in.limits);
  too_long = ray.too_long();
  if (too_long) ray.leave = ray.start;
  return ray;
}

template <class P>
__device__ __forceinline__ GridRay<P> ray_of_lane(const GridRay<P>& rays, int lane) {
  GridRay<P> ray{};
  for (int axis = 0; axis < 3; ++axis) {
    ray.o[axis] = __shfl_sync(ALL_LANES, rays.o[axis], lane);
    ray.d[axis] = __shfl_sync(ALL_LANES, rays.d[axis], lane);
  }
  ray.start = __shfl_sync(ALL_LANES, rays.start, lane);
  ray.step = __shfl_sync(ALL_LANES, rays.step, lane);
  ray.leave = __shfl_sync(ALL_LANES, rays.leave, lane);
  return ray;
}

template <class P>
__global__ void __launch_bounds__(THREADS) count(MarchArguments in, int64_t* __restrict__ counts, P* __restrict__ kept) {
  const int lane = threadIdx.x % 32;
  const int64_t first = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / 32 * RAYS;
  GridRay<P> rays{};
  bool too_long = false;
  const bool is_ray = lane < RAYS && first + lane < in.n_rays;
  if (is_ray) rays = ray_at<P>(in, first + lane, too_long);
  int64_t mine = 0;
  for (int r = 0; r < RAYS && first + r < in.n_rays; ++r) {
    P* row = kept + (first + r) * KEPT;
    int count = 0;
    march_together(ray_of_lane(rays, r), in.grid, [&](bool sample, P t, int before, int all) {
      if (sample && count + before < KEPT) row[count + before] = t;
      count += all;
    });
    if (lane == r) mine = too_long ? in.too_many : count;
  }
  if (is_ray) counts[first + lane] = mine;
}

template <class P>
__global__ void __launch_bounds__(THREADS)
    fill(MarchArguments in, const int64_t* __restrict__ ray_offsets, int64_t n_rows, const P* __restrict__ kept,
         P* __restrict__ t_starts, P* __restrict__ t_ends) {
  const P half = P(in.limits.step / 2);
  const int lane = threadIdx.x % 32;
  const int64_t first = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / 32 * RAYS;
  const bool is_ray = lane < RAYS && first + lane < in.n_rays;
  const int64_t offset = is_ray ? ray_offsets[first + lane] : 0, end = is_ray ? ray_offsets[first + lane + 1] : 0;
  const bool again = end <= n_rows && end - offset > KEPT;
  const int count = end <= n_rows && !again ? int(end - offset) : 0;
  GridRay<P> rays{};
  bool too_long;
  if (again) rays = ray_at<P>(in, first + lane, too_long);
  for (int r = 0; r < RAYS; ++r) {
    int64_t n = __shfl_sync(ALL_LANES, offset, r);
    const int all = __shfl_sync(ALL_LANES, count, r);
    for (int i = lane; i < all; i += 32) {
      const P t = kept[(first + r) * KEPT + i];
      t_starts[n + i] = t - half, t_ends[n + i] = t + half;
    }
    if (!__shfl_sync(ALL_LANES, again, r)) continue;
    march_together(ray_of_lane(rays, r), in.grid, [&](bool sample, P t, int before, int all) {
      if (sample) t_starts[n + before] = t - half, t_ends[n + before] = t + half;
      n += all;
    });
  }
}

// A thread for a row of COARSE cells along z; `any` is zero at the start.
__global__ void __launch_bounds__(THREADS) coarse(const bool* __restrict__ occupancy, bool* __restrict__ any, int nx, int ny, int nz) {
  const int by = (ny + COARSE - 1) / COARSE, bz = (nz + COARSE - 1) / COARSE;
  const int64_t row = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  const int z = int(row % bz) * COARSE;
  const int64_t xy = row / bz;
  const int y = int(xy % ny);
  const int64_t x = xy / ny;
  if (x >= nx) return;
  bool found = false;
  for (int i = 0; i < COARSE && z + i < nz; ++i) found = found || occupancy[xy * nz + z + i];
  if (!found) return;
  const int block[3] = {int(x) / COARSE, y / COARSE, z / COARSE}, size[3] = {0, by, bz};
  for (int near = 0; near < 8; ++near) {
    const int cell[3] = {block[0] - (near >> 2), block[1] - (near >> 1 & 1), block[2] - (near & 1)};
    if (cell[0] >= 0 && cell[1] >= 0 && cell[2] >= 0) any[place_in(cell, size)] = true;
  }
}

}  // namespace

int march_coarse_side() { return COARSE; }

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
  const unsigned blocks = blocks_for(in.n_rays, THREADS / 32 * RAYS);
  if (dtype == DType::f64)
    count<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(in, counts, (double*)kept);
  else
    count<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(in, counts, (float*)kept);
  return launched();
}

Status march_fill(DType dtype, const MarchArguments& in, const int64_t* ray_offsets, int64_t n_rows, const void* kept,
                  void* t_starts, void* t_ends, Stream stream) {
  if (in.n_rays == 0) return 0;
  const unsigned blocks = blocks_for(in.n_rays, THREADS / 32 * RAYS);
  if (dtype == DType::f64)
    fill<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(in, ray_offsets, n_rows, (const double*)kept, (double*)t_starts, (double*)t_ends);
  else
    fill<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(in, ray_offsets, n_rows, (const float*)kept, (float*)t_starts, (float*)t_ends);
  return launched();
}

}  // namespace nerfkit
