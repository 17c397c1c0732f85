// SPDX-License-Identifier: Apache-2.0
// One ray through unbounded space: intervals between distances, t_edges, looked up in a cube of contracted positions.
// The definition in nerfkit/ops/march.py does the same operations in the same order, so that all give the same bits.

#pragma once

#include "march/args.h"

namespace nerfkit {

// x y rounded for itself: no compiler may make one operation of it and of the sum that it goes into (FMA).
template <class P>
HD P product(P x, P y) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(P) == 4)
    return __fmul_rn(x, y);
  else
    return __dmul_rn(x, y);
#elif defined(__x86_64__)
  P xy = x * y;
  asm("" : "+x"(xy));
  return xy;
#elif defined(__aarch64__)
  P xy = x * y;
  asm("" : "+w"(xy));
  return xy;
#else
  volatile P xy = x * y;
  return xy;
#endif
}

// Distances [n_intervals + 2] that are the same for all rays.
template <class P>
struct GrowingSteps {
  const P* distances;
  int n_intervals;

  // Where interval k of a ray begins, and the one before ends.
  HD P end(P jitter, int k) const {
    const P from = distances[k];
    return product(jitter, distances[k + 1] - from) + from;
  }
  HD P middle(P jitter, int k) const { return (end(jitter, k) + end(jitter, k + 1)) * P(0.5); }
};

// Contracted positions, from 0 to 4: infinity, -1 of the box at 1, its 1 at 3, infinity.
template <class P>
struct Contracted {
  P at[3];
  P largest;   // coordinate in half sides of the box: 1 on its faces
  bool valid;  // not too far away; false if a number is NaN
};

// A ray in half sides of the box, its centre at 0.
template <class P>
struct alignas(16) ContractedRay {
  P o[3], d[3], jitter;
  P farthest, speed;  // largest coordinate of o and of d, in magnitude
  P moment;           // of o x d: how far the ray's line misses the centre, times d
  P cells;            // of the grid per contracted unit, along the axis that has most
  bool marches;       // false: no samples

  HD Contracted<P> contracted(P t) const {
    Contracted<P> c{{}, 0, true};
    for (int axis = 0; axis < 3; ++axis) {
      const P u = product(d[axis], t) + o[axis], magnitude = u < 0 ? -u : u;
      c.at[axis] = u;
      c.valid = c.valid && magnitude <= P(1.2676506002282294e30);  // 2^100: FARTHEST of nerfkit/ops/march.py
      c.largest = magnitude > c.largest ? magnitude : c.largest;
    }
    const P inverse = P(1) / c.largest, scale = c.largest <= P(1) ? P(1) : (P(2) - inverse) * inverse;
    for (int axis = 0; axis < 3; ++axis) c.at[axis] = product(c.at[axis], scale) + P(2);
    return c;
  }
};

template <class P>
HD ContractedRay<P> contracted_ray(const MarchArguments& in, int64_t index) {
  constexpr P TINY = std::numeric_limits<P>::min();
  constexpr P LARGEST = sizeof(P) == 4 ? P(3.40282347e38) : P(1.7976931348623157e308);
  constexpr P EPSILON = sizeof(P) == 4 ? P(1.1920929e-7) : P(2.220446049250313e-16);
  const P *origin = (const P*)in.origins + 3 * index, *direction = (const P*)in.directions + 3 * index;
  const P* box = (const P*)in.box;
  ContractedRay<P> ray{};
  bool moves = false, finite = true;
  for (int axis = 0; axis < 3; ++axis) {
    const P half = (box[3 + axis] - box[axis]) * P(0.5), raw = direction[axis];
    ray.o[axis] = (origin[axis] - (box[axis] + box[3 + axis]) * P(0.5)) / half;
    ray.d[axis] = raw / half;
    const P o = ray.o[axis] < 0 ? -ray.o[axis] : ray.o[axis], d = ray.d[axis] < 0 ? -ray.d[axis] : ray.d[axis];
    const P cells = P(in.grid.cells[axis]) * P(0.25);
    moves = moves || (raw < 0 ? -raw : raw) >= TINY;
    finite = finite && o <= LARGEST && d <= LARGEST;
    ray.farthest = o > ray.farthest ? o : ray.farthest;
    ray.speed = d > ray.speed ? d : ray.speed;
    ray.cells = cells > ray.cells ? cells : ray.cells;
  }
  for (int i = 0; i < 3; ++i) {
    const int j = (i + 1) % 3;
    const P moment = ray.o[i] * ray.d[j] - ray.o[j] * ray.d[i], magnitude = moment < 0 ? -moment : moment;
    ray.moment = magnitude > ray.moment ? magnitude : ray.moment;
  }
  ray.moment += P(8) * EPSILON * ray.farthest * ray.speed;  // rounding
  ray.jitter = in.jitter ? ((const P*)in.jitter)[index] : P(0);
  ray.marches = moves && finite;
  return ray;
}

// Where the middles of a run of intervals are: within `reach` of `at` along each axis, both in cells.
template <class P>
struct Segment {
  P at[3];
  P reach;  // infinite if nothing is known
};

// For the middles from distance a to b. How fast a contracted position moves is in NOTES.md.
template <class P>
HD Segment<P> segment(const ContractedRay<P>& ray, const MarchGrid& grid, P a, P b) {
  constexpr P EPSILON = sizeof(P) == 4 ? P(1.1920929e-7) : P(2.220446049250313e-16);
  constexpr P FASTEST = P(4. / 3);
  const P half = (b - a) * P(0.5);
  const Contracted<P> c = ray.contracted((a + b) * P(0.5));
  const P error = P(16) * EPSILON * (ray.farthest + ray.speed * ((a < 0 ? -a : a) + (b < 0 ? -b : b)));
  const P nearest = c.largest - P(1.001) * ray.speed * half - error;  // to the centre that any middle may be
  const P r = nearest > P(1) ? P(1) / nearest : P(1);
  const P outside = ((P(2) - r) * ray.moment + ray.speed) * r * r, anywhere = FASTEST * ray.speed;
  const P speed = outside < anywhere ? outside : anywhere;
  const P moved = P(1.001) * speed * half + (P(4) * r < FASTEST ? P(4) * r : FASTEST) * error + P(64) * EPSILON;
  Segment<P> s;
  for (int axis = 0; axis < 3; ++axis) s.at[axis] = c.at[axis] * (P(grid.cells[axis]) * P(0.25));
  s.reach = c.valid && moved < P(4) ? moved * ray.cells : P(INFINITY);
  return s;
}

// The cell of the middle at distance t.
struct ContractedCell {
  uint32_t index;  // into occupancy; 0 if not valid
  bool valid;
};

template <class P>
HD ContractedCell contracted_cell(const ContractedRay<P>& ray, const MarchGrid& grid, P t) {
  const Contracted<P> c = ray.contracted(t);
  uint32_t index = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const int n = grid.cells[axis], cell = int((c.valid ? c.at[axis] : P(0)) * (P(n) * P(0.25)));
    index = index * n + (cell < 0 ? 0 : cell > n - 1 ? n - 1 : cell);
  }
  return {index, c.valid};
}

}  // namespace nerfkit
