// SPDX-License-Identifier: Apache-2.0

#include "march.h"

#include "cpu.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 64;  // rays that are worth a thread
constexpr int COARSE = 8;      // cells of the occupancy along one side of a coarse cell

// The last interval that is in the block for sure, whatever the rounding.
template <class P>
int last_in_block(const GridRay<P>& ray, const int block[3]) {
  P out = ray.leave;
  for (int axis = 0; axis < 3; ++axis) {
    if (ray.inverse[axis] == 0) continue;
    const P wall = P((block[axis] + (ray.d[axis] > 0 ? 1 : 0)) * COARSE), crossed = (wall - ray.o[axis]) * ray.inverse[axis];
    out = crossed < out ? crossed : out;
  }
  return int((out - ray.start) * ray.inverse_step * P(0.99999) - P(1.01));
}

// Calls emit(t) for the middles that are in occupied cells, near to far; false if the ray has too many intervals.
template <class P, class F>
bool march_one(const MarchArguments& in, int64_t index, const F& emit) {
  const P* jitter = (const P*)in.jitter;
  const GridRay<P> ray = grid_ray((const P*)in.origins + 3 * index, (const P*)in.directions + 3 * index, (const P*)in.box,
                                  jitter ? jitter[index] : P(0), jitter != nullptr, in.grid, in.limits);
  if (ray.too_long()) return false;
  int64_t last_cell = -1;  // neighbouring intervals often share it
  bool occupied = false;
  for (int k = 0;; ++k) {
    const P t = ray.middle(k);
    if (!(t < ray.leave)) return true;
    const MarchCell at = cell_at(ray, in.grid, t);
    const int64_t cell = place_in(at.cell, in.grid.cells);
    if (cell != last_cell) {
      last_cell = cell;
      const int block[3] = {at.cell[0] / COARSE, at.cell[1] / COARSE, at.cell[2] / COARSE};
      const bool some = in.grid.any[place_in(block, in.grid.coarse)];
      occupied = some && in.grid.occupancy[cell];
      if (!some) k = std::max(k, last_in_block(ray, block));
    }
    if (occupied) emit(t);
  }
}

template <class F>
void dispatch_positions(DType dtype, const F& f) {
  dtype == DType::f64 ? f(double()) : f(float());
}

}  // namespace

int march_coarse_side() { return COARSE; }

Status march_coarse(const bool* occupancy, bool* any, const int cells[3], Stream) {
  const int64_t by = (cells[1] + COARSE - 1) / COARSE, bz = (cells[2] + COARSE - 1) / COARSE;
  std::fill(any, any + (cells[0] + COARSE - 1) / COARSE * by * bz, false);
  for (int64_t x = 0; x < cells[0]; ++x)
    for (int64_t y = 0; y < cells[1]; ++y)
      for (int64_t z = 0; z < cells[2]; ++z)
        if (occupancy[(x * cells[1] + y) * cells[2] + z]) any[(x / COARSE * by + y / COARSE) * bz + z / COARSE] = true;
  return 0;
}

int64_t march_kept() { return 0; }

Status march_count(DType dtype, const MarchArguments& in, int64_t* counts, void*, Stream) {
  dispatch_positions(dtype, [&](auto position) {
    using P = decltype(position);
    parallel(in.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t ray = begin; ray < end; ++ray) {
        int64_t count = 0;
        const bool fits = march_one<P>(in, ray, [&](P) { ++count; });
        counts[ray] = fits ? count : in.too_many;
      }
    });
  });
  return 0;
}

Status march_fill(DType dtype, const MarchArguments& in, const int64_t* ray_offsets, int64_t, const void*, void* t_starts,
                  void* t_ends, Stream) {
  dispatch_positions(dtype, [&](auto position) {
    using P = decltype(position);
    const P half = P(in.limits.step / 2);
    parallel(in.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t ray = begin; ray < end; ++ray) {
        int64_t n = ray_offsets[ray];
        march_one<P>(in, ray, [&](P t) {
          ((P*)t_starts)[n] = t - half;
          ((P*)t_ends)[n++] = t + half;
        });
      }
    });
  });
  return 0;
}

}  // namespace nerfkit
