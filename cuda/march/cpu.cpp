// SPDX-License-Identifier: Apache-2.0
// A thread takes rays one after the other, twice: to count and to fill. A coarse grid of blocks of cells lets it skip
// empty blocks.

#include "march/args.h"

#include <numeric>

#include "common/simd_cpu.h"
#include "march/growing_steps.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 64;  // rays per task of a thread, at least
constexpr int COARSE = 8;      // cells along one side of a block; COARSE_CPU of nerfkit/ops/march.py

struct MarchCell {
  int cell[3];
};

template <class P>
MarchCell cell_at(const GridRay<P>& ray, const MarchGrid& grid, P t) {
  MarchCell at;
  for (int axis = 0; axis < 3; ++axis) {
    const int i = int(ray.o[axis] + ray.d[axis] * t);
    at.cell[axis] = i < 0 ? 0 : i > grid.cells[axis] - 1 ? grid.cells[axis] - 1 : i;
  }
  return at;
}

int64_t flat_index(const int cell[3], const int size[3]) {
  return (int64_t(cell[0]) * size[1] + cell[1]) * size[2] + cell[2];
}

struct CoarseGrid {
  int blocks[3];
  bool* any;  // [blocks] whether any cell of a block is occupied
};

CoarseGrid coarse_of(const int cells[3], void* any) {
  CoarseGrid coarse{{}, static_cast<bool*>(any)};
  for (int axis = 0; axis < 3; ++axis) coarse.blocks[axis] = (cells[axis] + COARSE - 1) / COARSE;
  return coarse;
}

int64_t blocks_of(const CoarseGrid& coarse) { return int64_t(coarse.blocks[0]) * coarse.blocks[1] * coarse.blocks[2]; }

void find_any(const MarchGrid& grid, const CoarseGrid& coarse) {
  std::fill_n(coarse.any, blocks_of(coarse), false);
  const bool* occupied = grid.occupancy;
  for (int x = 0; x < grid.cells[0]; ++x)
    for (int y = 0; y < grid.cells[1]; ++y)
      for (int z = 0; z < grid.cells[2]; ++z) {
        const int block[3] = {x / COARSE, y / COARSE, z / COARSE};
        if (*occupied++) coarse.any[flat_index(block, coarse.blocks)] = true;
      }
}

// The last interval that is certainly in the block, whatever the rounding: one less, and 1e-5 of the intervals less.
template <class P>
int last_in_block(const GridRay<P>& ray, const int block[3]) {
  P out = ray.leave;
  for (int axis = 0; axis < 3; ++axis) {
    if (ray.inverse[axis] == 0) continue;
    const P wall = P((block[axis] + (ray.d[axis] > 0 ? 1 : 0)) * COARSE),
            crossed = (wall - ray.o[axis]) * ray.inverse[axis];
    out = crossed < out ? crossed : out;
  }
  return int((out - ray.start) * ray.inverse_step * P(0.99999) - P(1.01));
}

// Calls emit(t) for the middles that are in occupied cells, near to far; false if the ray has too many intervals.
template <class P, class F>
bool march_one(const MarchArguments& in, const CoarseGrid& coarse, int64_t index, const F& emit) {
  const P* jitter = (const P*)in.jitter;
  const GridRay<P> ray =
      grid_ray((const P*)in.origins + 3 * index, (const P*)in.directions + 3 * index, (const P*)in.box,
               jitter ? jitter[index] : P(0), jitter != nullptr, in.grid, in.limits);
  if (ray.too_long()) return false;
  int64_t last_cell = -1;  // of the interval before: neighbours often share a cell
  bool occupied = false;
  for (int k = 0;; ++k) {
    const P t = ray.middle(k);
    if (!(t < ray.leave)) return true;
    const MarchCell at = cell_at(ray, in.grid, t);
    const int64_t cell = flat_index(at.cell, in.grid.cells);
    if (cell != last_cell) {
      last_cell = cell;
      const int block[3] = {at.cell[0] / COARSE, at.cell[1] / COARSE, at.cell[2] / COARSE};
      const bool any = coarse.any[flat_index(block, coarse.blocks)];
      occupied = any && in.grid.occupancy[cell];
      if (!any) k = std::max(k, last_in_block(ray, block));
    }
    if (occupied) emit(t);
  }
}

constexpr int CHUNK = 16;  // intervals of t_edges that are tested at once for whether all are in empty blocks

