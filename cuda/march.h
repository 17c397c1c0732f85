// SPDX-License-Identifier: Apache-2.0
// One ray through the occupancy grid: which intervals have their middle in an occupied cell.

#pragma once

#include <cmath>

#include "launch.h"

namespace nerfkit {

constexpr int COARSE = 8;  // cells of the occupancy along one side of a coarse cell

struct MarchGrid {
  int cells[3];   // of the occupancy, x the slowest axis
  int coarse[3];  // cells of the coarse grid
  const bool* occupancy;
  const bool* any;  // coarse grid: whether any cell within is occupied
};

struct MarchLimits {
  double step, near, far;
};

HD int64_t place_in(const int cell[3], const int size[3]) { return (int64_t(cell[0]) * size[1] + cell[1]) * size[2] + cell[2]; }

// Calls emit(k, t) for the intervals k with their middle t in an occupied cell, near to far.
template <class P, class F>
HD void march_ray(const P* origin, const P* direction, const P* box, P jitter, bool jittered, const MarchGrid& grid,
                  const MarchLimits& limits, const F& emit) {
  const P tiny = sizeof(P) == 4 ? P(1.17549435e-38) : P(2.2250738585072014e-308);
  P enter = P(limits.near), leave = P(limits.far), o[3], d[3], inverse[3];
  bool moves = false;
  for (int axis = 0; axis < 3; ++axis) {
    const P raw = direction[axis], magnitude = raw < 0 ? -raw : raw;
    moves = moves || magnitude >= tiny;
    const P safe = magnitude < tiny ? tiny : raw;
    const P low = (box[axis] - origin[axis]) / safe, high = (box[3 + axis] - origin[axis]) / safe;
    const P first = low < high ? low : high, last = low < high ? high : low;
    enter = first > enter ? first : enter;
    leave = last < leave ? last : leave;
    const P scale = P(grid.cells[axis]) / (box[3 + axis] - box[axis]);
    o[axis] = (origin[axis] - box[axis]) * scale;
    d[axis] = raw * scale;
    inverse[axis] = magnitude < tiny ? P(0) : P(1) / d[axis];
  }
  if (!moves) return;
  const P step = P(limits.step);
  const P start = jittered ? enter + (jitter + P(0.5)) * step : enter + step / P(2);
  for (int64_t k = 0;; ++k) {
    const P t = start + P(k) * step;
    if (!(t < leave)) return;
    int cell[3], block[3];
    for (int axis = 0; axis < 3; ++axis) {
      const int at = int(o[axis] + d[axis] * t);
      cell[axis] = at < 0 ? 0 : at > grid.cells[axis] - 1 ? grid.cells[axis] - 1 : at;
      block[axis] = cell[axis] / COARSE;
    }
    if (grid.any[place_in(block, grid.coarse)]) {
      if (grid.occupancy[place_in(cell, grid.cells)]) emit(k, t);
      continue;
    }
    // Nothing in this coarse cell: on to the last interval that is in it for sure, whatever the rounding.
    P out = leave;
    for (int axis = 0; axis < 3; ++axis) {
      if (inverse[axis] == 0) continue;
      const P wall = P((block[axis] + (d[axis] > 0 ? 1 : 0)) * COARSE), crossed = (wall - o[axis]) * inverse[axis];
      out = crossed < out ? crossed : out;
    }
    const P ahead = (out - start) / step;
    const int64_t reached = int64_t(ahead * P(0.99999) - P(1.01));
    k = reached > k ? reached : k;
  }
}

struct MarchArguments {
  const void *origins, *directions, *box, *jitter;  // jitter may be null
  int64_t n_rays;
  MarchGrid grid;
  MarchLimits limits;
};

Status march_coarse(const bool* occupancy, bool* any, const int cells[3], Stream);
Status march_count(DType, const MarchArguments&, int64_t* counts, Stream);
Status march_fill(DType, const MarchArguments&, const int64_t* ray_offsets, void* t_starts, void* t_ends, Stream);

}  // namespace nerfkit
