// SPDX-License-Identifier: Apache-2.0

#include "common/bind.h"
#include "composite/args.h"

namespace nerfkit {
namespace {

struct Inputs {
  Tensor density, rgb, t_starts, t_ends, ray_offsets, background;
  int64_t n_samples, n_rays;

  Inputs(const Tensor& density_in, const Tensor& rgb_in, const Tensor& starts_in, const Tensor& ends_in,
         const Tensor& offsets_in, const Tensor& background_in)
      : density(checked("density", density_in, density_in, {ANY})),
        rgb(checked("rgb", rgb_in, density, {density.size(0), 3})),
        t_starts(checked("t_starts", starts_in, density, {density.size(0)})),
        t_ends(checked("t_ends", ends_in, density, {density.size(0)})),
        ray_offsets(checked("ray_offsets", offsets_in, density, ScalarType::Long, {ANY})),
        background(checked("background", background_in, density,
                           background_in.dim() == 1 ? Shape{3} : Shape{ray_offsets.size(0) - 1, 3})),
        n_samples(density.size(0)),
        n_rays(ray_offsets.size(0) - 1) {}

  CompositeArguments arguments() const {
    return {data(density),    data(rgb),
            data(t_starts),   data(t_ends),
            data(background), offsets(ray_offsets, density.size(0)),
            n_rays,           background.dim() == 1 ? 0 : 3};
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const Tensor& density, const Tensor& rgb, const Tensor& t_starts,
                                                   const Tensor& t_ends, const Tensor& ray_offsets,
                                                   const Tensor& background) {
  const OnDevice device(density);
  const Inputs in(density, rgb, t_starts, t_ends, ray_offsets, background);
  Tensor color = empty(density, {in.n_rays, 3}), opacity = empty(density, {in.n_rays});
  Tensor depth = empty(density, {in.n_rays}), weights = empty(density, {in.n_samples});
  ran("composite",
      composite(dtype_of(density), in.arguments(), out(color), out(opacity), out(depth), out(weights), device.stream));
  return {color, opacity, depth, weights};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_color_in, const Tensor& grad_opacity_in,
                                            const Tensor& grad_depth_in, const Tensor& grad_weights_in,
                                            const Tensor& density, const Tensor& rgb, const Tensor& t_starts,
                                            const Tensor& t_ends, const Tensor& ray_offsets, const Tensor& background) {
  const OnDevice device(density);
  const Inputs in(density, rgb, t_starts, t_ends, ray_offsets, background);
  const Tensor grad_color = checked("grad_color", grad_color_in, in.density, {in.n_rays, 3});
  const Tensor grad_opacity = checked("grad_opacity", grad_opacity_in, in.density, {in.n_rays});
  const Tensor grad_depth = checked("grad_depth", grad_depth_in, in.density, {in.n_rays});
  const Tensor grad_weights = checked("grad_weights", grad_weights_in, in.density, {in.n_samples});
  Tensor grad_density = empty(density, {in.n_samples}), grad_rgb = empty(density, {in.n_samples, 3});
  Tensor grad_background = empty(density, {in.n_rays, 3});
  ran("composite_bwd",
      composite_bwd(dtype_of(density), in.arguments(), data(grad_color), data(grad_opacity), data(grad_depth),
                    data(grad_weights), out(grad_density), out(grad_rgb), out(grad_background), device.stream));
  return {grad_density, grad_rgb, grad_background};
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_composite", TORCH_BOX(&nerfkit::forward));
  m.impl("_composite_bwd", TORCH_BOX(&nerfkit::backward));
}
