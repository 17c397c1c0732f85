// SPDX-License-Identifier: Apache-2.0

#include "depthwise_conv1d/args.h"

#include "common/bind.h"

namespace nerfkit {
namespace {

Conv1dShape shape(const Tensor& x, const Tensor& weight, const Tensor& ray_offsets, int64_t dilation) {
  STD_TORCH_CHECK(dilation > 0 && weight.size(1) % 2 == 1, "nerfkit: along rays the kernel must be odd, dilation >= 1");
  STD_TORCH_CHECK(dilation <= INT32_MAX, "nerfkit: the dilation must be below 2^31, got ", dilation);
  return {x.size(0),           ray_offsets.size(0) - 1, int(x.size(1)),
          int(weight.size(1)), int(dilation),           offsets(ray_offsets, x.size(0))};
}

Tensor forward(const Tensor& x_in, const Tensor& weight_in, std::optional<Tensor> bias_in, const Tensor& offsets_in,
               int64_t dilation) {
  const OnDevice device(x_in);
  const Tensor x = check_contiguous("x", x_in, x_in, {ANY, ANY});
  const Tensor weight = check_contiguous("weight", weight_in, x, {x.size(1), ANY});
  const Tensor ray_offsets = check_contiguous("ray_offsets", offsets_in, x, ScalarType::Long, {ANY});
  std::optional<Tensor> bias;
  if (bias_in) bias = check_contiguous("bias", *bias_in, x, {x.size(1)});
  Tensor result = empty(x, shape_of(x));
  check_launch("depthwise_conv1d",
               depthwise_conv1d(dtype_of(x), const_ptr(x), const_ptr(weight), bias ? const_ptr(*bias) : nullptr,
                                mutable_ptr(result), shape(x, weight, ray_offsets, dilation), device.stream));
  return result;
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_in, const Tensor& x_in, const Tensor& weight_in,
                                            const Tensor& offsets_in, int64_t dilation, bool to_x, bool to_weight) {
  const OnDevice device(x_in);
  const Tensor x = check_contiguous("x", x_in, x_in, {ANY, ANY});
  const Tensor weight = check_contiguous("weight", weight_in, x, {x.size(1), ANY});
  const Tensor ray_offsets = check_contiguous("ray_offsets", offsets_in, x, ScalarType::Long, {ANY});
  const Tensor grad = check_contiguous("grad_out", grad_in, x, shape_of(x));
  const Conv1dShape size = shape(x, weight, ray_offsets, dilation);
  Tensor grad_x = to_x ? empty(x, shape_of(x)) : empty0(x);
  Tensor grad_weight = to_weight ? empty(weight, shape_of(weight)) : empty0(x);
  Tensor grad_bias = to_weight ? empty(weight, {x.size(1)}) : empty0(x);
  Tensor partials = empty(x, {to_weight ? conv1d_partials(size) : 0}, acc_type(x.scalar_type()));
  check_launch("depthwise_conv1d_bwd",
               depthwise_conv1d_bwd(dtype_of(x), const_ptr(grad), const_ptr(x), const_ptr(weight), mutable_ptr(grad_x),
                                    mutable_ptr(grad_weight), mutable_ptr(grad_bias), mutable_ptr(partials), size,
                                    device.stream));
  return {grad_x, grad_weight, grad_bias};
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_depthwise_conv1d", TORCH_BOX(&nerfkit::forward));
  m.impl("_depthwise_conv1d_bwd", TORCH_BOX(&nerfkit::backward));
}
