// SPDX-License-Identifier: Apache-2.0
// Depthwise convolution of [B, C, H, W] or, channels last, [B, H, W, C]; also [B, C, 1, L] for the dense 1-d case.
// Equations: NOTES.md.

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

  // Distances between neighbours in an array of images of the given size, in elements.
  struct Strides {
    int64_t batch, channel, row, column;
  };
  HD Strides strides(int64_t height, int64_t width) const {
    if (channels_last) return {height * width * channels, 1, width * channels, channels};
    return {channels * height * width, height * width, width, 1};
  }
};

// All arrays of one dtype. x [B, C, H, W], weight [C, 1, KH, KW], bias [C] or null -> out [B, C, H_out, W_out]; x and
// out channels last if the shape says so.
Status depthwise_conv2d(DType, const void* x, const void* weight, const void* bias, void* out, const Conv2dShape&,
                        Stream);
// grad_out [B, C, H_out, W_out], x, weight -> grad_x [B, C, H, W], grad_weight [C, 1, KH, KW], grad_bias [C]. Null
// where not wanted: grad_x; grad_weight and grad_bias together. scratch [conv2d_scratch()] of the accumulation type.
Status depthwise_conv2d_bwd(DType, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* scratch, const Conv2dShape&, Stream);
int64_t conv2d_scratch(DType, const Conv2dShape&);

}  // namespace nerfkit
