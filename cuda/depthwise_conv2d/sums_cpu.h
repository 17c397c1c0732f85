// SPDX-License-Identifier: Apache-2.0
// Sums of depthwise_conv2d_cpu.cpp: several rows of outputs at once, so that a pack that was loaded serves all of them.

#pragma once

#include "depthwise_conv2d/padded_tile_cpu.h"

namespace nerfkit {
namespace {

template <class T>
struct Outputs {
  T* values;          // [rows, packs], of an image or a buffer
  int64_t row, pack;  // distances
  int lanes;          // to write of each pack
  bool prefetches;    // ahead
  const T* ahead;     // inputs [rows, packs] of the next tile, prefetched while this one is summed
  int64_t ahead_row, ahead_pack;
  bool past_caches = false;
  int64_t later = PREFETCH_DISTANCE * pack;  // from outputs to those that are prefetched

  HD Outputs moved(int64_t by) const {
    return {values + by, row, pack, lanes, prefetches, ahead + by, ahead_row, ahead_pack, past_caches, later};
  }
  HD Outputs below(int n) const {
    Outputs some = moved(n * row);
    some.ahead += n * (ahead_row - row);
    return some;
  }
  Outputs every(int period, int from) const {  // every period'th pack, from one on
    Outputs some = moved(from * LANES);
    some.pack *= period, some.ahead_pack *= period, some.later *= period;
    return some;
  }
  // For P packs of R rows. A call, so that the sums share no registers with addresses.
  template <int R, int P>
  __attribute__((noinline)) void prefetch(int64_t p) const {
    in_order();  // the compiler drops calls that do nothing but prefetch
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int i = 0; i < P; ++i) {
        __builtin_prefetch(ahead + r * ahead_row + (p + i) * ahead_pack);
        if (!past_caches) __builtin_prefetch(values + r * row + (p + i) * pack + later, 1);
      }
  }
};

// What is summed in one call: groups of rows, and of each the packs begin .. end - 1. Its last packs may overlap those
// before by `back` numbers.
struct Span {
  int begin, end, groups = 1;
  int64_t back = 0;
};

// P packs of R rows: enough sums that none waits for itself. For K rows of taps and S of inputs from one output to the
// next an input is loaded once for all of them. weight [kernel_y * kernel_x + 1, LANES]; the last row is the bias.
template <class T, int K, int S, int R, int P>
HD void correlate_group(const Inputs<T>& in, const T* weight, const Outputs<T>& out, const Span& span) {
  const int kernel_y = K ? K : in.kernel_y, kernel_x = in.kernel_x, first = in.first, last = in.last;
  const T* const* rows = in.rows;
  const int64_t in_pack = in.pack, *offset = in.offset;
  for (int p = span.begin; p + P <= span.end; p += P) {
    if (out.prefetches) out.template prefetch<R, P>(p);
    Pack<T> sum[R][P];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int i = 0; i < P; ++i) sum[r][i] = load(weight + kernel_y * kernel_x * LANES);
    const int64_t back = p + P == span.end ? span.back : 0;
    for (int v = first; v < last; ++v) {
      const int64_t at = in.shift + p * in_pack - back + offset[v];
      Pack<T> w[K ? K : 1];
#pragma GCC unroll 9
      for (int u = 0; u < K; ++u) w[u] = load(weight + (u * kernel_x + v) * LANES);
#pragma GCC unroll 24
      for (int y = 0; K && y < K + (R - 1) * S; ++y) {
        const int first = std::min(y / S, R - 1);  // of the outputs
        in_order();
#pragma GCC unroll 8
        for (int i = 0; i < P; ++i) {
          const Pack<T> pack = load(rows[S == 1 ? y : first * K + y - first * S] + at + i * in_pack);
          if (R == 8 || P > 1) in_order();  // wide registers hold it: loaded once, and not again for each row
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r)
            if (y >= r * S && y - r * S < K) sum[r][i] += w[y - r * S] * pack;
        }
      }
      for (int u = 0; !K && u < kernel_y; ++u) {
        const Pack<T> tap = load(weight + (u * kernel_x + v) * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
          for (int i = 0; i < P; ++i) sum[r][i] += tap * load(rows[r * in.step + u] + at + i * in_pack);
      }
    }
    const Outputs<T> to = out.moved(-back);  // read here: no register keeps it while the sums need all of them
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int i = 0; i < P; ++i) {  // a part of a pack takes a call, over which no register would keep its sum
        const int lanes = P > 1 ? LANES : to.lanes;
        T* const position = to.values + r * to.row + (p + i) * to.pack;
        to.past_caches ? store_streaming(position, sum[r][i]) : store(position, sum[r][i], lanes);
      }
  }
}

template <class T, int K, int S, int R, int P>
void correlate(Inputs<T> in, const T* weight, Outputs<T> out, const Span& span) {
  for (int group = 0; group < span.groups; ++group) {
    correlate_group<T, K, S, R, P>(in, weight, out, span);
    in = in.below(R), out = out.below(R);
  }
}

