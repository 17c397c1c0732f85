// SPDX-License-Identifier: Apache-2.0
// Several rows of outputs are summed together, so that a pack that was loaded serves all of them. The gradient of x is
// the same with a flipped kernel over the output's gradient, spread by the stride.

#include "depthwise_conv2d_frame.h"

namespace nerfkit {
namespace {

// Bytes of a picture and its outputs that a processor's last cache keeps. Below, fetching ahead costs more than it saves.
constexpr int64_t CACHED = 24 << 20;

template <class T>
struct Outputs {
  T* values;
  int64_t row, pack;  // distances
  int lanes;          // to write of each pack
  bool fetches;       // ahead
  const T* soon;      // inputs of the tile that comes next, fetched while this one is summed
  int64_t soon_row, soon_pack;

  HD Outputs moved(int64_t by) const { return {values + by, row, pack, lanes, fetches, soon + by, soon_row, soon_pack}; }
  HD Outputs below(int n) const {
    return {values + n * row, row, pack, lanes, fetches, soon + n * soon_row, soon_row, soon_pack};
  }
  Outputs every(int period, int from) const {  // every period'th pack, from one on
    Outputs some = moved(from * LANES);
    some.pack *= period, some.soon_pack *= period;
    return some;
  }
  // For P packs of R rows. A call, so that the sums share no registers with addresses.
  template <int R, int P>
  __attribute__((noinline)) void fetch(int64_t p) const {
    in_order();  // the compiler drops calls that do nothing but fetch
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int i = 0; i < P; ++i) {
        __builtin_prefetch(soon + r * soon_row + (p + i) * soon_pack);
        __builtin_prefetch(values + r * row + (p + i + SOON) * pack, 1);
      }
  }
};

// What is summed in one call: groups of rows, and of each the packs begin .. end - 1. Its last packs may overlap those
// before by `back` numbers.
struct Span {
  int begin, end, groups = 1;
  int64_t back = 0;
};

// P packs of R rows: enough sums that none waits for itself. weight [kernel_y * kernel_x + 1, LANES]; the last row is
// the bias.
template <class T, int K, int R, int P>
HD void correlate_group(const Inputs<acc_t<T>>& in, const acc_t<T>* weight, const Outputs<T>& out, const Span& span) {
  using A = acc_t<T>;
  const int kernel_y = K ? K : in.kernel_y, kernel_x = in.kernel_x, first = in.first, last = in.last;
  const A* const* rows = in.rows;
  const int64_t in_pack = in.pack, *offset = in.offset;
  for (int p = span.begin; p + P <= span.end; p += P) {
    if (out.fetches) out.template fetch<R, P>(p);
    Pack<A> sum[R][P];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int i = 0; i < P; ++i) sum[r][i] = load(weight + kernel_y * kernel_x * LANES);
    const int64_t back = p + P == span.end ? span.back : 0;
    for (int v = first; v < last; ++v) {
      const int64_t at = in.shift + p * in_pack - back + offset[v];
      Pack<A> w[K ? K : 1];
#pragma GCC unroll 9
      for (int u = 0; u < K; ++u) w[u] = load(weight + (u * kernel_x + v) * LANES);
#pragma GCC unroll 16
      for (int y = 0; y < kernel_y + R - 1; ++y) {
        in_order();
#pragma GCC unroll 8
        for (int i = 0; i < P; ++i) {
          const Pack<A> pack = load(rows[y] + at + i * in_pack);
          if (R == 8 || P > 1) in_order();  // wide registers hold it: loaded once, and not again for each row
          if (K == 0) sum[0][i] += load(weight + (y * kernel_x + v) * LANES) * pack;
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r)
            if (y >= r && y - r < K) sum[r][i] += w[y - r] * pack;
        }
      }
    }
    const Outputs<T> to = out.moved(-back);  // read here: no register keeps it while the sums need all of them
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int i = 0; i < P; ++i) {  // a part of a pack takes a call, over which no register would keep its sum
        const int lanes = P > 1 ? LANES : to.lanes;
        store(to.values + r * to.row + (p + i) * to.pack, sum[r][i], lanes);
      }
  }
}

