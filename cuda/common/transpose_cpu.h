// SPDX-License-Identifier: Apache-2.0
// Transposes LANES rows to packs and back, in blocks of 4 x 4, which every instruction set has shuffles for.

#pragma once

#include "common/simd_cpu.h"

namespace nerfkit {
namespace {

template <class A>
struct FourOf {
  typedef A type __attribute__((vector_size(4 * sizeof(A)), aligned(alignof(A)), may_alias));
  using Index = std::conditional_t<sizeof(A) == 4, int32_t, int64_t>;
  typedef Index index __attribute__((vector_size(4 * sizeof(A))));
};
template <class A>
using Four = typename FourOf<A>::type;

template <class A, class T>
HD Four<A> load_four(const T* from) {
  if constexpr (std::is_same_v<T, A>)
    return *reinterpret_cast<const Four<A>*>(from);
  else
    return Four<A>{A(from[0]), A(from[1]), A(from[2]), A(from[3])};
}

template <class A, class T>
HD void store_four(T* to, Four<A> four) {
  if constexpr (std::is_same_v<T, A>)
    *reinterpret_cast<Four<A>*>(to) = four;
  else
    for (int i = 0; i < 4; ++i) to[i] = T(four[i]);
}

// A block of 4 x 4: from [4, from_row] -> to [4, to_row].
template <class A, class From, class To>
HD void transpose_four(const From* from, int64_t from_row, To* to, int64_t to_row) {
  using I = typename FourOf<A>::index;
  constexpr I low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, left = {0, 1, 4, 5}, right = {2, 3, 6, 7};
  const Four<A> a = load_four<A>(from), b = load_four<A>(from + from_row), c = load_four<A>(from + 2 * from_row),
                d = load_four<A>(from + 3 * from_row);
  const Four<A> ab = __builtin_shuffle(a, b, low), cd = __builtin_shuffle(c, d, low);
  const Four<A> ab_high = __builtin_shuffle(a, b, high), cd_high = __builtin_shuffle(c, d, high);
  store_four<A>(to, __builtin_shuffle(ab, cd, left));
  store_four<A>(to + to_row, __builtin_shuffle(ab, cd, right));
  store_four<A>(to + 2 * to_row, __builtin_shuffle(ab_high, cd_high, left));
  store_four<A>(to + 3 * to_row, __builtin_shuffle(ab_high, cd_high, right));
}

// f(i) for blocks of four that cover begin .. end - 1, the last overlapping the one before; end is at least 4.
template <class F>
HD void by_four(int begin, int end, const F& f) {
  for (int i = begin; i < end; i += 4) f(std::min(i, end - 4));
}

// from [LANES, row], n columns -> to [n, pack]. Four rows at a time: rows a power of two apart share a set of the
// cache.
template <class T>
HD void transpose_to_packs(const T* from, int64_t row, acc_t<T>* to, int64_t pack, int n) {
  for (int begin = 0; begin < n; begin += LANES)
    for (int c = 0; c < LANES; c += 4) {
      const T* four = from + c * row;
      if (n < 4)
        for (int i = 0; i < n; ++i)
          for (int k = 0; k < 4; ++k) to[i * pack + c + k] = acc_t<T>(four[k * row + i]);
      else
        by_four(begin, std::min(n, begin + LANES), [&](int i) __attribute__((always_inline)) {
          transpose_four<acc_t<T>>(four + i, row, to + i * pack + c, pack);
        });
    }
}

// from [n, LANES] -> to [LANES, row], n columns.
template <class T>
HD void transpose_from_packs(const acc_t<T>* from, T* to, int64_t row, int n) {
  for (int begin = 0; begin < n; begin += LANES)
    for (int c = 0; c < LANES; c += 4) {
      T* four = to + c * row;
      if (n < 4)
        for (int i = 0; i < n; ++i)
          for (int k = 0; k < 4; ++k) four[k * row + i] = T(from[i * LANES + c + k]);
      else
        by_four(begin, std::min(n, begin + LANES), [&](int i) __attribute__((always_inline)) {
          transpose_four<acc_t<T>>(from + i * LANES + c, LANES, four + i, row);
        });
    }
}

}  // namespace
}  // namespace nerfkit
