// SPDX-License-Identifier: Apache-2.0
// Of the gradient of x every stride'th value meets the same taps: such a phase is a convolution without a stride, with
// some of the weight's taps, over the output's gradient. The outputs are a single phase.

#pragma once

#include "depthwise_conv2d/tiles_cpu.h"

namespace nerfkit {
namespace {

// Along an axis of n phases: output i of `axis` is value first + i * n, its tap k is the weight's tap first_tap +
// k * tap_step.
struct Phase {
  AxisGeometry axis;
  int first, first_tap, tap_step;
};

inline std::vector<Phase> forward_phases(const Axis& a) { return {{forward_geometry(a), 0, 0, 1}}; }

// Value i meets output (i + padding - u * dilation) / stride by those taps u for which that is a whole number.
inline std::vector<Phase> backward_phases(const Axis& a) {
  const int stride = a.out_size > 1 ? a.stride : 1, dilation = a.kernel > 1 ? a.dilation : 1;
  const int common = std::gcd(stride, dilation), apart = stride / common;  // one tap to the next
  std::vector<Phase> phases;
  for (int first = 0; first < std::min(stride, a.size); ++first) {
    int tap = 0;
    while (tap < std::min(apart, a.kernel) && (first + a.padding - tap * dilation) % stride) ++tap;
    const int n = tap < std::min(apart, a.kernel) ? (a.kernel - 1 - tap) / apart + 1 : 0;
    const int last = n ? tap + (n - 1) * apart : 0, lead = n ? (last * dilation - first - a.padding) / stride : 0;
    const int values = (a.size - first - 1) / stride + 1;
    phases.push_back({{a.out_size, values, n, 1, n > 1 ? dilation / common : 1, lead}, first, last, -apart});
  }
  return phases;
}

// The axis of a padded tile that holds what all of several phases take; none where their taps lie far apart.
inline std::vector<AxisGeometry> shared_geometry(const std::vector<Phase>& phases) {
  int64_t lead = INT32_MIN, reach = INT32_MIN;
  for (const auto& [axis, first, first_tap, tap_step] : phases)
    if (axis.kernel) {
      lead = std::max<int64_t>(lead, axis.lead);
      reach = std::max(reach, int64_t(axis.kernel - 1) * axis.dilation - axis.lead);
    }
  if (phases.size() < 2 || lead + reach < 0 || lead + reach >= LANES) return {};
  const AxisGeometry& longest = phases[0].axis;
  return {{longest.source, longest.out, int(lead + reach + 1), 1, 1, int(lead)}};
}

// Where a pair's taps are in a kernel of `width` columns.
inline std::vector<int64_t> taps_of(const Phase& y, const Phase& x, int64_t width) {
  std::vector<int64_t> taps;
  for (int u = 0; u < y.axis.kernel; ++u)
    for (int v = 0; v < x.axis.kernel; ++v)
      taps.push_back((y.first_tap + u * y.tap_step) * width + x.first_tap + v * x.tap_step);
  return taps;
}

// Weights and biases of pairs of phases, each [units, taps + 1, channels of a unit]; bias may be null, for zero.
template <class A>
struct PhaseWeights {
  std::vector<A> values;        // [pairs of phases][units, taps + 1, channels of a unit]
  std::vector<int64_t> begins;  // of the pairs; those without a tap share one

  // weight [C, KH * KW], bias [C] or null
  template <class T>
  PhaseWeights(const T* weight, const T* bias, const Conv2dProblem& s, const std::vector<Phase>& ys,
               const std::vector<Phase>& xs) {
    int64_t without = -1;
    for (const Phase& y : ys)
      for (const Phase& x : xs) {
        const bool empty = y.axis.kernel == 0 || x.axis.kernel == 0;
        begins.push_back(empty && without >= 0 ? without : values.size());
        if (begins.back() == int64_t(values.size())) add(weight, bias, s, y, x);
        if (empty) without = begins.back();
      }
  }

  template <class T>
  void add(const T* weight, const T* bias, const Conv2dProblem& s, const Phase& y, const Phase& x) {
    const auto taps = taps_of(y, x, s.x.kernel);
    const int64_t n_taps = taps.size(), unit = s.unit(), n_units = s.rows ? s.kernels() : s.units(),
                  start = values.size();
    values.resize(start + n_units * (n_taps + 1) * unit);
    A* to = values.data() + start;
    for (int64_t i = 0; i < n_units; ++i, to += (n_taps + 1) * unit)
      for (int64_t c = 0; c < unit; ++c) {
        const int64_t channel = s.rows ? i : s.first_channel(i) + c;
        const T* from = weight + channel * s.y.kernel * s.x.kernel;
        for (int64_t k = 0; k < n_taps; ++k) to[k * unit + c] = A(from[taps[k]]);
        to[n_taps * unit + c] = bias ? A(bias[channel]) : 0;
      }
  }
};

// from [S, rows, width], columns of S phases, to those of an image, `below` elements from one row to the next.
template <int S, class T>
HD void interleave_phases(const acc_t<T>* from, int64_t phase, int64_t width, T* to, int64_t below, int rows,
                          int columns) {
  const int full = columns / S;
  for (int r = 0; r < rows; ++r, from += width, to += below) {
    T* __restrict row = to;
    for (int i = 0; i < full; ++i)
#pragma GCC unroll 4
      for (int k = 0; k < S; ++k) row[i * S + k] = T(from[k * phase + i]);
    for (int k = 0; k < columns % S; ++k) row[full * S + k] = T(from[k * phase + full]);
  }
}

// The same of any number of phases, of pixels of `unit` numbers.
template <class T>
void interleave(const acc_t<T>* from, int64_t phase, int64_t width, T* to, int64_t below, int rows, int columns,
                int phases, int unit) {
  if (phases == 1) return interleave_phases<1>(from, phase, width, to, below, rows, columns * unit);
  if (unit == 1 && phases == 2) return interleave_phases<2>(from, phase, width, to, below, rows, columns);
  if (unit == 1 && phases == 3) return interleave_phases<3>(from, phase, width, to, below, rows, columns);
  if (unit == 1 && phases == 4) return interleave_phases<4>(from, phase, width, to, below, rows, columns);
  for (int r = 0; r < rows; ++r, from += width, to += below)
    for (int k = 0; k < phases; ++k) {
      const acc_t<T>* next = from + k * phase;
      for (int64_t j = k; j < columns; j += phases, next += unit)
        for (int c = 0; c < unit; ++c) to[j * unit + c] = T(next[c]);
    }
}

}  // namespace
}  // namespace nerfkit