template <class P>
bool may_have_samples(const Segment<P>& segment, const CoarseGrid& coarse) {
  if (!(segment.reach <= P(COARSE))) return true;  // more than 3 blocks along an axis: testing the intervals is as fast
  int low[3], high[3];
  for (int axis = 0; axis < 3; ++axis) {
    low[axis] = std::max(int((segment.at[axis] - segment.reach) * P(1. / COARSE)), 0);
    high[axis] = std::min(int((segment.at[axis] + segment.reach) * P(1. / COARSE)), coarse.blocks[axis] - 1);
    low[axis] = std::min(low[axis], high[axis]);
  }
  for (int x = low[0]; x <= high[0]; ++x)
    for (int y = low[1]; y <= high[1]; ++y)
      for (int z = low[2]; z <= high[2]; ++z) {
        const int block[3] = {x, y, z};
        if (coarse.any[flat_index(block, coarse.blocks)]) return true;
      }
  return false;
}

// Calls emit(start, end) for the intervals of t_edges whose middles are in occupied cells, near to far.
template <class P, class F>
void march_edges(const MarchArguments& in, const CoarseGrid& coarse, int64_t index, const F& emit) {
  const GrowingSteps<P> t_edges{(const P*)in.t_edges, in.n_intervals};
  const ContractedRay<P> ray = contracted_ray<P>(in, index);
  if (!ray.marches) return;
  for (int first = 0; first < t_edges.n_intervals; first += CHUNK) {
    const int stop = std::min(first + CHUNK, t_edges.n_intervals);
    const P a = t_edges.middle(ray.jitter, first), b = t_edges.middle(ray.jitter, stop - 1);
    if (!may_have_samples(segment(ray, in.grid, a, b), coarse)) continue;
    P start = t_edges.end(ray.jitter, first);
    for (int k = first; k < stop; ++k) {
      const P end = t_edges.end(ray.jitter, k + 1);
      const ContractedCell at = contracted_cell(ray, in.grid, (start + end) * P(0.5));
      if (at.valid && in.grid.occupancy[at.index]) emit(start, end);
      start = end;
    }
  }
}

// Calls emit(start, end) for the samples of a ray, near to far; false if the ray has too many intervals.
template <class P, class F>
bool march_ray(const MarchArguments& in, const CoarseGrid& coarse, int64_t index, const F& emit) {
  if (in.t_edges) return march_edges<P>(in, coarse, index, emit), true;
  const P half = P(in.limits.step / 2);
  return march_one<P>(in, coarse, index, [&](P t) { emit(t - half, t + half); });
}

template <class F>
void dispatch_positions(DType dtype, const F& f) {
  dtype == DType::f64 ? f(double()) : f(float());
}

}  // namespace

int64_t march_tiles(int64_t) { return 1; }

int64_t march_workspace_bytes(DType, int64_t, const int cells[3]) { return blocks_of(coarse_of(cells, nullptr)); }

Status march_count(DType dtype, const MarchArguments& in, const MarchCounts& found, Stream) {
  const CoarseGrid coarse = coarse_of(in.grid.cells, found.workspace);
  find_any(in.grid, coarse);
  dispatch_positions(dtype, [&](auto position) {
    using P = decltype(position);
    parallel(in.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t ray = begin; ray < end; ++ray) {
        int64_t count = 0;
        const bool fits = march_ray<P>(in, coarse, ray, [&](P, P) { ++count; });
        found.counts[ray] = fits ? count : in.too_many;
      }
    });
  });
  found.tile_offsets[0] = 0;
  found.tile_offsets[1] = std::accumulate(found.counts, found.counts + in.n_rays, int64_t(0));
  return 0;
}

Status march_fill(DType dtype, const MarchArguments& in, const MarchCounts& found, int64_t n_rows, int64_t* ray_offsets,
                  void* t_starts, void* t_ends, Stream) {
  const CoarseGrid coarse = coarse_of(in.grid.cells, found.workspace);
  ray_offsets[0] = 0;
  std::partial_sum(found.counts, found.counts + in.n_rays, ray_offsets + 1);
  const int64_t used =
      *(std::upper_bound(ray_offsets, ray_offsets + in.n_rays + 1, n_rows) - 1);  // rows of rays that fit
  dispatch_positions(dtype, [&](auto position) {
    using P = decltype(position);
    P *starts = static_cast<P*>(t_starts), *ends = static_cast<P*>(t_ends);
    std::fill(starts + used, starts + n_rows, P(0));
    std::fill(ends + used, ends + n_rows, P(0));
    parallel(in.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t ray = begin; ray < end && ray_offsets[ray + 1] <= used; ++ray) {
        int64_t n = ray_offsets[ray];
        march_ray<P>(in, coarse, ray, [&](P start, P end) {
          starts[n] = start;
          ends[n++] = end;
        });
      }
    });
  });
  return 0;
}

}  // namespace nerfkit
