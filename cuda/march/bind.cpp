// SPDX-License-Identifier: Apache-2.0

#include "common/bind.h"
#include "march/args.h"

namespace nerfkit {
namespace {

constexpr int64_t MAX_SAMPLES = int64_t(1) << 62;               // sum of the counts: ray_offsets must not overflow
constexpr int64_t MIN_EDGES = 3, MAX_EDGES = int64_t(1) << 16;  // distances
constexpr int64_t MAX_CELLS = (int64_t(1) << 32) - 1, MAX_ALONG_AXIS = int64_t(1) << 30;  // 32-bit cell indices

struct Inputs {
  Tensor origins, directions, occupancy, box;  // [R, 3], [R, 3], [X, Y, Z], [2, 3]
  std::optional<Tensor> jitter, t_edges;       // [R], [L]
  MarchLimits limits;

  Inputs(const Tensor& origins_in, const Tensor& directions_in, const Tensor& occupancy_in, const Tensor& box_in,
         double step, double near, double far, const std::optional<Tensor>& jitter_in,
         const std::optional<Tensor>& t_edges_in)
      : origins(check_contiguous("origins", origins_in, origins_in, acc_type(origins_in.scalar_type()), {ANY, 3})),
        directions(check_contiguous("directions", directions_in, origins, {origins.size(0), 3})),
        occupancy(check_contiguous("occupancy", occupancy_in, origins, ScalarType::Bool, {ANY, ANY, ANY})),
        box(check_contiguous("box", box_in, origins, {2, 3})),
        limits{step, near, far} {
    const Shape cells = shape_of(occupancy);
    STD_TORCH_CHECK(occupancy.numel() <= MAX_CELLS && *std::max_element(cells.begin(), cells.end()) <= MAX_ALONG_AXIS,
                    "nerfkit: occupancy must have less than 2^32 cells, and at most 2^30 along an axis, got ",
                    shape_string(cells));
    if (jitter_in) jitter = check_contiguous("jitter", *jitter_in, origins, {origins.size(0)});
    if (!t_edges_in) return;
    t_edges = check_contiguous("t_edges", *t_edges_in, origins, {ANY});
    STD_TORCH_CHECK(t_edges->size(0) >= MIN_EDGES && t_edges->size(0) <= MAX_EDGES, "nerfkit: t_edges must have ",
                    MIN_EDGES, " to ", MAX_EDGES, " distances, got ", t_edges->size(0));
  }

  // Without rays or without cells there is nothing to march through.
  bool has_work() const { return origins.size(0) > 0 && occupancy.numel() > 0; }

  MarchArguments arguments() const {
    MarchGrid grid{{}, static_cast<const bool*>(const_ptr(occupancy))};
    for (int axis = 0; axis < 3; ++axis) grid.cells[axis] = int(occupancy.size(axis));
    const int64_t n_rays = origins.size(0), too_many = MAX_SAMPLES / n_rays;
    return {const_ptr(origins),
            const_ptr(directions),
            const_ptr(box),
            jitter ? const_ptr(*jitter) : nullptr,
            n_rays,
            grid,
            limits,
            too_many,
            t_edges ? const_ptr(*t_edges) : nullptr,
            t_edges ? int(t_edges->size(0)) - 2 : 0};
  }
};

int64_t workspace_bytes(const Inputs& in) {
  return march_workspace_bytes(dtype_of(in.origins), in.origins.size(0), in.arguments().grid.cells);
}

std::tuple<Tensor, Tensor, Tensor> count(const Tensor& origins, const Tensor& directions, const Tensor& occupancy,
                                         const Tensor& box, double step, double near, double far,
                                         std::optional<Tensor> jitter, std::optional<Tensor> t_edges) {
  const OnDevice device(origins);
  const Inputs in(origins, directions, occupancy, box, step, near, far, jitter, t_edges);
  const Shape rays{origins.size(0)}, tiles{march_tiles(origins.size(0)) + 1};
  if (!in.has_work())
    return {zeros(origins, rays, ScalarType::Long), zeros(origins, tiles, ScalarType::Long),
            empty(origins, {0}, ScalarType::Byte)};
  Tensor counts = empty(origins, rays, ScalarType::Long), tile_offsets = empty(origins, tiles, ScalarType::Long);
  Tensor workspace = empty(origins, {workspace_bytes(in)}, ScalarType::Byte);
  const MarchCounts out{static_cast<int64_t*>(mutable_ptr(counts)), static_cast<int64_t*>(mutable_ptr(tile_offsets)),
                        mutable_ptr(workspace)};
  check_launch("march", march_count(dtype_of(origins), in.arguments(), out, device.stream));
  return {counts, tile_offsets, workspace};
}

std::tuple<Tensor, Tensor, Tensor> fill(const Tensor& origins, const Tensor& directions, const Tensor& occupancy,
                                        const Tensor& box, double step, double near, double far,
                                        std::optional<Tensor> jitter, std::optional<Tensor> t_edges,
                                        const Tensor& counts_in, const Tensor& tile_offsets_in,
                                        const Tensor& workspace_in, int64_t n_rows) {
  const OnDevice device(origins);
  const Inputs in(origins, directions, occupancy, box, step, near, far, jitter, t_edges);
  const int64_t n_rays = origins.size(0);
  const ScalarType type = origins.scalar_type();
  if (!in.has_work())
    return {zeros(origins, {n_rows}, type), zeros(origins, {n_rows}, type),
            zeros(origins, {n_rays + 1}, ScalarType::Long)};
  Tensor counts = check_contiguous("counts", counts_in, origins, ScalarType::Long, {n_rays});
  Tensor tile_offsets =
      check_contiguous("tile_offsets", tile_offsets_in, origins, ScalarType::Long, {march_tiles(n_rays) + 1});
  Tensor workspace = check_contiguous("workspace", workspace_in, origins, ScalarType::Byte, {workspace_bytes(in)});
  Tensor t_starts = empty(origins, {n_rows}), t_ends = empty(origins, {n_rows});
  Tensor ray_offsets = empty(origins, {n_rays + 1}, ScalarType::Long);
  const MarchCounts out{static_cast<int64_t*>(mutable_ptr(counts)), static_cast<int64_t*>(mutable_ptr(tile_offsets)),
                        mutable_ptr(workspace)};
  check_launch("march", march_fill(dtype_of(origins), in.arguments(), out, n_rows,
                                   static_cast<int64_t*>(mutable_ptr(ray_offsets)), mutable_ptr(t_starts),
                                   mutable_ptr(t_ends), device.stream));
  return {t_starts, t_ends, ray_offsets};
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_march_count", TORCH_BOX(&nerfkit::count));
  m.impl("_march_fill", TORCH_BOX(&nerfkit::fill));
}
