// SPDX-License-Identifier: Apache-2.0
// One warp marches one ray. First each lane probes the coarse grid for one chunk of 32 intervals; then, for every chunk
// that may have samples, each lane tests one interval in the occupancy grid. The result is a mask: one bit per
// interval.

#pragma once

#include "common/gpu.cuh"
#include "march/args.h"

namespace nerfkit {

constexpr int CHUNK = 32;  // intervals: one per lane, one bit of a mask each
constexpr int BLOCK = 4;   // cells along one side of a block of the coarse grid; COARSE_CUDA of nerfkit/ops/march.py
constexpr int MAX_PROBES = 32;  // of the coarse grid, per chunk: beyond, probing costs as much as testing all intervals
constexpr int IN_FLIGHT = 2;    // chunks whose occupancy is loaded before the first is used

// Entry c along an axis: whether block c - 1 or block c has an occupied cell. So the entry of a point p, in blocks,
// floor(p + 1/2), covers all cells within BLOCK / 2 cells of it.
struct CoarseGrid {
  int blocks[3];
  bool* any;  // [blocks[0] + 1, blocks[1] + 1, blocks[2] + 1] entries
};

// A ray in shared memory: all that a warp needs to march it.
template <class P>
struct alignas(16) TileRay {
  P o[3], d[3], start, leave;  // origin and direction in cells; distances
  P coarse_o[3], coarse_d[3];  // middle of chunk c in entries of the coarse grid: coarse_o + c coarse_d
  int n_chunks;                // at most so many have an interval before leave
  int8_t probes;               // that cover all cells of a chunk; 0: more than MAX_PROBES
  bool inside;                 // no interval has to be clamped to the last cell along an axis
  bool too_long;

  __device__ P head() const { return start; }
};

// Intervals of one length. GrowingSteps of growing_steps.h is the other kind of spacing, ContractedTileRay of
// growing_steps.cuh its ray.
template <class P>
struct Steps {
  P step, half;
};

// Probes that a chunk needs if neighbouring middles are `reach` cells apart and a probe covers `radius` cells.
template <class P>
__device__ __forceinline__ int8_t probes_of_chunk(P reach, P radius) {
  int probes = 2;
  while (probes <= MAX_PROBES && !(P(CHUNK / probes - 1) / 2 * reach <= radius)) probes *= 2;
  return probes > MAX_PROBES ? 0 : probes;
}

// Ray `index`; one that is too long has no samples.
template <class P>
__device__ __forceinline__ TileRay<P> tile_ray(const MarchArguments& in, int64_t index) {
  const P* jitter = (const P*)in.jitter;
  const GridRay<P> ray =
      grid_ray((const P*)in.origins + 3 * index, (const P*)in.directions + 3 * index, (const P*)in.box,
               jitter ? jitter[index] : P(0), jitter != nullptr, in.grid, in.limits);
  constexpr P EPSILON = sizeof(P) == 4 ? P(1.1920929e-7) : P(2.220446049250313e-16);
  TileRay<P> r;
  r.too_long = ray.too_long();
  r.start = ray.start;
  r.leave = r.too_long ? ray.start : ray.leave;
  const bool hits = r.start < r.leave;
  const P intervals = hits ? (r.leave - r.start) * ray.inverse_step : P(0);
  const P farthest = fabs(r.start) + fabs(r.leave) + P(CHUNK) * ray.step;
  // A middle behind leave may be rounded to one before it: so many intervals more are tested.
  const P slack = P(2) + intervals * P(1e-5) + farthest * ray.inverse_step * (4 * EPSILON);
  const P chunks = (intervals + slack) * P(1. / CHUNK) + P(1);
  r.n_chunks = !hits ? 0 : chunks < P(1 << 24) ? int(chunks) : 1 << 24;
  // Rounding keeps the order of middles, so that all cells are between those of the first and of the last.
  const int k = int(intervals) + 1;
  const P last = ray.middle(k - 1);
  r.inside = !(ray.middle(k) < r.leave);
  P reach = 0, error = 0;  // in cells, along the worst axis; error: of rounding
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    r.o[axis] = ray.o[axis], r.d[axis] = ray.d[axis];
    const P speed = fabs(ray.d[axis]);
    reach = fmax(reach, speed * ray.step);
    error = fmax(error, (fabs(ray.o[axis]) + speed * farthest) * (16 * EPSILON));
    r.coarse_d[axis] = ray.d[axis] * ray.step * P(double(CHUNK) / BLOCK);
    const P middle = ray.o[axis] + ray.d[axis] * (r.start + P((CHUNK - 1) / 2.) * ray.step);
    r.coarse_o[axis] = middle * P(1. / BLOCK) + P(0.5);
    const P a = ray.o[axis] + ray.d[axis] * r.start, b = ray.o[axis] + ray.d[axis] * last, n = P(in.grid.cells[axis]);
    r.inside = r.inside && a < n && b < n;
  }
  r.probes = probes_of_chunk(reach, P(BLOCK / 2) * P(0.999) - error);
  return r;
}

