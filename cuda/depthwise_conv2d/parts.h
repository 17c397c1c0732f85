// SPDX-License-Identifier: Apache-2.0
// Of the gradient of x every stride'th value meets the same taps: such a part is a convolution without a stride, with
// some of the weight's taps, over the output's gradient. The outputs are a single part.

#pragma once

#include "depthwise_conv2d/tiles.h"

namespace nerfkit {
namespace {

// Along an axis of n parts: output i of `line` is value first + i * n, its tap k is the weight's tap first_tap +
// k * tap_step.
struct Part {
  Line line;
  int first, first_tap, tap_step;
};

inline std::vector<Part> forward_parts(const Axis& a) { return {{forward_line(a), 0, 0, 1}}; }

// Value i meets output (i + padding - u * dilation) / stride by those taps u for which that is a whole number.
inline std::vector<Part> backward_parts(const Axis& a) {
  const int stride = a.out_size > 1 ? a.stride : 1, dilation = a.kernel > 1 ? a.dilation : 1;
  const int common = std::gcd(stride, dilation), apart = stride / common;  // one tap to the next
  std::vector<Part> parts;
  for (int first = 0; first < std::min(stride, a.size); ++first) {
    int tap = 0;
    while (tap < std::min(apart, a.kernel) && (first + a.padding - tap * dilation) % stride) ++tap;
    const int n = tap < std::min(apart, a.kernel) ? (a.kernel - 1 - tap) / apart + 1 : 0;
    const int last = n ? tap + (n - 1) * apart : 0, lead = n ? (last * dilation - first - a.padding) / stride : 0;
    const int values = (a.size - first - 1) / stride + 1;
    parts.push_back({{a.out_size, values, n, 1, n > 1 ? dilation / common : 1, lead}, first, last, -apart});
  }
  return parts;
}

// The line of a frame from which all of several parts take what they need; none where their taps lie far apart.
inline std::vector<Line> shared_line(const std::vector<Part>& parts) {
  int64_t lead = INT32_MIN, reach = INT32_MIN;
  for (const auto& [line, first, first_tap, tap_step] : parts)
    if (line.kernel) {
      lead = std::max<int64_t>(lead, line.lead);
      reach = std::max(reach, int64_t(line.kernel - 1) * line.dilation - line.lead);
    }
  if (parts.size() < 2 || lead + reach < 0 || lead + reach >= LANES) return {};
  const Line& longest = parts[0].line;
  return {{longest.source, longest.out, int(lead + reach + 1), 1, 1, int(lead)}};
}

// Where a pair's taps are in a kernel of `width` columns.
inline std::vector<int64_t> taps_of(const Part& y, const Part& x, int64_t width) {
  std::vector<int64_t> taps;
  for (int u = 0; u < y.line.kernel; ++u)
    for (int v = 0; v < x.line.kernel; ++v)
      taps.push_back((y.first_tap + u * y.tap_step) * width + x.first_tap + v * x.tap_step);
  return taps;
}

// Weights and biases of pairs of parts, each [units, taps + 1, channels of a unit]; bias may be null, for zero.
template <class A>
struct PartWeights {
  std::vector<A> values;
  std::vector<int64_t> begins;  // of the pairs; those without a tap share one

  template <class T>
  PartWeights(const T* weight, const T* bias, const Pictures& s, const std::vector<Part>& ys,
              const std::vector<Part>& xs) {
    int64_t without = -1;
    for (const Part& y : ys)
      for (const Part& x : xs) {
        const bool empty = y.line.kernel == 0 || x.line.kernel == 0;
        begins.push_back(empty && without >= 0 ? without : values.size());
        if (begins.back() == int64_t(values.size())) add(weight, bias, s, y, x);
        if (empty) without = begins.back();
      }
  }

  template <class T>
  void add(const T* weight, const T* bias, const Pictures& s, const Part& y, const Part& x) {
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

// Columns of S parts [S, rows, width] of planes, to where the picture has them.
template <int S, class T>
HD void alternate(const T* from, int64_t part, int64_t width, T* to, int64_t below, int rows, int columns) {
  const int whole = columns / S;
  for (int r = 0; r < rows; ++r, from += width, to += below) {
    T* __restrict row = to;
    for (int i = 0; i < whole; ++i)
#pragma GCC unroll 4
      for (int k = 0; k < S; ++k) row[i * S + k] = from[k * part + i];
    for (int k = 0; k < columns % S; ++k) row[whole * S + k] = from[k * part + whole];
  }
}

// The same of any number of parts, of pixels of `unit` numbers.
template <class T>
void weave(const T* from, int64_t part, int64_t width, T* to, int64_t below, int rows, int columns, int parts,
           int unit) {
  if (unit == 1 && parts == 2) return alternate<2>(from, part, width, to, below, rows, columns);
  if (unit == 1 && parts == 3) return alternate<3>(from, part, width, to, below, rows, columns);
  if (unit == 1 && parts == 4) return alternate<4>(from, part, width, to, below, rows, columns);
  for (int r = 0; r < rows; ++r, from += width, to += below)
    for (int k = 0; k < parts; ++k) {
      const T* next = from + k * part;
      for (int64_t j = k; j < columns; j += parts, next += unit)
        for (int c = 0; c < unit; ++c) to[j * unit + c] = next[c];
    }
}

}  // namespace
}  // namespace nerfkit
