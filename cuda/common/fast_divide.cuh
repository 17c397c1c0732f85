// SPDX-License-Identifier: Apache-2.0
// Division by a number that is known at launch: a multiplication and a shift.

#pragma once

#include <cstdint>

namespace nerfkit {

// n / by = (mulhi(n, factor) + n) >> shift for n below 2^31, with 2^shift >= by and
// factor = 2^32 (2^shift - by) / by + 1, rounded down.
struct FastDivide {
  unsigned factor, shift;

  static FastDivide of(unsigned by) {
    FastDivide d{0, 0};
    while ((1u << d.shift) < by) ++d.shift;
    d.factor = unsigned((uint64_t((1u << d.shift) - by) << 32) / by + 1);
    return d;
  }
  __device__ __forceinline__ unsigned operator()(unsigned n) const { return (__umulhi(n, factor) + n) >> shift; }
};

}  // namespace nerfkit
