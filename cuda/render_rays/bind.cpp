// SPDX-License-Identifier: Apache-2.0
// On a GPU alone: elsewhere the chain of ops runs.

#include "render_rays/args.h"

#ifdef USE_CUDA
#include "common/bind.h"
#include "grid_encode/bind.h"

namespace nerfkit {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& origins_in, const Tensor& directions_in, const Tensor& occupancy_in, const Tensor& box_in,
    std::optional<Tensor> t_edges_in, const Tensor& table_in, std::vector<int64_t> resolutions, int64_t max_entries,
    const Tensor& density_net_in, const Tensor& color_net_in, int64_t hidden, std::optional<Tensor> conv_weight_in,
    std::optional<Tensor> conv_bias_in, std::optional<Tensor> lltm_weight_in, std::optional<Tensor> lltm_bias_in,
    const Tensor& background_in, const Tensor& threshold_in, double step, double near, double far, double limit,
    double density_bias) {
  const OnDevice device(origins_in);
  const int64_t n_rays = origins_in.size(0);
  const auto wide = [&](const char* name, const Tensor& tensor, const Shape& shape) {
    return check_contiguous(name, tensor, origins_in, ScalarType::Float, shape);
  };
  const auto half = [&](const char* name, const Tensor& tensor, const Shape& shape) {
    return check_contiguous(name, tensor, origins_in, ScalarType::Half, shape);
  };
  STD_TORCH_CHECK(n_rays < (int64_t(1) << 31), "nerfkit: render_rays takes less than 2^31 rays at a time");
  const Tensor origins = wide("origins", origins_in, {n_rays, 3}), box = wide("box", box_in, {2, 3}),
               directions = wide("directions", directions_in, {n_rays, 3}),
               occupancy = check_contiguous("occupancy", occupancy_in, origins, ScalarType::Bool, {ANY, ANY, ANY}),
               threshold = wide("threshold", threshold_in, {}),
               background = background_in.dim() == 1 ? wide("background", background_in, {3})
                                                     : wide("background", background_in, {n_rays, 3}),
               table_rows = half("table", table_in, {ANY, ANY}),
               table = reinterpret_cast<uintptr_t>(const_ptr(table_rows)) % 8 ? torch::stable::clone(table_rows)
                                                                              : table_rows;
  const Shape cells = shape_of(occupancy);
  STD_TORCH_CHECK(occupancy.numel() < (int64_t(1) << 32) && *std::max_element(cells.begin(), cells.end()) <= 1 << 30,
                  "nerfkit: occupancy must have less than 2^32 cells, and at most 2^30 along an axis");
  std::optional<Tensor> t_edges;
  if (t_edges_in) t_edges = wide("t_edges", *t_edges_in, {ANY});

  RenderArguments a{};
  a.levels = levels_of(table, resolutions, max_entries);
  const int64_t channels = int64_t(a.levels.n_levels) * a.levels.n_features;
  const auto layer = [](int64_t in, int64_t out) { return (in + 1) * out; };
  const Tensor density_net = half("density_net", density_net_in, {layer(channels, hidden) + layer(hidden, GEOMETRY)});
  std::optional<Tensor> conv_weight, conv_bias, lltm_weight, lltm_bias;
  int64_t seen = GEOMETRY + HARMONICS;  // inputs of the color network
  if (conv_weight_in) {
    conv_weight = half("conv_weight", *conv_weight_in, {channels, ANY});
    conv_bias = half("conv_bias", conv_bias_in.value(), {channels});
    a.taps = int(conv_weight->size(1));
    seen += channels;
  }
  if (lltm_weight_in) {
    lltm_weight = half("lltm_weight", *lltm_weight_in, {3 * RAY_STATE, RAY_STATE + channels});
    lltm_bias = half("lltm_bias", lltm_bias_in.value(), {3 * RAY_STATE});
    seen += RAY_STATE;
  }
  const Tensor color_net =
      half("color_net", color_net_in, {layer(seen, hidden) + layer(hidden, hidden) + layer(hidden, 3)});
  STD_TORCH_CHECK(hidden >= 1 && hidden <= RENDER_HIDDEN && channels >= 1 && channels <= RENDER_CHANNELS &&
                      (a.levels.n_features == 2 || a.levels.n_features == 4) && a.taps <= RENDER_TAPS &&
                      (a.taps == 0 || a.taps % 2 == 1),
                  "nerfkit: render_rays does not take a field of these sizes");

  Tensor color = empty(origins, {n_rays, 3}), opacity = empty(origins, {n_rays}), depth = empty(origins, {n_rays}),
         median = empty(origins, {n_rays});
  a.march.origins = const_ptr(origins), a.march.directions = const_ptr(directions), a.march.box = const_ptr(box);
  a.march.n_rays = n_rays;
  for (int axis = 0; axis < 3; ++axis) a.march.grid.cells[axis] = int(cells[axis]);
  a.march.grid.occupancy = static_cast<const bool*>(const_ptr(occupancy));
  a.march.limits = {step, near, far};
  if (t_edges) a.march.t_edges = const_ptr(*t_edges), a.march.n_intervals = int(t_edges->size(0)) - 2;
  a.table = const_ptr(table), a.hidden = int(hidden);
  a.density_net = const_ptr(density_net), a.color_net = const_ptr(color_net);
  if (conv_weight) a.conv_weight = const_ptr(*conv_weight), a.conv_bias = const_ptr(*conv_bias);
  if (lltm_weight) a.lltm_weight = const_ptr(*lltm_weight), a.lltm_bias = const_ptr(*lltm_bias);
  a.density_bias = float(density_bias), a.limit = float(limit);
  a.threshold = static_cast<const float*>(const_ptr(threshold));
  a.background = static_cast<const float*>(const_ptr(background));
  a.background_stride = background.dim() == 1 ? 0 : 3;
  a.color = static_cast<float*>(mutable_ptr(color)), a.opacity = static_cast<float*>(mutable_ptr(opacity));
  a.depth = static_cast<float*>(mutable_ptr(depth)), a.median = static_cast<float*>(mutable_ptr(median));
  Tensor workspace = empty(origins, {render_workspace_bytes(a.march.grid.cells)}, ScalarType::Byte);
  a.workspace = mutable_ptr(workspace);
  if (n_rays) check_launch("render_rays", render_rays(a, device.stream));
  return {color, opacity, depth, median};
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, CUDA, m) { m.impl("_render_rays", TORCH_BOX(&nerfkit::forward)); }
#endif
