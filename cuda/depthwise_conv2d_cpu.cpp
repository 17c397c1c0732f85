// SPDX-License-Identifier: Apache-2.0
// The gradient of x is the same as the outputs, with a flipped kernel over the output's gradient, spread by the stride.

#include "depthwise_conv2d_sums.h"

namespace nerfkit {
namespace {

// Bytes of a picture and its outputs that a processor's last cache keeps. Below, fetching ahead costs more than it saves.
constexpr int64_t CACHED = 24 << 20;

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

template <class T>
void correlate_row(const InPlace<T>& picture, const T* weight, const Plane<T>& out, const Plane<const T>& source,
                   const Tile& tile, const Pictures& s) {
  const Line& x = picture.x;
  const auto [first, last] = x.whole(0, tile.columns);
  const auto in = picture.inputs();
  const auto to = outputs_of(out, source, tile, 0, 1, s);
  auto edge = [&](int j) {
    correlate_pixels<T, 1>(in.only(x.first_tap(j), x.last_tap(j)), weight, to, {j, j + 1}, s.channels);
  };
  for (int j = 0; j < first; ++j) edge(j);
  correlate_stretch(in, weight, to, {first, last}, s.channels);
  for (int j = last; j < tile.columns; ++j) edge(j);
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
    if constexpr (std::is_same_v<T, A>) {
      const bool whole_rows = by_row<T>(s, x);
      if (whole_rows || in_place<T>(s, x)) {
        picture.find(source, tile);
        return whole_rows ? correlate_row(picture, weight, out, source, tile, s)
                          : correlate_tile(picture, weight, out, source, tile, s);
      }
    }
    frame.fill(source, tile);
    if (s.rows)
      return correlate_rows(frame.inputs(), weight, outputs_of(out, source, tile, 0, 1, s), tile.rows, tile.columns);
    if (transposed(s)) return correlate_channels(weight, out, tile);
    const int64_t n = int64_t(y.kernel) * x.kernel + 1;
    packs.resize(s.lanes_are_channels() ? 0 : n * period_of(s.unit()) * LANES);
    const A* w = packs.empty() ? weight : in_packs(weight, n, s.unit(), packs);
    correlate_tile(frame, w, out, source, tile, y.step(), s);
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
  const Tiles tiles = by_row<T>(s, x) ? Tiles(y, x, s.batch) : Tiles(y, x, s, in_place<T>(s, x));
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