template <class T, int K, int R, int P>
CLONES void correlate(Inputs<acc_t<T>> in, const acc_t<T>* weight, Outputs<T> out, const Span& span) {
  for (int group = 0; group < span.groups; ++group) {
    correlate_group<T, K, R, P>(in, weight, out, span);
    in = in.below(R), out = out.below(R);
  }
}

// `columns` neighbours of rows that each have a kernel of their own, weight [rows, kernel_x + 1].
template <class T>
CLONES void correlate_rows(const Inputs<acc_t<T>>& in, const acc_t<T>* weight, const Outputs<T>& out, int rows,
                           int columns) {
  using A = acc_t<T>;
  constexpr int P = 4;
  const int taps = in.kernel_x;
  for (int r = 0; r < rows; ++r, weight += taps + 1) {
    const A* from = in.rows[r];
    T* to = out.values + r * out.row;
    int at = 0;
    for (; at + P * LANES <= columns; at += P * LANES) {
      Pack<A> sum[P];
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) sum[i] = repeated(weight[taps]);
      for (int v = 0; v < taps; ++v)
#pragma GCC unroll 4
        for (int i = 0; i < P; ++i) sum[i] += weight[v] * load(from + in.offset[v] + at + i * LANES);
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) store(to + at + i * LANES, sum[i]);
    }
    for (; at < columns; at += LANES) {  // the last pack overlaps the one before, if there is one
      const int begin = std::max(0, std::min(at, columns - LANES));
      Pack<A> sum = repeated(weight[taps]);
      for (int v = 0; v < taps; ++v) sum += weight[v] * load(from + in.offset[v] + begin);
      store(to + begin, sum, std::min(LANES, columns));
    }
  }
}

// weight and bias as [units, taps + 1, channels of a unit]; bias may be null, for zero.
template <class T>
std::vector<acc_t<T>> by_unit(const T* weight, const T* bias, const Pictures& s, bool flipped) {
  const int64_t n_taps = int64_t(s.y.kernel) * s.x.kernel, unit = s.unit(), n_units = s.rows ? s.kernels() : s.units();
  std::vector<acc_t<T>> units(n_units * (n_taps + 1) * unit);
  acc_t<T>* to = units.data();
  for (int64_t i = 0; i < n_units; ++i, to += (n_taps + 1) * unit)
    for (int64_t c = 0; c < unit; ++c) {
      const int64_t channel = s.rows ? i : s.first_channel(i) + c;
      const T* from = weight + channel * n_taps;
      for (int64_t k = 0; k < n_taps; ++k) to[k * unit + c] = acc_t<T>(from[flipped ? n_taps - 1 - k : k]);
      to[n_taps * unit + c] = bias ? acc_t<T>(bias[channel]) : 0;
    }
  return units;
}

// Those of a unit, [n, unit], as packs [period, n, LANES].
template <class A>
CLONES const A* in_packs(const A* weight, int64_t n, int unit, std::vector<A>& packs) {
  A* to = packs.data();
  for (int p = 0; p < period_of(unit); ++p)
    for (int64_t k = 0; k < n; ++k, to += LANES)
      if (unit == 1)
        store(to, repeated(weight[k]));
      else
        for (int i = 0; i < LANES; ++i) to[i] = weight[k * unit + (p * LANES + i) % unit];
  return packs.data();
}

// Packs of R rows that are summed at once.
template <class A, int R>
int most_packs() {
  return !has_wide_registers() || sizeof(A) > sizeof(float) ? 1 : R == 1 ? 8 : 2;
}

// The packs of a span, P at once as far as there are so many.
template <class T, int K, int R, int P = R == 1 ? 8 : 2>
void correlate_packs(const Inputs<acc_t<T>>& in, const acc_t<T>* weight, const Outputs<T>& out, Span span) {
  const int n = span.end - span.begin, whole = n / P * P, left = n - whole;
  if constexpr (P > 1) {
    if (P > most_packs<acc_t<T>, R>() || n < P || (n == P && span.back))
      return correlate_packs<T, K, R, P == 8 ? 4 : 1>(in, weight, out, span);
    correlate<T, K, R, P>(in, weight, out, {span.begin, span.begin + whole, span.groups, left ? 0 : span.back});
    if (left > 1) correlate<T, K, R, P>(in, weight, out, {span.end - P, span.end, span.groups, span.back});
    span.begin = span.end - (left == 1);
  }
  if (span.begin < span.end) correlate<T, K, R, 1>(in, weight, out, span);
}

