// SPDX-License-Identifier: Apache-2.0

#include "depthwise_conv2d/strips_kernel.cuh"

namespace nerfkit {

template int64_t try_launch_strips<float, Pass::backward>(const Conv2dArrays<float>&, const Conv2dShape&, cudaStream_t);
template int64_t try_launch_strips<__half, Pass::backward>(const Conv2dArrays<__half>&, const Conv2dShape&,
                                                           cudaStream_t);
template int64_t try_launch_strips<__nv_bfloat16, Pass::backward>(const Conv2dArrays<__nv_bfloat16>&,
                                                                  const Conv2dShape&, cudaStream_t);

int64_t strips_parts(const Conv2dShape& s, int bytes) {
  if (!fits_strips(s, bytes, Pass::backward)) return 0;
  return strip_grid(s, bytes, Pass::backward, current_gpu().processors).shared;
}

}  // namespace nerfkit
