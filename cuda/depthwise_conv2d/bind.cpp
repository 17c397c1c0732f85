// SPDX-License-Identifier: Apache-2.0

#include "depthwise_conv2d/args.h"

#include "common/bind.h"

namespace nerfkit {
namespace {

Axis axis_of(int64_t size, int64_t kernel, const std::vector<int64_t>& window, int which) {
  const int64_t stride = window[which], padding = window[2 + which], dilation = window[4 + which];
  const int64_t span = size + 2 * padding - dilation * (kernel - 1) - 1;
  for (int64_t value : {size, stride, padding, dilation, size + 2 * padding})
    STD_TORCH_CHECK(value <= INT32_MAX, "nerfkit: sizes, strides, paddings and dilations stay below 2^31, got ", value);
  STD_TORCH_CHECK(stride > 0 && padding >= 0 && dilation > 0 && span >= 0, "nerfkit: the kernel does not fit");
  return {int(size), int(span / stride + 1), int(kernel), int(stride), int(padding), int(dilation)};
}

Conv2dShape shape(const Tensor& x, const Tensor& weight, const std::vector<int64_t>& window, bool channels_last) {
  STD_TORCH_CHECK(window.size() == 6 && x.dim() == 4 && weight.dim() == 4, "nerfkit: x and weight must have 4 axes");
  const int c = channels_last ? 3 : 1, y = channels_last ? 1 : 2;
  return {x.size(0), x.size(c), axis_of(x.size(y), weight.size(2), window, 0),
          axis_of(x.size(y + 1), weight.size(3), window, 1), channels_last};
}

Shape out_shape(const Conv2dShape& s) {
  if (s.channels_last) return {s.batch, s.y.out_size, s.x.out_size, s.channels};
  return {s.batch, s.channels, s.y.out_size, s.x.out_size};
}

Tensor forward(const Tensor& x_in, const Tensor& weight_in, std::optional<Tensor> bias_in, std::vector<int64_t> window,
               bool channels_last) {
  const OnDevice device(x_in);
  const Tensor x = check_contiguous("x", x_in, x_in, {ANY, ANY, ANY, ANY});
  const Conv2dShape size = shape(x, weight_in, window, channels_last);
  const Tensor weight = check_contiguous("weight", weight_in, x, {size.channels, 1, ANY, ANY});
  std::optional<Tensor> bias;
  if (bias_in) bias = check_contiguous("bias", *bias_in, x, {size.channels});
  Tensor result = empty(x, out_shape(size));
  check_launch("depthwise_conv2d",
               depthwise_conv2d(dtype_of(x), const_ptr(x), const_ptr(weight), bias ? const_ptr(*bias) : nullptr,
                                mutable_ptr(result), size, device.stream));
  return result;
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_in, const Tensor& x_in, const Tensor& weight_in,
                                            std::vector<int64_t> window, bool channels_last, bool to_x,
                                            bool to_weight) {
  const OnDevice device(x_in);
  const Tensor x = check_contiguous("x", x_in, x_in, {ANY, ANY, ANY, ANY});
  const Conv2dShape size = shape(x, weight_in, window, channels_last);
  const Tensor weight = check_contiguous("weight", weight_in, x, {size.channels, 1, ANY, ANY});
  const Tensor grad = check_contiguous("grad_out", grad_in, x, out_shape(size));
  Tensor grad_x = to_x ? empty(x, shape_of(x)) : empty0(x);
  Tensor grad_weight = to_weight ? empty(weight, shape_of(weight)) : empty0(x);
  Tensor grad_bias = to_weight ? empty(weight, {size.channels}) : empty0(x);
  Tensor scratch = empty(x, {to_weight ? conv2d_scratch(dtype_of(x), size) : 0}, acc_type(x.scalar_type()));
  check_launch("depthwise_conv2d_bwd",
               depthwise_conv2d_bwd(dtype_of(x), const_ptr(grad), const_ptr(x), const_ptr(weight), mutable_ptr(grad_x),
                                    mutable_ptr(grad_weight), mutable_ptr(grad_bias), mutable_ptr(scratch), size,
                                    device.stream));
  return {grad_x, grad_weight, grad_bias};
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_depthwise_conv2d", TORCH_BOX(&nerfkit::forward));
  m.impl("_depthwise_conv2d_bwd", TORCH_BOX(&nerfkit::backward));
}
