// SPDX-License-Identifier: Apache-2.0

#include "lltm/mma16_forward.cuh"

namespace nerfkit {
template bool launch_mma16_forward<float>(const LltmLaunch&, const LltmForward<void>&);
}  // namespace nerfkit
