// SPDX-License-Identifier: Apache-2.0

#include "depthwise_conv1d/args.h"

#include <vector>

#include "common/simd_cpu.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 64;  // rays that are worth a thread
constexpr int64_t PARTS = 64;  // sums of the weight gradient: a fixed number, whatever the number of threads

// weight [k, C]: channels side by side, as in the samples; flipped for the gradient of x.
template <class T>
PackVector<acc_t<T>> by_tap(const T* weight, const Conv1dShape& s, bool flipped) {
  PackVector<acc_t<T>> out(int64_t(s.kernel) * s.channels);
  for (int c = 0; c < s.channels; ++c)
    for (int u = 0; u < s.kernel; ++u)
      out[int64_t(flipped ? s.kernel - 1 - u : u) * s.channels + c] = acc_t<T>(weight[c * s.kernel + u]);
  return out;
}

template <class T>
void correlate(const T* x, const acc_t<T>* weight, const T* bias, T* out, const Conv1dShape& s, int64_t begin,
               int64_t end) {  // rays
  using A = acc_t<T>;
  const int C = s.channels;
  const int64_t reach = int64_t(s.kernel / 2) * s.dilation;
  for (int64_t n = s.ray_offsets[begin], ray = begin; ray < end; ++ray)
    for (const int64_t first = s.ray_offsets[ray], last = s.ray_offsets[ray + 1]; n < last; ++n)
      for (int c0 = 0; c0 < C; c0 += LANES) {
        const int width = std::min(LANES, C - c0);
        Pack<A> sum = bias ? load(bias + c0, width) : Pack<A>{};
        for (int u = 0; u < s.kernel; ++u) {
          const int64_t m = n - reach + int64_t(u) * s.dilation;
          if (m >= first && m < last) sum += load(weight + int64_t(u) * C + c0, width) * load(x + m * C + c0, width);
        }
        store(out + n * C + c0, sum, width);
      }
}

// Adds to sums [k + 1, C] for the rays begin .. end - 1; the last row is the bias.
template <class T>
void weight_sums(const T* grad_out, const T* x, acc_t<T>* sums, const Conv1dShape& s, int64_t begin, int64_t end) {
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

template <class T>
void to_weight(const T* grad_out, const T* x, T* grad_weight, T* grad_bias, acc_t<T>* scratch, const Conv1dShape& s) {
  const int64_t size = int64_t(s.kernel + 1) * s.channels;
  std::fill(scratch, scratch + PARTS * size, acc_t<T>(0));
  parallel(PARTS, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part)
      weight_sums(grad_out, x, scratch + part * size, s, s.n_rays * part / PARTS, s.n_rays * (part + 1) / PARTS);
  });
  for (int64_t part = 1; part < PARTS; ++part)
    for (int64_t i = 0; i < size; ++i) scratch[i] += scratch[part * size + i];
  for (int c = 0; c < s.channels; ++c) {
    for (int u = 0; u < s.kernel; ++u) grad_weight[c * s.kernel + u] = T(scratch[int64_t(u) * s.channels + c]);
    grad_bias[c] = T(scratch[int64_t(s.kernel) * s.channels + c]);
  }
}

}  // namespace

Status depthwise_conv1d(DType dtype, const void* x, const void* weight, const void* bias, void* out,
                        const Conv1dShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const auto w = by_tap((const T*)weight, s, false);
    parallel(s.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
      correlate((const T*)x, w.data(), (const T*)bias, (T*)out, s, begin, end);
    });
  });
  return 0;
}

Status depthwise_conv1d_bwd(DType dtype, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* scratch, const Conv1dShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    if (grad_weight) to_weight((const T*)grad_out, (const T*)x, (T*)grad_weight, (T*)grad_bias, (acc_t<T>*)scratch, s);
    if (!grad_x) return;
    const auto w = by_tap((const T*)weight, s, true);
    parallel(s.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
      correlate((const T*)grad_out, w.data(), (const T*)nullptr, (T*)grad_x, s, begin, end);
    });
  });
  return 0;
}

int64_t conv1d_scratch(const Conv1dShape& s) { return PARTS * (s.kernel + 1) * s.channels; }

}  // namespace nerfkit
