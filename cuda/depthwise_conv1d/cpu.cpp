// SPDX-License-Identifier: Apache-2.0
// A thread takes rays one after the other, LANES channels of a sample at a time.

#include "depthwise_conv1d/args.h"

#include <vector>

#include "common/simd_cpu.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 64;  // rays per task of a thread, at least
constexpr int64_t TASKS = 64;  // partial sums of the weight's gradient: a fixed number, whatever the number of threads

// weight [C, K] -> [K, C]: channels side by side, as in the samples; with taps flipped for the gradient of x.
template <class T>
PackVector<acc_t<T>> transpose_taps(const T* weight, const Conv1dShape& s, bool flipped) {
  PackVector<acc_t<T>> out(int64_t(s.kernel) * s.channels);
  for (int c = 0; c < s.channels; ++c)
    for (int u = 0; u < s.kernel; ++u)
      out[int64_t(flipped ? s.kernel - 1 - u : u) * s.channels + c] = acc_t<T>(weight[c * s.kernel + u]);
  return out;
}

// out = bias + cross-correlation of x, for the rays begin .. end - 1.
template <class T>
void correlate(const T* x, const acc_t<T>* weight, const T* bias, T* out, const Conv1dShape& s, int64_t begin,
               int64_t end) {
  using A = acc_t<T>;
  const int C = s.channels;
  const int64_t reach = int64_t(s.kernel / 2) * s.dilation;
  for (int64_t n = s.ray_offsets[begin], ray = begin; ray < end; ++ray)
    for (const int64_t first = s.ray_offsets[ray], last = s.ray_offsets[ray + 1]; n < last; ++n)
      for (int c0 = 0; c0 < C; c0 += LANES) {
        const int width = std::min(LANES, C - c0);
        SimdVec<A> sum = bias ? load(bias + c0, width) : SimdVec<A>{};
        for (int u = 0; u < s.kernel; ++u) {
          const int64_t m = n - reach + int64_t(u) * s.dilation;
          if (m >= first && m < last) sum += load(weight + int64_t(u) * C + c0, width) * load(x + m * C + c0, width);
        }
        store(out + n * C + c0, sum, width);
      }
}

// Adds to sums [K + 1, C] for the rays begin .. end - 1; the last row is the bias.
template <class T>
void add_to_weight(const T* grad_out, const T* x, acc_t<T>* sums, const Conv1dShape& s, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  const int C = s.channels;
  const int64_t reach = int64_t(s.kernel / 2) * s.dilation;
  for (int64_t ray = begin; ray < end; ++ray)
    for (int64_t first = s.ray_offsets[ray], last = s.ray_offsets[ray + 1], n = first; n < last; ++n) {
      const T* grad = grad_out + n * C;
      for (int u = 0; u < s.kernel; ++u) {
        const int64_t m = n - reach + int64_t(u) * s.dilation;
        if (m < first || m >= last) continue;
        const T* from = x + m * C;
        A* sum = sums + int64_t(u) * C;
        for (int c = 0; c < C; ++c) sum[c] += A(grad[c]) * A(from[c]);
      }
      A* sum = sums + int64_t(s.kernel) * C;
      for (int c = 0; c < C; ++c) sum[c] += A(grad[c]);
    }
}

// partials [TASKS, K + 1, C]
template <class T>
void grad_weight_of(const T* grad_out, const T* x, T* grad_weight, T* grad_bias, acc_t<T>* partials,
                    const Conv1dShape& s) {
  const int64_t size = int64_t(s.kernel + 1) * s.channels;
  std::fill(partials, partials + TASKS * size, acc_t<T>(0));
  parallel(TASKS, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task)
      add_to_weight(grad_out, x, partials + task * size, s, s.n_rays * task / TASKS, s.n_rays * (task + 1) / TASKS);
  });
  for (int64_t task = 1; task < TASKS; ++task)
    for (int64_t i = 0; i < size; ++i) partials[i] += partials[task * size + i];
  for (int c = 0; c < s.channels; ++c) {
    for (int u = 0; u < s.kernel; ++u) grad_weight[c * s.kernel + u] = T(partials[int64_t(u) * s.channels + c]);
    grad_bias[c] = T(partials[int64_t(s.kernel) * s.channels + c]);
  }
}

}  // namespace

Status depthwise_conv1d(DType dtype, const void* x, const void* weight, const void* bias, void* out,
                        const Conv1dShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const auto w = transpose_taps((const T*)weight, s, false);
    parallel(s.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
      correlate((const T*)x, w.data(), (const T*)bias, (T*)out, s, begin, end);
    });
  });
  return 0;
}

Status depthwise_conv1d_bwd(DType dtype, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* partials, const Conv1dShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    if (grad_weight)
      grad_weight_of((const T*)grad_out, (const T*)x, (T*)grad_weight, (T*)grad_bias, (acc_t<T>*)partials, s);
    if (!grad_x) return;
    const auto w = transpose_taps((const T*)weight, s, true);
    parallel(s.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
      correlate((const T*)grad_out, w.data(), (const T*)nullptr, (T*)grad_x, s, begin, end);
    });
  });
  return 0;
}

int64_t conv1d_partials(const Conv1dShape& s) { return TASKS * (s.kernel + 1) * s.channels; }

}  // namespace nerfkit
