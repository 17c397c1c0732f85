// SPDX-License-Identifier: Apache-2.0

#include "bind.h"
#include "march.h"

namespace nerfkit {
namespace {

constexpr int64_t MOST_SAMPLES = int64_t(1) << 62;  // that counts may add up to: ray_offsets must not wrap around

int64_t coarse(int64_t cells) { return (cells + march_coarse_side() - 1) / march_coarse_side(); }

Tensor coarse_grid(const Tensor& occupancy_in) {
  const OnDevice device(occupancy_in);
  const Tensor occupancy = checked("occupancy", occupancy_in, occupancy_in, ScalarType::Bool, {ANY, ANY, ANY});
  Shape shape = shape_of(occupancy);
  const int cells[3] = {int(shape[0]), int(shape[1]), int(shape[2])};
  for (int64_t& size : shape) size = coarse(size);
  Tensor any = empty(occupancy, shape);
  ran("march", march_coarse(static_cast<const bool*>(data(occupancy)), static_cast<bool*>(out(any)), cells, device.stream));
  return any;
}

struct Inputs {
  Tensor origins, directions, occupancy, any, box;
  std::optional<Tensor> jitter;
  MarchLimits limits;

  Inputs(const Tensor& origins_in, const Tensor& directions_in, const Tensor& occupancy_in, const Tensor& any_in,
         const Tensor& box_in, double step, double near, double far, const std::optional<Tensor>& jitter_in)
      : origins(checked("origins", origins_in, origins_in, wide(origins_in.scalar_type()), {ANY, 3})),
        directions(checked("directions", directions_in, origins, {origins.size(0), 3})),
        occupancy(checked("occupancy", occupancy_in, origins, ScalarType::Bool, {ANY, ANY, ANY})),
        any(checked("any", any_in, origins, ScalarType::Bool,
                    {coarse(occupancy.size(0)), coarse(occupancy.size(1)), coarse(occupancy.size(2))})),
        box(checked("box", box_in, origins, {2, 3})),
        limits{step, near, far} {
    if (jitter_in) jitter = checked("jitter", *jitter_in, origins, {origins.size(0)});
  }

  MarchArguments arguments() const {
    MarchGrid grid{{}, {}, static_cast<const bool*>(data(occupancy)), static_cast<const bool*>(data(any))};
    for (int axis = 0; axis < 3; ++axis) {
      grid.cells[axis] = int(occupancy.size(axis));
      grid.coarse[axis] = int(any.size(axis));
    }
    const int64_t n_rays = occupancy.numel() ? origins.size(0) : 0;
    const int64_t too_many = MOST_SAMPLES / std::max<int64_t>(n_rays, 1);
    return {data(origins), data(directions), data(box), jitter ? data(*jitter) : nullptr, n_rays, grid, limits, too_many};
  }
};

std::tuple<Tensor, Tensor> count(const Tensor& origins, const Tensor& directions, const Tensor& occupancy, const Tensor& any,
             const Tensor& box, double step, double near, double far, std::optional<Tensor> jitter) {
  const OnDevice device(origins);
  const Inputs in(origins, directions, occupancy, any, box, step, near, far, jitter);
  const Shape rays{origins.size(0)};
  Tensor counts = occupancy.numel() ? empty(origins, rays, ScalarType::Long) : zeros(origins, rays, ScalarType::Long);
  Tensor kept = empty(in.origins, {origins.size(0), march_kept()});
  ran("march", march_count(dtype_of(origins), in.arguments(), static_cast<int64_t*>(out(counts)), out(kept), device.stream));
  return {counts, kept};
}

std::tuple<Tensor, Tensor> fill(const Tensor& origins, const Tensor& directions, const Tensor& occupancy,
                                const Tensor& any, const Tensor& box, double step, double near, double far,
                                std::optional<Tensor> jitter, const Tensor& ray_offsets_in, const Tensor& kept_in,
                                int64_t n_rows, bool cut) {
  const OnDevice device(origins);
  const Inputs in(origins, directions, occupancy, any, box, step, near, far, jitter);
  const Tensor ray_offsets = checked("ray_offsets", ray_offsets_in, origins, ScalarType::Long, {origins.size(0) + 1});
  const Tensor kept = checked("kept", kept_in, origins, {origins.size(0), march_kept()});
  auto rows = [&] { return cut ? zeros(origins, {n_rows}, origins.scalar_type()) : empty(origins, {n_rows}); };
  Tensor t_starts = rows(), t_ends = rows();
  ran("march", march_fill(dtype_of(origins), in.arguments(), offsets(ray_offsets, n_rows), n_rows, data(kept), out(t_starts),
                          out(t_ends), device.stream));
  return {t_starts, t_ends};
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_march_coarse", TORCH_BOX(&nerfkit::coarse_grid));
  m.impl("_march_count", TORCH_BOX(&nerfkit::count));
  m.impl("_march_fill", TORCH_BOX(&nerfkit::fill));
}
