// SPDX-License-Identifier: Apache-2.0
// What a warp needs to march a ray with t_edges: the same functions as rays.cuh has for intervals of one length.

#pragma once

#include "march/growing_steps.h"
#include "march/rays.cuh"

namespace nerfkit {

constexpr int MAX_CONTRACTED_PROBES = 8;  // of the coarse grid, per chunk; each takes longer than one of rays.cuh

// A ray in shared memory.
template <class P>
struct ContractedTileRay : ContractedRay<P> {
  static constexpr bool inside = true;  // cells are clamped without a branch: chunks can be in flight together
  static constexpr bool too_long = false;
  int n_chunks;

  __device__ P head() const { return this->jitter; }
};

template <class P>
__device__ __forceinline__ ContractedTileRay<P> contracted_tile_ray(const MarchArguments& in, int64_t index) {
  ContractedTileRay<P> ray{contracted_ray<P>(in, index), 0};
  if (ray.marches) ray.n_chunks = (in.n_intervals + CHUNK - 1) / CHUNK;
  return ray;
}

// Whether a cell near the middle of the segment, within BLOCK / 2 cells, may be occupied.
template <class P>
__device__ __forceinline__ bool probe(const Segment<P>& segment, const CoarseGrid& coarse) {
  uint32_t at[3];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis)
    at[axis] = min(floor_saturated(segment.at[axis] * P(1. / BLOCK) + P(0.5)), uint32_t(coarse.blocks[axis]));
  return coarse.any[(at[0] * (coarse.blocks[1] + 1) + at[1]) * (coarse.blocks[2] + 1) + at[2]];
}

// Whether an interval of the chunk may be a sample: as many probes, a power of two, as cover all of its middles.
template <class P>
__device__ __forceinline__ bool may_have_samples(const ContractedTileRay<P>& ray, const MarchGrid& grid,
                                                 const CoarseGrid& coarse, const GrowingSteps<P>& t_edges, int chunk) {
  constexpr P RADIUS = P(BLOCK / 2 * 0.999);  // cells that a probe covers
  const int begin = chunk * CHUNK, end = min(begin + CHUNK, t_edges.n_intervals);
  const P a = t_edges.middle(ray.jitter, begin), b = t_edges.middle(ray.jitter, end - 1);
  const Segment<P> whole = segment(ray, grid, a, b);
  if (whole.reach <= RADIUS) return probe(whole, coarse);
  if (!(whole.reach <= RADIUS * MAX_CONTRACTED_PROBES)) return true;
  int probes = 2;
  while (whole.reach > RADIUS * P(probes)) probes *= 2;
  const int intervals = CHUNK / probes;  // of a probe
  bool any = false;
#pragma unroll 1
  for (int first = begin; first < end && !any; first += intervals) {
    const int last = min(first + intervals, end) - 1;
    const Segment<P> part = segment(ray, grid, t_edges.middle(ray.jitter, first), t_edges.middle(ray.jitter, last));
    any = !(part.reach <= RADIUS) || probe(part, coarse);
  }
  return any;
}

template <bool INSIDE, class P>
__device__ __forceinline__ Interval interval(const ContractedTileRay<P>& ray, const MarchGrid& grid,
                                             const GrowingSteps<P>& t_edges, P k) {
  if (!(k < P(t_edges.n_intervals))) return {0, false};
  const ContractedCell at = contracted_cell(ray, grid, t_edges.middle(ray.jitter, int(k)));
  return {at.index, at.valid};
}

// 1 / x, rounded as a division of numbers that are neither tiny nor huge, without its branch.
__device__ __forceinline__ float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return fmaf(fmaf(-x, r, 1.f), r, r);
#else
  return 1 / x;
#endif
}

// contracted_cell, with the same bits, for a lane that has many to look up: without a branch.
__device__ __forceinline__ Interval interval_at(const ContractedRay<float>& ray, const MarchGrid& grid, float t) {
  float u[3], largest = 0;
  bool valid = true;
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    u[axis] = product(ray.d[axis], t) + ray.o[axis];
    valid = valid && fabsf(u[axis]) <= 1.2676506002282294e30f;
    largest = fmaxf(largest, fabsf(u[axis]));
  }
  const float inverse = reciprocal(largest), scale = largest <= 1 ? 1.f : (2 - inverse) * inverse;
  uint32_t index = 0;
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    const int n = grid.cells[axis], cell = int((product(u[axis], scale) + 2) * (float(n) * 0.25f));
    index = index * n + min(max(cell, 0), n - 1);
  }
  return {valid ? index : 0, valid};
}

}  // namespace nerfkit
