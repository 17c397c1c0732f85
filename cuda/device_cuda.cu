// SPDX-License-Identifier: Apache-2.0

#include "common/launch.h"

namespace nerfkit {
const char* status_text(Status status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); }
}  // namespace nerfkit
