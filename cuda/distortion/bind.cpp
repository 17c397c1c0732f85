// SPDX-License-Identifier: Apache-2.0

#include "distortion/args.h"

#include "common/bind.h"

namespace nerfkit {
namespace {

struct Inputs {
  Tensor weights, t_starts, t_ends, ray_offsets;  // [N], [N], [N], [R + 1]
  double near, far, linear;

  Inputs(const Tensor& weights_in, const Tensor& starts_in, const Tensor& ends_in, const Tensor& offsets_in,
         double near_in, double far_in, double linear_in)
      : weights(check_contiguous("weights", weights_in, weights_in, {ANY})),
        t_starts(check_contiguous("t_starts", starts_in, weights, {weights.size(0)})),
        t_ends(check_contiguous("t_ends", ends_in, weights, {weights.size(0)})),
        ray_offsets(check_contiguous("ray_offsets", offsets_in, weights, ScalarType::Long, {ANY})),
        near(unnormalised(near_in, linear_in)),
        far(unnormalised(far_in, linear_in)),
        linear(linear_in) {}

  DistortionArguments arguments() const {
    return {const_ptr(weights),      const_ptr(t_starts),
            const_ptr(t_ends),       offsets(ray_offsets, weights.size(0)),
            ray_offsets.size(0) - 1, near,
            1 / (far - near),        linear};
  }
};

Tensor forward(const Tensor& weights, const Tensor& t_starts, const Tensor& t_ends, const Tensor& ray_offsets,
               double near, double far, double linear) {
  const OnDevice device(weights);
  const Inputs in(weights, t_starts, t_ends, ray_offsets, near, far, linear);
  Tensor losses = empty(weights, {ray_offsets.size(0) - 1});
  check_launch("distortion", distortion(dtype_of(weights), in.arguments(), mutable_ptr(losses), device.stream));
  return losses;
}

Tensor backward(const Tensor& grad_in, const Tensor& weights, const Tensor& t_starts, const Tensor& t_ends,
                const Tensor& ray_offsets, double near, double far, double linear) {
  const OnDevice device(weights);
  const Inputs in(weights, t_starts, t_ends, ray_offsets, near, far, linear);
  const Tensor grad = check_contiguous("grad_out", grad_in, in.weights, {ray_offsets.size(0) - 1});
  Tensor grad_weights = empty(weights, {weights.size(0)});
  check_launch("distortion_bwd", distortion_bwd(dtype_of(weights), in.arguments(), const_ptr(grad),
                                                mutable_ptr(grad_weights), device.stream));
  return grad_weights;
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_distortion", TORCH_BOX(&nerfkit::forward));
  m.impl("_distortion_bwd", TORCH_BOX(&nerfkit::backward));
}
