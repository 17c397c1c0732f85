// SPDX-License-Identifier: Apache-2.0
// Packs of LANES elements; a pack whose gradients are all zero is skipped.

#include "lazy_adam/args.h"

#include "common/simd_cpu.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 1 << 14;  // elements per task of a thread, at least

template <class T>
void step_range(const LazyAdamArguments& a, const AdamStep<T>& by, int64_t begin, int64_t end) {
  const T* grad = (const T*)a.grad;
  T *param = (T*)a.param, *mean = (T*)a.exp_avg, *square = (T*)a.exp_avg_sq;
  for (int64_t first = begin; first < end; first += LANES) {
    const int n = int(std::min<int64_t>(LANES, end - first));
    const SimdVec<T> g = load(grad + first, n), none = {};
    const auto changes = g != none;
    bool any = false;
    for (int i = 0; i < LANES; ++i) any |= changes[i] != 0;
    if (!any) continue;
    const SimdVec<T> p0 = load(param + first, n), m0 = load(mean + first, n), v0 = load(square + first, n);
    SimdVec<T> p = p0, m = m0, v = v0;
    for (int i = 0; i < LANES; ++i) {
      T pi = p0[i], mi = m0[i], vi = v0[i];
      update(by, pi, T(g[i]), mi, vi);
      p[i] = pi, m[i] = mi, v[i] = vi;
    }
    store(param + first, changes ? p : p0, n);
    store(mean + first, changes ? m : m0, n);
    store(square + first, changes ? v : v0, n);
  }
}

template <class T>
void run(const LazyAdamArguments& a) {
  const AdamStep<T> by = adam_step(a, AdamRates<T>(a));
  parallel(a.n, GRAIN, [&](int64_t begin, int64_t end) { step_range(a, by, begin, end); });
}

}  // namespace

Status lazy_adam(DType dtype, const LazyAdamArguments& arguments, Stream) {
  if (arguments.n == 0 || (arguments.found_inf && *arguments.found_inf != 0)) return 0;
  if (dtype == DType::f64)
    run<double>(arguments);
  else
    run<float>(arguments);
  return 0;
}

}  // namespace nerfkit
