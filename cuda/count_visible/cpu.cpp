// SPDX-License-Identifier: Apache-2.0

#include "count_visible/args.h"

#include "common/simd_cpu.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 64;  // rays per task of a thread, at least

template <class T>
int64_t count(const CountVisibleInputs<T>& in, int64_t ray) {
  const int64_t begin = in.ray_offsets[ray], end = in.ray_offsets[ray + 1];
  acc_t<T> before = 0;
  int64_t n = begin;
  for (; n < end && before < in.limit; ++n) before += thickness_of(in, n);
  return n - begin;
}

}  // namespace

Status count_visible(DType dtype, const CountVisibleArguments& arguments, int64_t* counts, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const auto in = typed<T>(arguments);
    parallel(in.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t ray = begin; ray < end; ++ray) counts[ray] = count(in, ray);
    });
  });
  return 0;
}

}  // namespace nerfkit
