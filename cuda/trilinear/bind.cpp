// SPDX-License-Identifier: Apache-2.0

#include "common/bind.h"
#include "trilinear/args.h"

namespace nerfkit {
namespace {

Tensor forward(const Tensor& feats_in, const Tensor& points_in) {
  const OnDevice device(feats_in);
  const Tensor feats = check_contiguous("feats", feats_in, feats_in, {ANY, 8, ANY});
  const TrilinearSize size{feats.size(0), feats.size(2)};
  const Tensor points = check_contiguous("points", points_in, feats, acc_type(feats.scalar_type()), {size.n_points, 3});
  Tensor result = empty(feats, {size.n_points, size.n_features});
  check_launch("trilinear", trilinear(dtype_of(feats), const_ptr(feats), const_ptr(points), mutable_ptr(result), size,
                                      device.stream));
  return result;
}

std::tuple<Tensor, Tensor> backward(const Tensor& grad_in, const Tensor& feats_in, const Tensor& points_in,
                                    bool to_feats, bool to_points) {
  const OnDevice device(feats_in);
  const Tensor feats = check_contiguous("feats", feats_in, feats_in, {ANY, 8, ANY});
  const TrilinearSize size{feats.size(0), feats.size(2)};
  const Tensor points = check_contiguous("points", points_in, feats, acc_type(feats.scalar_type()), {size.n_points, 3});
  const Tensor grad = check_contiguous("grad_out", grad_in, feats, {size.n_points, size.n_features});
  Tensor grad_feats = to_feats ? empty(feats, shape_of(feats)) : empty0(feats);
  Tensor grad_points = to_points ? empty(points, shape_of(points)) : empty0(points);
  check_launch("trilinear_bwd", trilinear_bwd(dtype_of(feats), const_ptr(grad), const_ptr(feats), const_ptr(points),
                                              mutable_ptr(grad_feats), mutable_ptr(grad_points), size, device.stream));
  return {grad_feats, grad_points};
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_trilinear", TORCH_BOX(&nerfkit::forward));
  m.impl("_trilinear_bwd", TORCH_BOX(&nerfkit::backward));
}
