// SPDX-License-Identifier: Apache-2.0
// One ray through the occupancy grid: which intervals have their middle in an occupied cell. R rays, N samples.

#pragma once

#include <cmath>
#include <limits>

#include "common/launch.h"

namespace nerfkit {

constexpr int MAX_INTERVALS = 1 << 20;  // of a ray: one more than in nerfkit/limits.py

struct MarchGrid {
  int cells[3];           // X, Y, Z
  const bool* occupancy;  // [X, Y, Z]
};

struct MarchLimits {
  double step, near, far;  // scene units
};

// A ray in units of cells, and the middles of its intervals: start + k step while before leave.
template <class P>
struct GridRay {
  P o[3], d[3], inverse[3];            // origin, direction, 1 / direction or 0, in cells
  P start, step, inverse_step, leave;  // distances in scene units

  HD P middle(int k) const { return start + P(k) * step; }
  HD bool too_long() const { return (leave - start) * inverse_step > P(MAX_INTERVALS); }
};

template <class P>
HD GridRay<P> grid_ray(const P* origin,     // [3]
                       const P* direction,  // [3]
                       const P* box,        // [2, 3] lowest and highest corner
                       P jitter, bool jittered, const MarchGrid& grid, const MarchLimits& limits) {
  const P tiny = std::numeric_limits<P>::min();
  P enter = P(limits.near), leave = P(limits.far);
  GridRay<P> ray;
  bool moves = false, numbers = true;
  for (int axis = 0; axis < 3; ++axis) {
    const P raw = direction[axis], magnitude = raw < 0 ? -raw : raw;
    moves = moves || magnitude >= tiny;
    const P safe = magnitude < tiny ? tiny : raw;
    const P low = (box[axis] - origin[axis]) / safe, high = (box[3 + axis] - origin[axis]) / safe;
    numbers = numbers && low == low && high == high;
    const P first = low < high ? low : high, last = low < high ? high : low;
    enter = first > enter ? first : enter;
    leave = last < leave ? last : leave;
    const P scale = P(grid.cells[axis]) / (box[3 + axis] - box[axis]);
    ray.o[axis] = (origin[axis] - box[axis]) * scale;
    ray.d[axis] = raw * scale;
    ray.inverse[axis] = magnitude < tiny ? P(0) : P(1) / ray.d[axis];
  }
  ray.step = P(limits.step);
  ray.inverse_step = P(1) / ray.step;
  ray.start = jittered ? enter + (jitter + P(0.5)) * ray.step : enter + ray.step / P(2);
  ray.leave = moves && numbers ? leave : ray.start;  // a ray without direction, or of NaN, has no samples
  return ray;
}

struct MarchArguments {
  const void* origins;     // [R, 3] scene units
  const void* directions;  // [R, 3] unit length
  const void* box;         // [2, 3]
  const void* jitter;      // [R] in steps, or null
  int64_t n_rays;          // R
  MarchGrid grid;
  MarchLimits limits;
  int64_t too_many;     // the count of a ray of more than MAX_INTERVALS
  const void* t_edges;  // [n_intervals + 2] distances, growing_steps.h; or null: intervals of one length, in the box
  int n_intervals;      // of t_edges
};

// What counting writes for filling.
struct MarchCounts {
  int64_t* counts;        // [R] samples of each ray
  int64_t* tile_offsets;  // [march_tiles() + 1] samples in front of each tile of rays; the last is N
  void* workspace;        // [march_workspace_bytes()] private to a device's kernels
};

int64_t march_tiles(int64_t n_rays);
int64_t march_workspace_bytes(DType, int64_t n_rays, const int cells[3]);
// Both need at least one ray and one cell.
Status march_count(DType, const MarchArguments&, const MarchCounts&, Stream);
// Writes ray_offsets and all rows: the samples of the rays that end within n_rows, then zeros.
Status march_fill(DType, const MarchArguments&, const MarchCounts&, int64_t n_rows,
                  int64_t* ray_offsets,  // [R + 1]
                  void* t_starts,        // [n_rows]
                  void* t_ends,          // [n_rows]
                  Stream);

}  // namespace nerfkit
