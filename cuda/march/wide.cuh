// SPDX-License-Identifier: Apache-2.0
// A second coarse grid, of wider blocks: for a lane that marches a ray by itself, and looks at one place at a time.

#pragma once

#include "march/coarse.cuh"

namespace nerfkit {
namespace {

// The coarse grid of march, and one in the same way of blocks of WIDE times as many cells along a side.
constexpr int WIDE = 4;
struct Coarse {
  CoarseGrid fine, wide;
};

// Whether a cell within PROBED, times WIDE, of a point may be occupied; the point in cells.
template <int SCALE>
__device__ __forceinline__ bool probe(const Coarse& coarse, const float (&point)[3]) {
  const CoarseGrid& grid = SCALE == 1 ? coarse.fine : coarse.wide;
  uint32_t at[3];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis)
    at[axis] = min(floor_saturated(point[axis] * (1.f / (BLOCK * SCALE)) + 0.5f), uint32_t(grid.blocks[axis]));
  return grid.any[(at[0] * (grid.blocks[1] + 1) + at[1]) * (grid.blocks[2] + 1) + at[2]];
}

int64_t entries_of(const CoarseGrid& grid) {
  return int64_t(grid.blocks[0] + 1) * (grid.blocks[1] + 1) * (grid.blocks[2] + 1);
}

// Both in memory, one behind the other.
Coarse coarse_grids(const int cells[3], bool* any) {
  Coarse coarse{coarse_of(cells, any), {}};
  for (int axis = 0; axis < 3; ++axis) coarse.wide.blocks[axis] = (coarse.fine.blocks[axis] + WIDE - 1) / WIDE;
  coarse.wide.any = any + entries_of(coarse.fine);
  return coarse;
}

// One thread for each wide entry, of blocks w - 1 and w: the fine entries that cover these, every other one.
__global__ void __launch_bounds__(THREADS) march_wide_grid(const Coarse coarse, int64_t entries) {
  const CoarseGrid &wide = coarse.wide, &fine = coarse.fine;
  const int64_t entry = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (entry >= entries) return;
  const int ny = wide.blocks[1] + 1, nz = wide.blocks[2] + 1;
  const int first[3] = {int(entry / nz / ny), int(entry / nz % ny), int(entry % nz)};
  bool any = false;
  for (int i = 0; i < WIDE * WIDE * WIDE; ++i) {
    const int step[3] = {i / (WIDE * WIDE), i / WIDE % WIDE, i % WIDE};
    int64_t at = 0;
    for (int axis = 0; axis < 3; ++axis)
      at = at * (fine.blocks[axis] + 1) + min(max((first[axis] - 1) * WIDE + 2 * step[axis] + 1, 0), fine.blocks[axis]);
    any |= fine.any[at];
  }
  wide.any[entry] = any;
}

}  // namespace
}  // namespace nerfkit