// `columns` numbers of groups of R rows. The last packs overlap those before, if there are any.
template <class T, int K, int R>
void correlate_columns(const Inputs<acc_t<T>>& in, const acc_t<T>* weight, const Outputs<T>& out, int columns, int groups,
                       int period) {
  auto part = out;
  part.lanes = std::min(LANES, columns);
  const int packs = (columns + LANES - 1) / LANES, over = packs > 1 ? packs * LANES - columns : 0;
  if (period == 1) return correlate_packs<T, K, R>(in, weight, part, {0, packs, groups, over});
  const int64_t n_weights = (int64_t(in.kernel_y) * in.kernel_x + 1) * LANES;
  const int whole = columns / LANES, last = std::max(0, columns - LANES);
  for (int p = 0; p < std::min(period, whole); ++p)
    correlate_packs<T, K, R>(in.every(period, p), weight + p * n_weights, out.every(period, p),
                             {0, (whole - p + period - 1) / period, groups});
  if (columns % LANES)  // as many numbers before a pixel's first as the last pack of a period
    correlate<T, K, R, 1>(in.moved(last), weight + (whole ? period - 1 : 0) * n_weights, part.moved(last), {0, 1, groups});
}

// Calls f(K, R, i, groups) for groups of R rows from row i on, R as many as registers hold; K is the kernel's height, or
// 0 for any with R = 1. The last group overlaps the one before.
template <class F>
void rows_by_group(const Line& y, int rows, const F& f) {
  with_height(y.rolls() && rows >= 4 ? y.kernel : 0, [&](auto k) {
    if constexpr (k == 0) {
      f(k, Int<1>(), 0, rows);
    } else {
      const bool wide = rows >= 8 && has_wide_registers();
      const int left = rows % (wide ? 8 : 4);
      if (wide) f(k, Int<8>(), 0, rows / 8);
      if (wide && left > 4) f(k, Int<8>(), rows - 8, 1);
      if (!wide) f(k, Int<4>(), 0, rows / 4);
      if (left && (!wide || left <= 4)) f(k, Int<4>(), rows - 4, 1);
    }
  });
}

// Outputs of a tile, from its row i on; its rows are `step` apart.
template <class T>
Outputs<T> outputs_of(const Plane<T>& out, const Plane<const T>& source, const Tile& tile, int i, int step,
                      const Pictures& s) {
  const int64_t row = tile.row + i * step, below = step * out.row, soon_below = step * source.row;
  T* to = out.values + row * out.row + tile.column * out.column;
  const T* soon = source.values + source.unit + row * source.row + tile.column * source.column;
  const int64_t numbers = s.batch * s.channels * (int64_t(s.y.size) * s.x.size + int64_t(s.y.out_size) * s.x.out_size);
  const bool fetches = source.unit && numbers * int64_t(sizeof(T)) > CACHED;
  if (!s.lanes_are_channels()) return {to, below, LANES, LANES, fetches, soon, soon_below, LANES};
  return {to, below, out.column, LANES, fetches, soon, soon_below, source.column};
}

template <class T>
void correlate_tile(const Frame<acc_t<T>>& frame, const acc_t<T>* weight, const Plane<T>& out,
                    const Plane<const T>& source, const Tile& tile, int step, const Pictures& s) {
  const int unit = frame.unit;
  rows_by_group(frame.y, tile.rows, [&](auto k, auto r, int i, int groups) {
    const auto to = outputs_of(out, source, tile, i, step, s);
    correlate_columns<T, k, r>(frame.inputs().below(i), weight, to, tile.columns * unit, groups, period_of(unit));
  });
}

template <class T>
void correlate_tile(const InPlace<T>& picture, const T* weight, const Plane<T>& out, const Plane<const T>& source,
                    const Tile& tile, const Pictures& s) {
  const Line& x = picture.x;
  const auto [first, last] = x.whole(tile.column, tile.columns);
  rows_by_group(picture.y, tile.rows, [&, first = first, last = last](auto k, auto r, int begin, int groups) {
    for (int i = begin; i < begin + groups * r; i += r) {
      const auto in = picture.inputs().below(i);
      const auto to = outputs_of(out, source, tile, i, picture.y.step(), s);
      auto edge = [&](int j) {
        const int column = tile.column + j;
        correlate<T, k, r, 1>(in.only(x.first_tap(column), x.last_tap(column)), weight, to, {j, j + 1});
      };
      for (int j = 0; j < first; ++j) edge(j);
      correlate_packs<T, k, r>(in, weight, to, {first, last});
      for (int j = last; j < tile.columns; ++j) edge(j);
    }
  });
}

