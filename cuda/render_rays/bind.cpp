// SPDX-License-Identifier: Apache-2.0
// On a GPU alone: elsewhere the chain of ops runs.

#include "render_rays/args.h"

#ifdef USE_CUDA
#include "common/bind.h"
#include "grid_encode/bind.h"

namespace nerfkit {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const Tensor& origins, const Tensor& directions,
                                                   const Tensor& occupancy, const Tensor& box,
                                                   std::optional<Tensor> t_edges, const Tensor& table_in,
                                                   std::vector<int64_t> resolutions, int64_t max_entries,
                                                   const Tensor& density_net, const Tensor& color_net, int64_t hidden,
                                                   std::optional<Tensor> conv_weight, std::optional<Tensor> conv_bias,
                                                   std::optional<Tensor> lltm_weight, std::optional<Tensor> lltm_bias,
                                                   const Tensor& background, const Tensor& threshold, double step,
                                                   double near, double far, double limit, double density_bias) {
  const OnDevice device(origins);
  std::vector<Tensor> held;  // what the kernel reads
  const auto hold = [&](const char* name, const Tensor& tensor, ScalarType type, const Shape& shape) {
    held.push_back(check_contiguous(name, tensor, origins, type, shape));
    return const_ptr(held.back());
  };
  const auto wide = [&](const char* name, const Tensor& tensor, const Shape& shape) {
    return static_cast<const float*>(hold(name, tensor, ScalarType::Float, shape));
  };
  const auto half = [&](const char* name, const Tensor& tensor, const Shape& shape) {
    return hold(name, tensor, ScalarType::Half, shape);
  };
  const int64_t n_rays = origins.size(0);
  const bool one_color = background.dim() == 1;
  RenderArguments a{};
  a.march.origins = wide("origins", origins, {n_rays, 3});
  a.march.directions = wide("directions", directions, {n_rays, 3});
  a.march.box = wide("box", box, {2, 3});
  a.march.n_rays = n_rays;
  a.march.grid.occupancy = static_cast<const bool*>(hold("occupancy", occupancy, ScalarType::Bool, {ANY, ANY, ANY}));
  for (int axis = 0; axis < 3; ++axis) a.march.grid.cells[axis] = int(occupancy.size(axis));
  STD_TORCH_CHECK(std::max(n_rays, occupancy.numel()) < (int64_t(1) << 31),
                  "nerfkit: render_rays takes less than 2^31 rays and cells");
  a.march.limits = {step, near, far};
  if (t_edges) a.march.t_edges = wide("t_edges", *t_edges, {ANY}), a.march.n_intervals = int(t_edges->size(0)) - 2;
  a.background = wide("background", background, one_color ? Shape{3} : Shape{n_rays, 3});
  a.background_stride = one_color ? 0 : 3;
  a.threshold = wide("threshold", threshold, {});
  a.density_bias = float(density_bias), a.limit = float(limit);

  a.table = half("table", table_in, {ANY, ANY});
  if (reinterpret_cast<uintptr_t>(a.table) % 8) {
    held.push_back(torch::stable::clone(held.back()));
    a.table = const_ptr(held.back());
  }
  a.levels = levels_of(held.back(), resolutions, max_entries);
  const int64_t channels = int64_t(a.levels.n_levels) * a.levels.n_features, gates = 3 * RAY_STATE;
  const auto layer = [](int64_t in, int64_t out) { return (in + 1) * out; };  // parameters
  a.hidden = int(hidden);
  a.density_net = half("density_net", density_net, {layer(channels, hidden) + layer(hidden, GEOMETRY)});
  int64_t inputs = GEOMETRY + HARMONICS;
  if (conv_weight) {
    a.conv_weight = half("conv_weight", *conv_weight, {channels, ANY});
    a.conv_bias = half("conv_bias", conv_bias.value(), {channels});
    a.taps = int(conv_weight->size(1)), inputs += channels;
  }
  if (lltm_weight) {
    a.lltm_weight = half("lltm_weight", *lltm_weight, {gates, RAY_STATE + channels});
    a.lltm_bias = half("lltm_bias", lltm_bias.value(), {gates});
    inputs += RAY_STATE;
  }
  a.color_net = half("color_net", color_net, {layer(inputs, hidden) + layer(hidden, hidden) + layer(hidden, 3)});
  const int features = a.levels.n_features;
  STD_TORCH_CHECK(std::max(hidden, channels) <= RENDER_WIDEST && (features == 2 || features == 4) &&
                      (!conv_weight || (a.taps % 2 == 1 && a.taps <= RENDER_TAPS)),
                  "nerfkit: render_rays does not take a field of these sizes");

  Tensor color = empty(origins, {n_rays, 3}), opacity = empty(origins, {n_rays}), depth = empty(origins, {n_rays}),
         median = empty(origins, {n_rays});
  Tensor workspace = empty(origins, {render_workspace_bytes(a.march.grid.cells)}, ScalarType::Byte);
  a.color = static_cast<float*>(mutable_ptr(color)), a.opacity = static_cast<float*>(mutable_ptr(opacity));
  a.depth = static_cast<float*>(mutable_ptr(depth)), a.median = static_cast<float*>(mutable_ptr(median));
  a.workspace = mutable_ptr(workspace);
  if (n_rays) check_launch("render_rays", render_rays(a, device.stream));
  return {color, opacity, depth, median};
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, CUDA, m) { m.impl("_render_rays", TORCH_BOX(&nerfkit::forward)); }
#endif
