// SPDX-License-Identifier: Apache-2.0
// Filling: from the masks that counting stored, written to where the counts say.

#pragma once

#include "march/count.cuh"

namespace nerfkit {
namespace {

template <class P>
struct SampleRows {
  P* t_starts;  // [n_rows]
  P* t_ends;    // [n_rows]

  __device__ SampleRows from(int64_t n) const { return {t_starts + n, t_ends + n}; }
  // Interval k of a ray whose head is `start`.
  __device__ void put(int n, const Steps<P>& steps, P start, int k) const {
    const P t = start + P(k) * steps.step;
    t_starts[n] = t - steps.half, t_ends[n] = t + steps.half;
  }
  __device__ void put(int n, const GrowingSteps<P>& t_edges, P jitter, int k) const {
    t_starts[n] = t_edges.end(jitter, k), t_ends[n] = t_edges.end(jitter, k + 1);
  }
  __device__ void clear(int64_t n) const { t_starts[n] = t_ends[n] = P(0); }
};

// Samples of the ray of a lane: the first one's row, and how many.
struct Span {
  int64_t offset, count;
};

// One of this warp's rays per lane. Each lane sums two rays of the tile, a warp all of them; warp 0 writes the offsets.
template <class P>
__device__ __forceinline__ Span span_of_lane(const MarchArguments& in, const Workspace<P>& found,
                                             int64_t* __restrict__ ray_offsets) {  // [R + 1]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t r = int64_t(blockIdx.x) * TILE + 2 * lane;
  const bool has_a = r < in.n_rays, has_b = r + 1 < in.n_rays;
  const int64_t a = has_a ? found.counts[r] : 0, b = has_b ? found.counts[r + 1] : 0;
  const int64_t offset_b = found.tile_offsets[blockIdx.x] + warp_inclusive_sum(a + b, lane, 32) - b,
                offset_a = offset_b - a;
  if (warp == 0) {
    if (has_a) ray_offsets[r] = offset_a;
    if (has_b) ray_offsets[r + 1] = offset_b;
  }
  const int mine = warp * RAYS_PER_WARP + lane, from = mine / 2 % 32;
  const Span even{__shfl_sync(FULL_MASK, offset_a, from), __shfl_sync(FULL_MASK, a, from)};
  const Span odd{__shfl_sync(FULL_MASK, offset_b, from), __shfl_sync(FULL_MASK, b, from)};
  return {mine % 2 ? odd.offset : even.offset, lane >= RAYS_PER_WARP ? 0 : mine % 2 ? odd.count : even.count};
}

// Writes the samples of `chunks` chunks of a ray; `stored` is one of them per lane.
template <template <class> class Spacing, class P>
__device__ __forceinline__ void fill_chunks(SampleMask stored, int chunks, P start, const Spacing<P>& spacing,
                                            SampleRows<P> to) {
  const int lane = threadIdx.x % 32;
  for (int c = 0; c < chunks; ++c) {
    const unsigned mask = __shfl_sync(FULL_MASK, stored.mask, c);
    const int chunk = __shfl_sync(FULL_MASK, int(stored.chunk), c);
    if (mask >> lane & 1) to.put(__popc(mask & ((1u << lane) - 1)), spacing, start, chunk * CHUNK + lane);
    to = to.from(__popc(mask));
  }
}

// The same for a ray with more chunks than were stored: marches it again.
template <template <class> class Ray, template <class> class Spacing, class P>
__device__ __forceinline__ void fill_by_marching(const MarchArguments& in, const CoarseGrid& coarse, int64_t index,
                                                 const Spacing<P>& spacing, SampleRows<P> to) {
  const Ray<P> ray = ray_of<Ray, P>(in, index);
  march_warp(ray, in.grid, coarse, spacing, [&](int chunk, unsigned mask) {
    for (unsigned some = __ballot_sync(FULL_MASK, mask != 0); some; some &= some - 1) {
      const int next = __ffs(some) - 1;
      fill_chunks({__shfl_sync(FULL_MASK, mask, next), unsigned(__shfl_sync(FULL_MASK, chunk, next))}, 1, ray.head(),
                  spacing, to);
      to = to.from(__popc(__shfl_sync(FULL_MASK, mask, next)));
    }
  });
}

template <template <class> class Ray, class P>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM<P>)
    march_fill_rays(MarchArguments in, Workspace<P> found, int64_t n_rows,
                    int64_t* __restrict__ ray_offsets,  // [R + 1]
                    SampleRows<P> rows) {
  const int lane = threadIdx.x % 32;
  const int64_t first = int64_t(blockIdx.x) * TILE + threadIdx.x / 32 * RAYS_PER_WARP,
                n_samples = found.tile_offsets[gridDim.x];
  const auto spacing = spacing_of<Ray, P>(in);
  RayHead<P> head{};  // of the ray of this lane
  if (lane < RAYS_PER_WARP && first + lane < in.n_rays) head = found.heads[first + lane];
  SampleMask stored[RAYS_PER_WARP];
#pragma unroll
  for (int i = 0; i < RAYS_PER_WARP; ++i) {
    stored[i] = {};
    if (lane < __shfl_sync(FULL_MASK, head.chunks, i)) stored[i] = found.masks[(first + i) * STORED_CHUNKS + lane];
  }
  const Span span = span_of_lane(in, found, ray_offsets);
  const bool some = span.count > 0 && span.offset <= n_rows, fits = some && span.count <= n_rows - span.offset;
  const int chunks = fits && head.chunks <= STORED_CHUNKS ? head.chunks : 0;
#pragma unroll
  for (int i = 0; i < RAYS_PER_WARP; ++i)
    fill_chunks(stored[i], __shfl_sync(FULL_MASK, chunks, i), __shfl_sync(FULL_MASK, head.start, i), spacing,
                rows.from(__shfl_sync(FULL_MASK, span.offset, i)));
#pragma unroll 1
  for (unsigned again = __ballot_sync(FULL_MASK, fits && head.chunks > STORED_CHUNKS); again; again &= again - 1) {
    const int i = __ffs(again) - 1;
    fill_by_marching<Ray>(in, found.coarse, first + i, spacing, rows.from(__shfl_sync(FULL_MASK, span.offset, i)));
  }
  // Rows from the first ray that does not fit on have no samples; nor have those behind all samples.
  if (const unsigned cut = __ballot_sync(FULL_MASK, some && !fits))
    for (int64_t n = __shfl_sync(FULL_MASK, span.offset, __ffs(cut) - 1) + lane; n < n_rows; n += 32) rows.clear(n);
  const int64_t thread = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  for (int64_t n = n_samples + thread; n < n_rows; n += int64_t(gridDim.x) * THREADS) rows.clear(n);
  if (thread == 0) ray_offsets[in.n_rays] = n_samples;
}

}  // namespace
}  // namespace nerfkit