// Packs of channels, to where planes have them.
template <class T>
CLONES void to_planes(const acc_t<T>* from, const Plane<T>& out, const Tile& tile, int step) {
  T* to = out.values + tile.row * out.row + tile.column;
  for (int r = 0; r < tile.rows; ++r, from += tile.columns * LANES, to += step * out.row)
    transpose_out(from, to, out.channel, tile.columns);
}

template <class T>
struct Correlation {
  using A = acc_t<T>;
  const Line &y, &x;
  const Tiles& tiles;
  const Pictures& s;
  Frame<A> frame{y, x, tiles, s.unit()};
  InPlace<A> picture{y, x, tiles, s.channels};
  std::vector<A> packs, channels;

  // For a tile and its unit's weights, [taps + 1, unit].
  void correlate(const Plane<const T>& source, const A* weight, const Plane<T>& out, const Tile& tile) {
    if constexpr (std::is_same_v<T, A>)
      if (in_place<T>(s, x)) {
        picture.find(source, tile);
        return correlate_tile(picture, weight, out, source, tile, s);
      }
    frame.fill(source, tile);
    if (s.rows)
      return correlate_rows(frame.inputs(), weight, outputs_of(out, source, tile, 0, 1, s), tile.rows, tile.columns);
    if (transposed(s)) return correlate_channels(weight, out, tile);
    const int64_t n = int64_t(y.kernel) * x.kernel + 1;
    packs.resize(s.lanes_are_channels() ? 0 : n * period_of(s.unit()) * LANES);
    correlate_tile(frame, packs.empty() ? weight : in_packs(weight, n, s.unit(), packs), out, source, tile, y.step(), s);
  }

  void correlate_channels(const A* weight, const Plane<T>& out, const Tile& tile) {
    channels.resize(int64_t(tiles.height) * tile.columns * LANES);
    const Plane<A> packed(channels.data(), tile.columns * LANES);
    const Plane<const A> nothing_soon(channels.data(), tile.columns * LANES);
    correlate_tile(frame, weight, packed, nothing_soon, {0, 0, 0, tile.rows, 0, tile.columns}, 1, s);
    to_planes(channels.data(), out, tile, y.step());
  }
};

template <class T>
void correlate_all(const T* from, const T* weight, const T* bias, T* to, const Pictures& s, bool flipped) {
  const auto line = flipped ? backward_line : forward_line;
  const Line y = line(s.y), x = line(s.x);
  const Tiles tiles(y, x, s, in_place<T>(s, x));
  const auto units = by_unit(weight, bias, s, flipped);
  const int64_t n_weights = int64_t(s.y.kernel) * s.x.kernel + 1;
  parallel(tiles.length * tiles.series, 1, [&](int64_t begin, int64_t end) {
    Correlation<T> correlation{y, x, tiles, s};
    for (int64_t i = begin; i < end; ++i) {
      const Tile tile = tiles.tile(i % tiles.series, i / tiles.series);
      if (tile.rows <= 0) continue;
      correlation.correlate({from, s, y.source, x.source, tile},
                            units.data() + (s.rows ? tile.row : tile.unit * s.unit()) * n_weights,
                            {to, s, y.out, x.out, tile}, tile);
    }
  });
}

}  // namespace

Status depthwise_conv2d(DType dtype, const void* x, const void* weight, const void* bias, void* out, const Conv2dShape& s,
                        Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    correlate_all((const T*)x, (const T*)weight, (const T*)bias, (T*)out, Pictures(s), false);
  });
  return 0;
}

Status depthwise_conv2d_bwd(DType dtype, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* scratch, const Conv2dShape& s, Stream) {
  if (grad_weight) depthwise_conv2d_weights(dtype, grad_out, x, grad_weight, grad_bias, scratch, s);
  if (!grad_x) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    correlate_all((const T*)grad_out, (const T*)weight, (const T*)nullptr, (T*)grad_x, Pictures(s), true);
  });
  return 0;
}

}  // namespace nerfkit
