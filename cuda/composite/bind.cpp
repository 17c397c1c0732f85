// SPDX-License-Identifier: Apache-2.0

#include "common/bind.h"
#include "composite/args.h"

namespace nerfkit {
namespace {

struct Inputs {
  Tensor density, rgb, t_starts, t_ends, ray_offsets, background;  // [N], [N, 3], [N], [N], [R + 1], [R, 3] or [3]
  int64_t n_samples, n_rays;

  Inputs(const Tensor& density_in, const Tensor& rgb_in, const Tensor& starts_in, const Tensor& ends_in,
         const Tensor& offsets_in, const Tensor& background_in)
      : density(check_contiguous("density", density_in, density_in, {ANY})),
        rgb(check_contiguous("rgb", rgb_in, density, {density.size(0), 3})),
        t_starts(check_contiguous("t_starts", starts_in, density, {density.size(0)})),
        t_ends(check_contiguous("t_ends", ends_in, density, {density.size(0)})),
        ray_offsets(check_contiguous("ray_offsets", offsets_in, density, ScalarType::Long, {ANY})),
        background(check_contiguous("background", background_in, density,
                                    background_in.dim() == 1 ? Shape{3} : Shape{ray_offsets.size(0) - 1, 3})),
        n_samples(density.size(0)),
        n_rays(ray_offsets.size(0) - 1) {}

  CompositeArguments arguments() const {
    return {const_ptr(density),
            const_ptr(rgb),
            const_ptr(t_starts),
            const_ptr(t_ends),
            const_ptr(background),
            offsets(ray_offsets, density.size(0)),
            n_rays,
            background.dim() == 1 ? 0 : 3};
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const Tensor& density, const Tensor& rgb, const Tensor& t_starts,
                                                   const Tensor& t_ends, const Tensor& ray_offsets,
                                                   const Tensor& background) {
  const OnDevice device(density);
  const Inputs in(density, rgb, t_starts, t_ends, ray_offsets, background);
  Tensor color = empty(density, {in.n_rays, 3}), opacity = empty(density, {in.n_rays});
  Tensor depth = empty(density, {in.n_rays}), weights = empty(density, {in.n_samples});
  check_launch("composite", composite(dtype_of(density), in.arguments(), mutable_ptr(color), mutable_ptr(opacity),
                                      mutable_ptr(depth), mutable_ptr(weights), device.stream));
  return {color, opacity, depth, weights};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_color_in, const Tensor& grad_opacity_in,
                                            const Tensor& grad_depth_in, const Tensor& grad_weights_in,
                                            const Tensor& density, const Tensor& rgb, const Tensor& t_starts,
                                            const Tensor& t_ends, const Tensor& ray_offsets, const Tensor& background) {
  const OnDevice device(density);
  const Inputs in(density, rgb, t_starts, t_ends, ray_offsets, background);
  const Tensor grad_color = check_contiguous("grad_color", grad_color_in, in.density, {in.n_rays, 3});
  const Tensor grad_opacity = check_contiguous("grad_opacity", grad_opacity_in, in.density, {in.n_rays});
  const Tensor grad_depth = check_contiguous("grad_depth", grad_depth_in, in.density, {in.n_rays});
  const Tensor grad_weights = check_contiguous("grad_weights", grad_weights_in, in.density, {in.n_samples});
  Tensor grad_density = empty(density, {in.n_samples}), grad_rgb = empty(density, {in.n_samples, 3});
  Tensor grad_background = empty(density, {in.n_rays, 3});
  check_launch(
      "composite_bwd",
      composite_bwd(dtype_of(density), in.arguments(),
                    {const_ptr(grad_color), const_ptr(grad_opacity), const_ptr(grad_depth), const_ptr(grad_weights)},
                    mutable_ptr(grad_density), mutable_ptr(grad_rgb), mutable_ptr(grad_background), device.stream));
  return {grad_density, grad_rgb, grad_background};
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_composite", TORCH_BOX(&nerfkit::forward));
  m.impl("_composite_bwd", TORCH_BOX(&nerfkit::backward));
}
