// SPDX-License-Identifier: Apache-2.0

#include "common/launch.h"

namespace nerfkit {
const char* status_text(Status) { return "error on the CPU"; }
}  // namespace nerfkit
