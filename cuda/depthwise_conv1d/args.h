// SPDX-License-Identifier: Apache-2.0
// Depthwise convolution along packed rays, with zeros beyond both ends of every ray. N samples, R rays, C channels,
// K taps.

#pragma once

#include "common/launch.h"

namespace nerfkit {

struct Conv1dShape {
  int64_t n_samples, n_rays;       // N, R
  int channels, kernel, dilation;  // C, K (odd), samples from one tap to the next
  const int64_t* ray_offsets;      // [R + 1]
};

Status depthwise_conv1d(DType,
                        const void* x,       // [N, C]
                        const void* weight,  // [C, K]
                        const void* bias,    // [C] or null
                        void* out,           // [N, C]
                        const Conv1dShape&, Stream);
// Null where not wanted: grad_x; grad_weight and grad_bias together.
Status depthwise_conv1d_bwd(DType,
                            const void* grad_out,  // [N, C]
                            const void* x,         // [N, C]
                            const void* weight,    // [C, K]
                            void* grad_x,          // [N, C]
                            void* grad_weight,     // [C, K]
                            void* grad_bias,       // [C]
                            void* partials,        // [conv1d_partials()] of the accumulation type
                            const Conv1dShape&, Stream);
int64_t conv1d_partials(const Conv1dShape&);  // elements

}  // namespace nerfkit
