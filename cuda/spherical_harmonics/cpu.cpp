// SPDX-License-Identifier: Apache-2.0

#include "spherical_harmonics/args.h"

#include "common/simd_cpu.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 1024;  // rows per task of a thread, at least

template <class P, class T>
void run(const P* directions,       // [R, 3]
         const int64_t* ray_index,  // [n_rows] or null
         T* out,                    // [n_rows, 16]
         int64_t n_rows) {
  parallel(n_rows, GRAIN, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      P values[HARMONICS];
      harmonics_of(directions + 3 * (ray_index ? ray_index[n] : n), values);
      for (int i = 0; i < HARMONICS; ++i) out[HARMONICS * n + i] = T(acc_t<T>(values[i]));
    }
  });
}

}  // namespace

Status spherical_harmonics(DType from, DType to, const void* directions, const int64_t* ray_index, void* out,
                           int64_t n_rows, Stream) {
  dispatch(to, [&](auto element) {
    using T = decltype(element);
    if (from == DType::f64)
      run((const double*)directions, ray_index, (T*)out, n_rows);
    else
      run((const float*)directions, ray_index, (T*)out, n_rows);
  });
  return 0;
}

}  // namespace nerfkit
