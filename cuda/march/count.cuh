// SPDX-License-Identifier: Apache-2.0
// Counting: a block takes a tile of rays, whose warps take one ray after the other. The masks of the samples are stored
// for filling; the last block scans the tiles' sums.

#pragma once

#include "march/growing_steps.cuh"

namespace nerfkit {
namespace {

constexpr int TILE = 64;  // rays of a block; TILE_CUDA of nerfkit/ops/march.py
constexpr int WARPS = THREADS / 32;
constexpr int RAYS_PER_WARP = TILE / WARPS;  // when filling
constexpr int STORED_CHUNKS = 32;  // chunks of a ray whose masks are stored, one per lane of the warp that fills;
                                   // a ray with more is marched again. KEPT_CUDA of nerfkit/ops/march.py
static_assert(TILE == 2 * 32, "each lane of a warp sums the counts of two rays");

// Blocks per multiprocessor that the registers are limited for: 64 of float32, 128 of float64 per thread.
template <class P>
constexpr int BLOCKS_PER_SM = sizeof(P) == 4 ? 4 : 2;

struct alignas(8) SampleMask {
  unsigned mask, chunk;  // bit i: interval i of the chunk is a sample
};

template <class P>
struct alignas(2 * sizeof(P)) RayHead {
  P start;     // distance of the middle of the first interval; with t_edges: jitter
  int chunks;  // that have samples
};

// MarchCounts with its workspace divided.
template <class P>
struct Workspace {
  int64_t* counts;        // [R]
  int64_t* tile_offsets;  // [tiles + 1]
  SampleMask* masks;      // [R, STORED_CHUNKS]
  RayHead<P>* heads;      // [R]
  unsigned* ticket;       // [1] tiles that are counted
  CoarseGrid coarse;
};

// The kernels take one of two kinds of rays: TileRay, or with t_edges ContractedTileRay.
template <template <class> class Ray, class P>
constexpr bool HAS_EDGES = std::is_same_v<Ray<P>, ContractedTileRay<P>>;

template <template <class> class Ray, class P>
__device__ __forceinline__ Ray<P> ray_of(const MarchArguments& in, int64_t index) {
  if constexpr (HAS_EDGES<Ray, P>)
    return contracted_tile_ray<P>(in, index);
  else
    return tile_ray<P>(in, index);
}

template <template <class> class Ray, class P>
__device__ __forceinline__ auto spacing_of(const MarchArguments& in) {
  if constexpr (HAS_EDGES<Ray, P>)
    return GrowingSteps<P>{(const P*)in.t_edges, in.n_intervals};
  else
    return Steps<P>{P(in.limits.step), P(in.limits.step / 2)};
}

// Exclusive scan in place of tile_offsets [n_tiles], whose last + 1 becomes the total. One block; the other blocks'
// sums are read from L2.
__device__ __forceinline__ void scan_tiles(int64_t* tile_offsets, int64_t n_tiles) {
  constexpr int EACH = 4;  // tiles of a thread
  __shared__ int64_t warps[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t before = 0;
  for (int64_t first = 0; first < n_tiles; first += THREADS * EACH) {
    const int64_t tile = first + threadIdx.x * EACH;
    int64_t samples[EACH], mine = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i)
      samples[i] = tile + i < n_tiles ? __ldcg(reinterpret_cast<const long long*>(tile_offsets) + tile + i) : 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) mine += samples[i];
    const int64_t upto = warp_inclusive_sum(mine, lane, 32);
    if (lane == 31) warps[warp] = upto;
    __syncthreads();
    int64_t offset = before + upto - mine;
    for (int w = 0; w < WARPS; ++w) {
      if (w < warp) offset += warps[w];
      before += warps[w];
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (tile + i < n_tiles) tile_offsets[tile + i] = offset;
      offset += samples[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) tile_offsets[n_tiles] = before;
}

// Writes what a block has counted. Lane 0 returns whether this block is the last to do so. One warp calls it.
template <template <class> class Ray, class P>
__device__ __forceinline__ bool store_tile(const MarchArguments& in, const Workspace<P>& found,
                                           const Ray<P>* rays,   // [n_rays]
                                           const int2* counted,  // [n_rays] samples, chunks that have some
                                           int n_rays) {
  const int lane = threadIdx.x % 32;
  const int64_t first = int64_t(blockIdx.x) * TILE;
  int64_t sum = 0;
  for (int r = lane; r < n_rays; r += 32) {
    const int64_t samples = rays[r].too_long ? in.too_many : counted[r].x;
    found.counts[first + r] = samples;
    found.heads[first + r] = {rays[r].head(), counted[r].y};
    sum += samples;
  }
  sum = warp_sum(sum, 32);
  if (lane != 0) return false;
  // The tile's sum is to be seen before its ticket, and all sums after the last ticket.
  found.tile_offsets[blockIdx.x] = sum;
  __threadfence();
  const bool last = atomicAdd(found.ticket, 1u) == gridDim.x - 1;
  __threadfence();
  return last;
}

template <template <class> class Ray, class P>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM<P>) march_count_rays(MarchArguments in, Workspace<P> found) {
  __shared__ Ray<P> rays[TILE];
  __shared__ int2 counted[TILE];  // samples, chunks that have some
  __shared__ unsigned next;       // ray that no warp has taken
  __shared__ bool last;           // whether this block is the last
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = int64_t(blockIdx.x) * TILE;
  const int n_rays = int(min(int64_t(TILE), in.n_rays - first));
  if (threadIdx.x < n_rays) rays[threadIdx.x] = ray_of<Ray, P>(in, first + threadIdx.x);
  if (threadIdx.x == 0) next = WARPS;
  __syncthreads();
  const auto spacing = spacing_of<Ray, P>(in);
  SampleMask* masks = found.masks + first * STORED_CHUNKS;
  for (int r = warp; r < n_rays;) {
    int samples = 0, chunks = 0;
    march_warp(Ray<P>(rays[r]), in.grid, found.coarse, spacing, [&](int chunk, unsigned mask) {
      const unsigned some = __ballot_sync(FULL_MASK, mask != 0);
      const int index = chunks + __popc(some & ((1u << lane) - 1));  // of this chunk among those with samples
      if (mask && index < STORED_CHUNKS) masks[r * STORED_CHUNKS + index] = {mask, unsigned(chunk)};
      chunks += __popc(some);
      samples += __popc(mask);
    });
    samples = warp_sum(samples, 32);
    if (lane == 0) {
      counted[r] = {samples, chunks};
      r = int(atomicInc(&next, ~0u));  // the next ray; the compiler would make a warp-wide sum of an atomicAdd
    }
    r = __shfl_sync(FULL_MASK, r, 0);
  }
  __syncthreads();
  if (warp == 0) {
    const bool all = store_tile(in, found, rays, counted, n_rays);
    if (lane == 0) last = all;
  }
  __syncthreads();
  if (last) scan_tiles(found.tile_offsets, gridDim.x);
}

}  // namespace
}  // namespace nerfkit
