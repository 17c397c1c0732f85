// SPDX-License-Identifier: Apache-2.0
// The multi-resolution grid: cells of a point, rows of a cell's corners, and the launchers.
// N points, L levels, F features, T rows of the table (all levels, one after the other).

#pragma once

#include "common/launch.h"
#include "trilinear/args.h"

namespace nerfkit {

constexpr int MAX_LEVELS = 64;                                 // = MAX_LEVELS of nerfkit/ops/grid_encode.py
constexpr uint32_t HASH_Y = 2654435761u, HASH_Z = 805459861u;  // HASH_PRIMES of the same file

// Passed by value to the kernels: 64 levels are 776 bytes of the 4 KB of constant parameters.
struct GridLevels {
  int n_levels, n_features;       // L, F
  uint32_t max_entries;           // rows of a hashed level, a power of two
  int resolution[MAX_LEVELS];     // [L] cells per side
  int64_t first_row[MAX_LEVELS];  // [L] of the level in the table
};

// Rows of a level: (n + 1)^3 vertices, rounded up to 8 so that every level begins at a cache sector of 32 bytes, if
// they fit into max_entries; else max_entries, and the level is hashed.
HD int64_t entries_of(int64_t resolution, int64_t max_entries) {
  const int64_t side = resolution + 1, rows = (side * side * side + 7) / 8 * 8;
  return rows < max_entries ? rows : max_entries;
}

struct GridLevel {
  int resolution;  // cells per side
  bool hashed;
  uint32_t mask;  // of the hash: max_entries - 1
};

HD GridLevel level_of(const GridLevels& levels, int level) {
  const int64_t side = levels.resolution[level] + int64_t(1);
  return {levels.resolution[level], side * side * side > levels.max_entries, levels.max_entries - 1};
}

// The cell along one axis and the position in it, u from 0 to 1; p is clamped to the box [0, 1].
template <class P>
HD void cell_along(int resolution, P p, int& cell, P& u) {
  p = p < 0 ? P(0) : p > 1 ? P(1) : p;
  const P scaled = p * P(resolution);
  int lowest = int(scaled);
  lowest = lowest > resolution - 1 ? resolution - 1 : lowest;
  cell = lowest < 0 ? 0 : lowest;  // a NaN ends here
  u = scaled - P(cell);
}

template <class P>
HD void cell_of(const GridLevel& level, const P* point, int cell[3], P u[3]) {
  for (int axis = 0; axis < 3; ++axis) cell_along(level.resolution, point[axis], cell[axis], u[axis]);
}

HD bool in_box(float p) { return p >= 0 && p <= 1; }
HD bool in_box(double p) { return p >= 0 && p <= 1; }

// Rows of the eight corners, counted from the level's first; corner 4 ix + 2 iy + iz.
HD void rows_of(const GridLevel& level, const int cell[3], uint32_t row[8]) {
  const uint32_t x = cell[0], y = cell[1], z = cell[2];
  if (level.hashed) {
    const uint32_t hx[2] = {x, x + 1};
    const uint32_t hy[2] = {y * HASH_Y, (y + 1) * HASH_Y};
    const uint32_t hz[2] = {z * HASH_Z, (z + 1) * HASH_Z};
    for (int k = 0; k < 8; ++k) row[k] = (hx[k >> 2] ^ hy[k >> 1 & 1] ^ hz[k & 1]) & level.mask;
  } else {
    const uint32_t side = level.resolution + 1, lowest = (x * side + y) * side + z;
    for (int k = 0; k < 8; ++k) row[k] = lowest + ((k >> 2) * side + (k >> 1 & 1)) * side + (k & 1);
  }
}

Status grid_encode(DType point_type, DType table_type,
                   const void* points,  // [N, 3] float32 or float64
                   const void* table,   // [T, F]
                   void* out,           // [N, L*F] dtype of the table
                   int64_t n_points, const GridLevels&, Stream);
// A null grad_points or grad_table is not computed. fixed_point and largest are given for a sum that does not depend on
// the order of additions, else null; the CPU kernel, which always adds in one order, ignores them.
Status grid_encode_bwd(DType point_type, DType table_type,
                       const void* grad_out,  // [N, L*F] dtype of the table
                       const void* points,    // [N, 3]
                       const void* table,     // [T, F]
                       void* grad_points,     // [N, 3] dtype of the points
                       void* grad_table,      // [T, F] of the accumulation type, zero at the start
                       int64_t* fixed_point,  // [T, F] zero at the start
                       void* largest,  // [1] uint64: bits of the largest |grad_out| as a double; zero at the start
                       int64_t n_rows, int64_t n_points, const GridLevels&, Stream);

}  // namespace nerfkit
