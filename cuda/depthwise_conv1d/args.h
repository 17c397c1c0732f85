// SPDX-License-Identifier: Apache-2.0
// Depthwise convolution along packed rays: x [N, C], with zeros beyond both ends of every ray.

#pragma once

#include "common/launch.h"

namespace nerfkit {

struct Conv1dShape {
  int64_t n_samples, n_rays;
  int channels, kernel, dilation;
  const int64_t* ray_offsets;
};

Status depthwise_conv1d(DType, const void* x, const void* weight, const void* bias, void* out, const Conv1dShape&,
                        Stream);
// Null where not wanted: grad_x; grad_weight and grad_bias together. scratch has conv1d_scratch() elements of the
// accumulation type.
Status depthwise_conv1d_bwd(DType, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* scratch, const Conv1dShape&, Stream);
int64_t conv1d_scratch(const Conv1dShape&);

}  // namespace nerfkit
