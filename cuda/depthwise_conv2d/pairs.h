// SPDX-License-Identifier: Apache-2.0
// Planes, 3 x 3 taps one apart with a border of one, a stride of 2: no frame. Each output has a pair of x in its row,
// which is missing the second one at the end of a row of odd length.

#pragma once

#include "depthwise_conv2d/even_odd_cpu.h"
#include "depthwise_conv2d/tiles.h"

namespace nerfkit {
namespace {

constexpr int TAPS = 3;

// LANES pairs of a row.
struct Pairs {
  Pack<float> even, odd;

  HD explicit Pairs(const float* from) : Pairs(load(from), load(from + LANES)) {}
  HD Pairs(Pack<float> low, Pack<float> high)
      : even(shuffled<Even, float>(low, high)), odd(shuffled<Odd, float>(low, high)) {}
  // The last ones of a row: zero for a number that is missing.
  HD static Pairs last(const float* from, bool missing) {
    if (!missing) return Pairs(from);
    return {load(from), shuffled<After, float>(load(from + LANES - 1), Pack<float>{})};
  }
};

}  // namespace
}  // namespace nerfkit
