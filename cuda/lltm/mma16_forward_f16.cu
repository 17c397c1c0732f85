// SPDX-License-Identifier: Apache-2.0
// 18 kernels: a file for each type, as they take the compiler long.

#include "lltm/mma16_forward.cuh"

namespace nerfkit {
template bool launch_mma16_forward<__half>(const LltmLaunch&, const LltmForward<void>&);
}
