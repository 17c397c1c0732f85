// SPDX-License-Identifier: Apache-2.0
// 36 kernels, and 18 in mma16_forward_f32.cu: two files, as they take the compiler long.

#include "lltm/mma16_forward.cuh"

namespace nerfkit {
template bool launch_mma16_forward<__half>(const LltmLaunch&, const LltmForward<void>&);
template bool launch_mma16_forward<__nv_bfloat16>(const LltmLaunch&, const LltmForward<void>&);
}  // namespace nerfkit
