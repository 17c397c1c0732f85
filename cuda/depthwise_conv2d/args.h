// SPDX-License-Identifier: Apache-2.0
// Depthwise convolution of [B, C, H, W] or, channels last, [B, H, W, C]; also [B, C, 1, L] for the dense 1-d case.

#pragma once

#include "common/launch.h"

namespace nerfkit {

struct Axis {
  int size, out_size, kernel, stride, padding, dilation;
};

struct Conv2dShape {
  int64_t batch, channels;
  Axis y, x;
  bool channels_last;

  // Distances between neighbours in an array of the given picture size.
  struct Strides {
    int64_t batch, channel, row, column;
  };
  HD Strides strides(int64_t height, int64_t width) const {
    if (channels_last) return {height * width * channels, 1, width * channels, channels};
    return {channels * height * width, height * width, width, 1};
  }
};

// The taps of output `at` that meet the input, as a range; the input of tap u is at * stride - padding + u * dilation.
HD void taps_inside(const Axis& axis, int at, int& first, int& last) {
  const int start = at * axis.stride - axis.padding;
  first = start < 0 ? (-start + axis.dilation - 1) / axis.dilation : 0;
  const int room = axis.size - 1 - start;
  last = room < 0 ? 0 : room / axis.dilation + 1;
  if (last > axis.kernel) last = axis.kernel;
}

// The output that tap u of input `at` goes to; false if there is none.
HD bool output_of(const Axis& axis, int at, int u, int& output) {
  const int shifted = at + axis.padding - u * axis.dilation;
  output = shifted / axis.stride;
  return shifted >= 0 && shifted % axis.stride == 0 && output < axis.out_size;
}

Status depthwise_conv2d(DType, const void* x, const void* weight, const void* bias, void* out, const Conv2dShape&,
                        Stream);
// Null where not wanted: grad_x; grad_weight and grad_bias together. scratch has conv2d_scratch() elements of the
// accumulation type.
Status depthwise_conv2d_bwd(DType, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* scratch, const Conv2dShape&, Stream);
int64_t conv2d_scratch(DType, const Conv2dShape&);

}  // namespace nerfkit