// `columns` neighbours of rows that each have a kernel of their own, weight [rows, kernel_x + 1].
template <class T>
void correlate_rows(const Inputs<T>& in, const T* weight, const Outputs<T>& out, int rows, int columns) {
  constexpr int P = 4;
  const int taps = in.kernel_x;
  for (int r = 0; r < rows; ++r, weight += taps + 1) {
    const T* from = in.rows[r];
    T* to = out.values + r * out.row;
    int at = 0;
    for (; at + P * LANES <= columns; at += P * LANES) {
      Pack<T> sum[P];
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) sum[i] = broadcast(weight[taps]);
      for (int v = 0; v < taps; ++v)
#pragma GCC unroll 4
        for (int i = 0; i < P; ++i) sum[i] += weight[v] * load(from + in.offset[v] + at + i * LANES);
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) store(to + at + i * LANES, sum[i]);
    }
    for (; at < columns; at += LANES) {  // the last pack overlaps the one before, if there is one
      const int begin = std::max(0, std::min(at, columns - LANES));
      Pack<T> sum = broadcast(weight[taps]);
      for (int v = 0; v < taps; ++v) sum += weight[v] * load(from + in.offset[v] + begin);
      store(to + begin, sum, std::min(LANES, columns));
    }
  }
}

// Packs of R rows that are summed at once.
template <class A, int R>
constexpr int PACKS_AT_ONCE = sizeof(A) > sizeof(float) ? 1
                              : R == 1                  ? 8
                                                        : 2;

// The packs of a span, P at once as far as there are so many.
template <class T, int K, int S, int R, int P = PACKS_AT_ONCE<T, R>>
void correlate_packs(const Inputs<T>& in, const T* weight, const Outputs<T>& out, Span span) {
  const int n = span.end - span.begin, full = n / P * P, left = n - full;
  if constexpr (P > 1) {
    if (n < P || (n == P && span.back)) return correlate_packs<T, K, S, R, P == 8 ? 4 : 1>(in, weight, out, span);
    correlate<T, K, S, R, P>(in, weight, out, {span.begin, span.begin + full, span.groups, left ? 0 : span.back});
    if (left > 1) correlate<T, K, S, R, P>(in, weight, out, {span.end - P, span.end, span.groups, span.back});
    span.begin = span.end - (left == 1);
  }
  if (span.begin < span.end) correlate<T, K, S, R, 1>(in, weight, out, span);
}

// `columns` numbers of groups of R rows. The last packs overlap those before, if there are any.
template <class T, int K, int S, int R>
void correlate_columns(const Inputs<T>& in, const T* weight, const Outputs<T>& out, int columns, int groups,
                       int period) {
  auto to = out;
  to.lanes = std::min(LANES, columns);
  const int packs = (columns + LANES - 1) / LANES, over = packs > 1 ? packs * LANES - columns : 0;
  if (period == 1) return correlate_packs<T, K, S, R>(in, weight, to, {0, packs, groups, over});
  const int64_t n_weights = (int64_t(in.kernel_y) * in.kernel_x + 1) * LANES;
  const int full = columns / LANES, last = std::max(0, columns - LANES);
  for (int p = 0; p < std::min(period, full); ++p)
    correlate_packs<T, K, S, R>(in.every(period, p), weight + p * n_weights, out.every(period, p),
                                {0, (full - p + period - 1) / period, groups});
  const T* last_weight = weight + (full ? period - 1 : 0) * n_weights;  // a period's last pack ends with a pixel, too
  if (columns % LANES) correlate<T, K, S, R, 1>(in.moved(last), last_weight, to.moved(last), {0, 1, groups});
}

// Calls f(K, S) for the kernel's height and the stride, or for a height of 0, which is any.
template <class A, class F>
void with_sharing(const AxisGeometry& y, const F& f) {
  if (y.shares_rows()) return with_height<A>(y.kernel, [&](auto k) { f(k, Int<1>()); });
  if constexpr (std::is_same_v<A, float>)
    if (y.kernel == 3 && y.stride == 2 && y.dilation == 1) return f(Int<3>(), Int<2>());
  f(Int<0>(), Int<1>());
}

// Calls f(R, i, groups) for groups of R rows from row i on, R as many as registers hold. The last group overlaps the
// one before.
template <class A, class F>
void by_group(int rows, const F& f) {
  constexpr bool HOLDS_8 = MAX_PACKS<A> >= 32;
  const bool wide = HOLDS_8 && rows >= 8;
  const int left = rows % (wide ? 8 : 4);
  if constexpr (HOLDS_8) {
    if (wide) f(Int<8>(), 0, rows / 8);
    if (wide && left > 4) f(Int<8>(), rows - 8, 1);
  }
  if (!wide) f(Int<4>(), 0, rows / 4);
  if (left && (!wide || left <= 4)) f(Int<4>(), rows - 4, 1);
}

// Calls f(K, S, R, i, groups).
template <class A, class F>
void rows_by_group(const AxisGeometry& y, int rows, const F& f) {
  if (rows < 4) return f(Int<0>(), Int<1>(), Int<1>(), 0, rows);
  with_sharing<A>(
      y, [&](auto k, auto s) { by_group<A>(rows, [&](auto r, int i, int groups) { f(k, s, r, i, groups); }); });
}

}  // namespace
}  // namespace nerfkit
