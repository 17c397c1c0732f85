// SPDX-License-Identifier: Apache-2.0
// All gradients in one walk, channels last, for 3 x 3 taps one apart with a border of one: nine weights and the sums of
// their gradients stay in registers, so that the output's gradient is read once for both.

#pragma once

#include "depthwise_conv2d_frame.h"

namespace nerfkit {
namespace {

// A block of S x S pixels of x, S the stride, has all its outputs among SIDE x SIDE, of which the first is FIRST away.
template <int S>
struct BothBlock {
  static constexpr int SIDE = S == 1 ? 3 : 2, FIRST = S == 1 ? -1 : 0;
  // Whether tap u of a block's pixel a, along an axis, leads to an output, and to which of the SIDE.
  static constexpr bool meets(int a, int u) { return (a + 1 - u) % S == 0; }
  static constexpr int output(int a, int u) { return (a + 1 - u) / S - FIRST; }
};

// Rows that a row of blocks takes, and the distance of their pixels.
template <class T, int S>
struct BothRows {
  const T *grad[BothBlock<S>::SIDE], *x[S];
  T* grad_x[S];
  int64_t pixel;
};

// Blocks begin .. end - 1 of a row: their grad_x, and what they add to sums [10, LANES], the last of which is the bias.
template <class T, int S>
CLONES void both_gradients(const BothRows<T, S>& rows, const T* weight, T* sums, int begin, int end) {
  using Block = BothBlock<S>;
  Pack<T> w[9], sum[10];
#pragma GCC unroll 9
  for (int k = 0; k < 9; ++k) w[k] = load(weight + k * LANES);
#pragma GCC unroll 10
  for (int k = 0; k < 10; ++k) sum[k] = load(sums + k * LANES);
  for (int j = begin; j < end; ++j) {
    const int64_t at = j * rows.pixel, soon = LANES;
#pragma GCC unroll 2
    for (int a = 0; a < S; ++a)
#pragma GCC unroll 2
      for (int b = 0; b < S; ++b) {
        const int64_t pixel = S * at + b * rows.pixel;
        __builtin_prefetch(rows.x[a] + pixel + soon);
        __builtin_prefetch(rows.grad_x[a] + pixel + soon, 1);
        const Pack<T> x = load(rows.x[a] + pixel);
        Pack<T> result = {};
#pragma GCC unroll 3
        for (int u = 0; u < 3; ++u)
#pragma GCC unroll 3
          for (int v = 0; v < 3; ++v)
            if (Block::meets(a, u) && Block::meets(b, v)) {
              const int k = u * 3 + v;
              const Pack<T> grad = load(rows.grad[Block::output(a, u)] + at + (Block::FIRST + Block::output(b, v)) * rows.pixel);
              result += w[k] * grad, sum[k] += x * grad;
              if (a == 0 && b == 0 && k == 4) sum[9] += grad;
            }
        store(rows.grad_x[a] + pixel, result);
      }
    __builtin_prefetch(rows.grad[Block::SIDE - 1] + at + soon);
  }
#pragma GCC unroll 10
  for (int k = 0; k < 10; ++k) store(sums + k * LANES, sum[k]);
}

// Whether x's gradient and the weights' are found together.
template <class T>
bool at_once(const Pictures& s) {
  const auto fits = [&](const Axis& a) {
    return a.kernel == 3 && a.dilation == 1 && a.padding == 1 && a.stride <= 2 && a.stride == s.x.stride;
  };
  return std::is_same_v<T, float> && s.channels_last && s.lanes_are_channels() && fits(s.y) && fits(s.x) && has_wide_registers();
}

// The blocks of a tile of outputs.
template <class T, int S>
void both_tile(const Plane<const T>& grad, const Plane<const T>& x, const Plane<T>& grad_x, const T* weight, T* sums,
               const Tile& tile, const Pictures& s, const std::vector<T>& zeros, std::vector<T>& unused) {
  using Block = BothBlock<S>;
  constexpr int SIDE = Block::SIDE;
  const int height = s.y.out_size, width = s.x.out_size, end = tile.column + tile.columns;
  // Blocks of which all pixels are there.
  const int first = std::max(tile.column, -Block::FIRST), last = std::min(end, std::min(width + 1 - SIDE - Block::FIRST, s.x.size / S));
  for (int i = tile.row; i < tile.row + tile.rows; ++i) {
    BothRows<T, S> rows{{}, {}, {}, grad.column};
    for (int k = 0; k < SIDE; ++k) {
      const int at = i + Block::FIRST + k;
      rows.grad[k] = at >= 0 && at < height ? grad.values + at * grad.row : zeros.data();
    }
    for (int a = 0; a < S; ++a) {
      const bool real = i * S + a < s.y.size;
      rows.x[a] = real ? x.values + (i * S + a) * x.row : zeros.data();
      rows.grad_x[a] = real ? grad_x.values + (i * S + a) * grad_x.row : unused.data();
    }
    auto edge = [&](int j) {
      alignas(64) T grads[SIDE][SIDE * LANES] = {}, xs[S][S * LANES] = {}, outs[S][S * LANES];
      BothRows<T, S> some{{}, {}, {}, LANES};
      for (int k = 0; k < SIDE; ++k) {
        some.grad[k] = grads[k] - Block::FIRST * LANES;
        for (int v = 0; v < SIDE; ++v) {
          const int at = j + Block::FIRST + v;
          if (at >= 0 && at < width) store(grads[k] + v * LANES, load(rows.grad[k] + at * grad.column));
        }
      }
      for (int a = 0; a < S; ++a) {
        some.x[a] = xs[a], some.grad_x[a] = outs[a];
        for (int b = 0; b < S && j * S + b < s.x.size; ++b) store(xs[a] + b * LANES, load(rows.x[a] + (j * S + b) * x.column));
      }
      both_gradients<T, S>(some, weight, sums, 0, 1);
      for (int a = 0; a < S; ++a)
        for (int b = 0; b < S && j * S + b < s.x.size; ++b)
          store(rows.grad_x[a] + (j * S + b) * grad_x.column, load(outs[a] + b * LANES));
    };
    for (int j = tile.column; j < std::min(first, end); ++j) edge(j);
    if (first < last) both_gradients<T, S>(rows, weight, sums, first, last);
    for (int j = std::max(first, last); j < end; ++j) edge(j);
  }
}

}  // namespace
}  // namespace nerfkit
