// SPDX-License-Identifier: Apache-2.0

#include "depthwise_conv2d/strips.cuh"

namespace nerfkit {

#define FOR_TYPE(T) \
  template int64_t try_launch_strips<T, Pass::forward>(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);
FOR_TYPE(float)
FOR_TYPE(__half)
FOR_TYPE(__nv_bfloat16)

}  // namespace nerfkit
