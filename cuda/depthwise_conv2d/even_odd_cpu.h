// SPDX-License-Identifier: Apache-2.0
// Two packs of neighbours to those at even and those at odd places, and back.

#pragma once

#include <utility>

#include "common/simd_cpu.h"

namespace nerfkit {
namespace {

// Lane i is number Place::of(i) of two packs, one behind the other.
struct Even {
  static constexpr int of(int i) { return 2 * i; }
};
struct Odd {
  static constexpr int of(int i) { return 2 * i + 1; }
};
// Of even and odd numbers the first pack of neighbours, and the second.
struct First {
  static constexpr int of(int i) { return i % 2 * LANES + i / 2; }
};
struct Second {
  static constexpr int of(int i) { return First::of(LANES + i); }
};
// One place on or back: the last number of the first pack comes in, or the first of the second.
struct Before {
  static constexpr int of(int i) { return LANES - 1 + i; }
};
struct After {
  static constexpr int of(int i) { return i + 1; }
};

template <class Place, class A, int... I>
HD Pack<A> shuffled(Pack<A> a, Pack<A> b, std::integer_sequence<int, I...>) {
  using Index = std::conditional_t<sizeof(A) == 4, int32_t, int64_t>;
  typedef Index Indices __attribute__((vector_size(LANES * sizeof(A))));
  constexpr Indices from = {Place::of(I)...};
  return __builtin_shuffle(a, b, from);
}
template <class Place, class A>
HD Pack<A> shuffled(Pack<A> a, Pack<A> b) {
  return shuffled<Place, A>(a, b, std::make_integer_sequence<int, LANES>());
}

}  // namespace
}  // namespace nerfkit
