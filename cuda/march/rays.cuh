// SPDX-License-Identifier: Apache-2.0
// How a warp walks along a ray: each lane looks whether a chunk of 32 intervals comes near anything, then all look at
// the intervals of such chunks, one a lane. A bit an interval says which are samples.

#pragma once

#include "common/gpu.cuh"
#include "march/args.h"

namespace nerfkit {

constexpr int CHUNK = 32;       // intervals
constexpr int BLOCK = 4;        // cells of the occupancy along one side of a block
constexpr int MOST_LOOKS = 32;  // at the coarse grid, of a chunk
constexpr int AT_ONCE = 2;      // chunks whose occupancy is asked for before the first answer is there

// Entry c along an axis: whether block c - 1 or c has an occupied cell. So the entry at a point, in blocks and half a
// block further, tells of all cells within BLOCK / 2 of it.
struct CoarseGrid {
  int blocks[3];  // there is one more entry along each axis
  bool* any;
};

// What the lanes of a warp know of their ray.
template <class P>
struct alignas(16) TileRay {
  P o[3], d[3], start, leave;
  P coarse_o[3], coarse_d[3];  // middle of chunk c in entries of the coarse grid: coarse_o + c coarse_d
  int n_chunks;                // at most so many have an interval before leave
  int8_t looks;                // that tell of all cells of a chunk; 0: more than MOST_LOOKS
  bool inside;                 // no interval has to be clamped to the last cell along an axis
  bool too_long;
};

// Looks that a chunk needs if neighbouring middles are `reach` cells apart and a look tells of what is within `room`.
template <class P>
__device__ __forceinline__ int8_t looks_at(P reach, P room) {
  int looks = 2;
  while (looks <= MOST_LOOKS && !(P(CHUNK / looks - 1) / 2 * reach <= room)) looks *= 2;
  return looks > MOST_LOOKS ? 0 : looks;
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
  const bool some = r.start < r.leave;
  const P intervals = some ? (r.leave - r.start) * ray.inverse_step : P(0);
  const P farthest = fabs(r.start) + fabs(r.leave) + P(CHUNK) * ray.step;
  // A middle behind leave may be rounded to one before it: so many intervals more are looked at.
  const P slack = P(2) + intervals * P(1e-5) + farthest * ray.inverse_step * (4 * EPSILON);
  const P chunks = (intervals + slack) * P(1. / CHUNK) + P(1);
  r.n_chunks = !some ? 0 : chunks < P(1 << 24) ? int(chunks) : 1 << 24;
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
  r.looks = looks_at(reach, P(BLOCK / 2) * P(0.999) - error);
  return r;
}

// Rounded down; 0 for what is negative or not a number, the largest for what is too large.
__device__ __forceinline__ uint32_t whole(float x) { return __float2uint_rz(x); }
__device__ __forceinline__ uint32_t whole(double x) { return __double2uint_rz(x); }

template <class P>
__device__ __forceinline__ bool look(const TileRay<P>& ray, const CoarseGrid& coarse, P chunk) {
  uint32_t at[3];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis)
    at[axis] = min(whole(ray.coarse_o[axis] + chunk * ray.coarse_d[axis]), uint32_t(coarse.blocks[axis]));
  return coarse.any[(at[0] * (coarse.blocks[1] + 1) + at[1]) * (coarse.blocks[2] + 1) + at[2]];
}

// Whether an interval of the chunk may be a sample.
template <class P>
__device__ __forceinline__ bool near_occupied(const TileRay<P>& ray, const CoarseGrid& coarse, int chunk) {
  if (ray.looks == 2) {
    const bool a = look(ray, coarse, P(chunk) - P(0.25)), b = look(ray, coarse, P(chunk) + P(0.25));
    return a | b;
  }
  bool near = ray.looks == 0;
#pragma unroll 1
  for (int i = 0; i < ray.looks && !near; ++i)
    near = look(ray, coarse, P(chunk) + ((P(i) + P(0.5)) / P(ray.looks) - P(0.5)));
  return near;
}

// Where to look whether interval k is a sample; place 0 for one that does not count.
struct Interval {
  uint32_t place;
  bool counts;
};

template <bool INSIDE, class P>
__device__ __forceinline__ Interval interval(const TileRay<P>& ray, const MarchGrid& grid, P step, P k) {
  const P t = ray.start + k * step;
  uint32_t at[3];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    at[axis] = whole(ray.o[axis] + ray.d[axis] * t);
    if (!INSIDE) at[axis] = min(at[axis], uint32_t(grid.cells[axis] - 1));
  }
  const bool counts = t < ray.leave;
  return {counts ? (at[0] * grid.cells[1] + at[1]) * grid.cells[2] + at[2] : 0, counts};
}

// Which intervals of chunk base + lane are samples, for the chunks in `left`; 0 for the others.
template <bool INSIDE, class P>
__device__ __forceinline__ unsigned look_closely(const TileRay<P>& ray, const MarchGrid& grid, P step, int base,
                                                 unsigned left) {
  constexpr int N = INSIDE ? AT_ONCE : 1;
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
      chunk[i] = i == 0 || highest >= 0 ? highest : chunk[i > 0 ? i - 1 : 0];  // none left: the one before again
      left &= ~(1u << chunk[i]);
      mid[i] = interval<INSIDE>(ray, grid, step, P(chunk[i]) * P(CHUNK) + first);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) occupied[i] = __ldg(occupancy + mid[i].place);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const unsigned samples = __ballot_sync(FULL_MASK, mid[i].counts && occupied[i]);
      if (lane == chunk[i]) mine = samples;
    }
  }
  return mine;
}

// Calls emit(chunk, which of its intervals are samples), a chunk a lane, near to far. The lanes of a warp call this
// together, with one ray.
template <class P, class F>
__device__ __forceinline__ void walk(const TileRay<P>& ray, const MarchGrid& grid, const CoarseGrid& coarse, P step,
                                     const F& emit) {
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < ray.n_chunks; base += 32) {
    const int chunk = base + lane;
    const unsigned near = __ballot_sync(FULL_MASK, chunk < ray.n_chunks && near_occupied(ray, coarse, chunk));
    if (near == 0) continue;
    emit(chunk, ray.inside ? look_closely<true>(ray, grid, step, base, near)
                           : look_closely<false>(ray, grid, step, base, near));
  }
}

}  // namespace nerfkit
