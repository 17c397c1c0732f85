// SPDX-License-Identifier: Apache-2.0

#include "depthwise_conv2d/strips_kernel.cuh"

namespace nerfkit {

template int64_t try_launch_strips<float, Pass::forward>(const Conv2dArrays<float>&, const Conv2dShape&, cudaStream_t);
template int64_t try_launch_strips<__half, Pass::forward>(const Conv2dArrays<__half>&, const Conv2dShape&,
                                                          cudaStream_t);
template int64_t try_launch_strips<__nv_bfloat16, Pass::forward>(const Conv2dArrays<__nv_bfloat16>&, const Conv2dShape&,
                                                                 cudaStream_t);

}  // namespace nerfkit