// Rounded down and saturated: 0 for what is negative or NaN, 2^32 - 1 for what is too large.
__device__ __forceinline__ uint32_t floor_saturated(float x) { return __float2uint_rz(x); }
__device__ __forceinline__ uint32_t floor_saturated(double x) { return __double2uint_rz(x); }

// The entry of the coarse grid at the middle of chunk `chunk`, which may be a fraction.
template <class P>
__device__ __forceinline__ bool probe(const TileRay<P>& ray, const CoarseGrid& coarse, P chunk) {
  uint32_t at[3];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis)
    at[axis] = min(floor_saturated(ray.coarse_o[axis] + chunk * ray.coarse_d[axis]), uint32_t(coarse.blocks[axis]));
  return coarse.any[(at[0] * (coarse.blocks[1] + 1) + at[1]) * (coarse.blocks[2] + 1) + at[2]];
}

// Whether an interval of the chunk may be a sample.
template <class P>
__device__ __forceinline__ bool may_have_samples(const TileRay<P>& ray, const MarchGrid&, const CoarseGrid& coarse,
                                                 const Steps<P>&, int chunk) {
  if (ray.probes == 2) {
    const bool a = probe(ray, coarse, P(chunk) - P(0.25)), b = probe(ray, coarse, P(chunk) + P(0.25));
    return a | b;
  }
  bool any = ray.probes == 0;
#pragma unroll 1
  for (int i = 0; i < ray.probes && !any; ++i)
    any = probe(ray, coarse, P(chunk) + ((P(i) + P(0.5)) / P(ray.probes) - P(0.5)));
  return any;
}

// The cell of the middle of an interval; cell 0 for one behind the end of the ray.
struct Interval {
  uint32_t cell;  // index into occupancy
  bool valid;     // in front of the end of the ray
};

template <bool INSIDE, class P>
__device__ __forceinline__ Interval interval(const TileRay<P>& ray, const MarchGrid& grid, const Steps<P>& steps, P k) {
  const P t = ray.start + k * steps.step;
  uint32_t at[3];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    at[axis] = floor_saturated(ray.o[axis] + ray.d[axis] * t);
    if (!INSIDE) at[axis] = min(at[axis], uint32_t(grid.cells[axis] - 1));
  }
  const bool valid = t < ray.leave;
  return {valid ? (at[0] * grid.cells[1] + at[1]) * grid.cells[2] + at[2] : 0, valid};
}

// Mask of the intervals of chunk base + lane that are samples, for the chunks in the mask `left`; 0 for the others.
// INSIDE: no middle has to be clamped to the last cell, so that loads need not be waited for one by one.
template <bool INSIDE, template <class> class Ray, template <class> class Spacing, class P>
__device__ __forceinline__ unsigned test_intervals(const Ray<P>& ray, const MarchGrid& grid, const Spacing<P>& spacing,
                                                   int base, unsigned left) {
  constexpr int N = INSIDE ? IN_FLIGHT : 1;
  const int lane = threadIdx.x % 32;
  const P first = P(base * CHUNK + lane);
  const uint8_t* occupancy = reinterpret_cast<const uint8_t*>(grid.occupancy);
  unsigned mine = 0;
  while (left) {
    int chunk[N];
    Interval mid[N];
    unsigned occupied[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int highest = 31 - __clz(left);
      chunk[i] = i == 0 || highest >= 0 ? highest : chunk[i > 0 ? i - 1 : 0];  // none left: the previous one again
      left &= ~(1u << chunk[i]);
      mid[i] = interval<INSIDE>(ray, grid, spacing, P(chunk[i]) * P(CHUNK) + first);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) occupied[i] = __ldg(occupancy + mid[i].cell);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const unsigned samples = __ballot_sync(FULL_MASK, mid[i].valid && occupied[i]);
      if (lane == chunk[i]) mine = samples;
    }
  }
  return mine;
}

// Calls emit(chunk, mask of its samples), one chunk per lane, near to far. All lanes of a warp call this with one ray.
template <template <class> class Ray, template <class> class Spacing, class P, class F>
__device__ __forceinline__ void march_warp(const Ray<P>& ray, const MarchGrid& grid, const CoarseGrid& coarse,
                                           const Spacing<P>& spacing, const F& emit) {
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < ray.n_chunks; base += 32) {
    const int chunk = base + lane;
    const unsigned near =
        __ballot_sync(FULL_MASK, chunk < ray.n_chunks && may_have_samples(ray, grid, coarse, spacing, chunk));
    if (near == 0) continue;
    emit(chunk, ray.inside ? test_intervals<true>(ray, grid, spacing, base, near)
                           : test_intervals<false>(ray, grid, spacing, base, near));
  }
}

}  // namespace nerfkit
