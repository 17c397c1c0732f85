// SPDX-License-Identifier: Apache-2.0
// Both layouts alike: LANES neighbours of a row, or, channels last, LANES channels of a pixel are one pack. A tile of
// the input is copied into a frame with zeros around it, after which no tap needs a test; several rows of outputs are
// summed together, so that a pack that was loaded serves all of them. The gradient of x is the same with a flipped
// kernel over the output's gradient, spread by the stride.

#include "depthwise_conv2d.h"

#include <vector>

#include "cpu.h"

namespace nerfkit {
namespace {

constexpr int DOWN = 32, ACROSS = 32;  // rows and packs of a tile of outputs
constexpr int SOON = 8;                // rows of inputs and packs of outputs that are fetched ahead
constexpr int64_t PARTS = 128;         // sums of the weight gradient: a number that does not depend on that of threads

// Along an axis, tap u of output i takes place i * stride + u * dilation, where value j of the source is at place
// j * spread + lead, and zeros everywhere else.
struct Line {
  int source, out, kernel, stride, dilation, spread, lead;

  bool rolls() const { return stride == 1 && dilation == 1; }  // tap u of output i takes what tap 0 of i + u does
};
Line forward_line(const Axis& a) {
  return {a.size, a.out_size, a.kernel, a.out_size > 1 ? a.stride : 1, a.dilation, 1, a.padding};
}
Line backward_line(const Axis& a) {
  return {a.out_size, a.size, a.kernel, 1, a.dilation, a.stride, a.dilation * (a.kernel - 1) - a.padding};
}
Line unchanged_line(const Axis& a) { return {a.out_size, a.out_size, 1, 1, 1, 1, 0}; }

// Dense rows [B, C, 1, L] as one picture with B rows, so that several are summed together.
struct Pictures : Conv2dShape {
  bool rows;

  explicit Pictures(const Conv2dShape& s)
      : Conv2dShape(s),
        rows(!channels_last && y.size == 1 && y.kernel == 1 && y.padding == 0 && batch <= INT32_MAX) {
    if (rows) y = {int(batch), int(batch), 1, 1, 0, 1}, batch = 1;
  }
  Strides strides(int64_t height, int64_t width) const {
    return rows ? Strides{0, width, channels * width, 1} : Conv2dShape::strides(height, width);
  }
};

// A unit is what a pack holds channels of: one, or LANES.
int unit_of(const Pictures& s) { return s.channels_last ? LANES : 1; }
int64_t units_of(const Pictures& s) { return (s.channels + unit_of(s) - 1) / unit_of(s); }

// Outputs of one unit, in one picture.
struct Tile {
  int64_t batch, unit;
  int row, rows, column, columns;
};

struct Tiles {
  const Line &y, &x;
  int height, width;

  Tiles(const Line& y, const Line& x, const Pictures& s)
      : y(y), x(x), height(y.rolls() ? DOWN : 1), width(ACROSS * LANES / unit_of(s)) {}

  int64_t down() const { return (y.out + height - 1) / height; }
  int64_t across() const { return (x.out + width - 1) / width; }
  Tile tile(int64_t index, int64_t unit) const {
    const int row = int(index / across() % down()) * height, column = int(index % across()) * width;
    const int rows = std::min(height, y.out - row), columns = std::min(width, x.out - column);
    return {index / across() / down(), unit, row, rows, column, columns};
  }
};

// Where a tile's unit begins in an array of pictures.
template <class T>
struct Plane {
  T* values;
  int64_t row, column;  // distances
  int channels;         // of the unit

  Plane(T* array, const Pictures& s, int height, int width, const Tile& tile) {
    const auto strides = s.strides(height, width);
    const int64_t channel = tile.unit * unit_of(s);
    values = array + tile.batch * strides.batch + channel * strides.channel;
    row = strides.row, column = strides.column;
    channels = int(std::min<int64_t>(unit_of(s), s.channels - channel));
  }
};

// The values first .. last - 1 of a row, value j to place j * spread - start. Places a stride apart become neighbours.
struct RowCopy {
  int first, last, spread, start, stride, phase;

  HD int position(int j) const {
    const int place = j * spread - start;
    return stride == 1 ? place : place % stride * phase + place / stride;
  }
};

template <class T>
CLONES void copy_row(const T* from, acc_t<T>* to, const RowCopy& copy, int unit, const Plane<const T>& plane) {
  const int64_t column = plane.column, ahead = SOON * plane.row;
  for (int64_t j = copy.first * column; j < copy.last * column; j += std::max<int64_t>(column, 64 / sizeof(T)))
    __builtin_prefetch(from + ahead + j);
  if (unit == LANES && plane.channels == LANES && copy.spread == 1 && copy.stride == 1)
    for (int j = copy.first; j < copy.last; ++j) store(to + int64_t(j - copy.start) * LANES, load(from + j * column));
  else if (unit == LANES)
    for (int j = copy.first; j < copy.last; ++j)
      store(to + int64_t(copy.position(j)) * LANES, load(from + j * column, plane.channels));
  else if (copy.spread == 1 && copy.stride == 1)
    for (int j = copy.first; j < copy.last; ++j) to[j - copy.start] = acc_t<T>(from[j]);
  else
    for (int j = copy.first; j < copy.last; ++j) to[copy.position(j)] = acc_t<T>(from[j]);
}

// The inputs of a tile. Tap (u, v) of row r, pack p of its outputs takes the pack at p * LANES + offset[v] of row
// r + u.
template <class A>
struct Frame {
  const Line &y, &x;
  int unit, phase, width;
  std::vector<A> values;
  std::vector<int> offset;

  Frame(const Line& y, const Line& x, const Tiles& tiles, int unit) : y(y), x(x), unit(unit), offset(x.kernel) {
    const int columns = std::min(x.out, tiles.width), whole = unit == LANES ? 1 : LANES;
    phase = (columns + whole - 1) / whole * whole + (x.kernel - 1) * x.dilation / x.stride;
    width = x.stride * phase * unit;
    values.resize(int64_t(tiles.height + y.kernel - 1) * width + LANES);
    for (int v = 0; v < x.kernel; ++v) {
      const int place = v * x.dilation;
      offset[v] = (place % x.stride * phase + place / x.stride) * unit;
    }
  }

  template <class T>
  void fill(const Plane<const T>& plane, const Tile& tile) {
    const int start = tile.column * x.stride - x.lead;
    const int places = (tile.columns - 1) * x.stride + (x.kernel - 1) * x.dilation + 1;
    const int end = std::max(0, start + places);
    auto up = [&](int place) { return (place + x.spread - 1) / x.spread; };
    const RowCopy copy{up(std::max(0, start)), std::min(x.source, up(end)), x.spread, start, x.stride, phase};
    for (int r = 0; r < tile.rows + y.kernel - 1; ++r) {
      const int place = tile.row * y.stride + r * y.dilation - y.lead;
      const bool inside = place >= 0 && place % y.spread == 0 && place / y.spread < y.source;
      A* to = values.data() + int64_t(r) * width;
      if (!inside || (copy.last - copy.first) * unit < width) std::fill(to, to + width, A(0));
      if (inside) copy_row(plane.values + place / y.spread * plane.row, to, copy, unit, plane);
    }
  }
};

template <int N>
using Int = std::integral_constant<int, N>;

// Calls f(K, R) for R rows at once, as many as registers hold; K is the kernel's height, or 0 for any with R = 1.
template <class F>
int some_rows(int kernel, int rows, const F& f) {
  auto rows_of = [&](auto k) {
    if (rows >= 8 && has_wide_registers()) return f(k, Int<8>()), 8;
    if (rows >= 4) return f(k, Int<4>()), 4;
    return f(Int<0>(), Int<1>()), 1;
  };
  switch (kernel) {
    case 1: return rows_of(Int<1>());
    case 3: return rows_of(Int<3>());
    case 5: return rows_of(Int<5>());
    case 7: return rows_of(Int<7>());
    default: return f(Int<0>(), Int<1>()), 1;
  }
}

template <class A>
struct Inputs {  // rows of a frame
  const A* values;
  int width, kernel_y, kernel_x;
  const int* offset;
};

template <class T>
struct Outputs {
  T* values;
  int64_t row, pack;  // distances
  int packs, lanes;   // to write; so many lanes of each
};

// weight [kernel_y * kernel_x + 1, LANES]; the last row is the bias.
template <class T, int K, int R>
CLONES void correlate(const Inputs<acc_t<T>>& in, const acc_t<T>* weight, const Outputs<T>& out) {
  using A = acc_t<T>;
  const int kernel_y = K ? K : in.kernel_y, kernel_x = in.kernel_x;
  for (int p = 0; p < out.packs; ++p) {
    for (int r = 0; r < R; ++r) __builtin_prefetch(out.values + r * out.row + (p + SOON) * out.pack, 1);
    Pack<A> sum[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = load(weight + kernel_y * kernel_x * LANES);
    for (int v = 0; v < kernel_x; ++v) {
      const A* from = in.values + p * LANES + in.offset[v];
      const A* w = weight + v * LANES;
#pragma GCC unroll 14
      for (int y = 0; y < kernel_y + R - 1; ++y) {
        const Pack<A> pack = load(from + int64_t(y) * in.width);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
          if (y >= r && y - r < kernel_y) sum[r] += load(w + (y - r) * kernel_x * LANES) * pack;
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store(out.values + r * out.row + p * out.pack, sum[r], out.lanes);
  }
}

// Adds to sums [kernel_y * kernel_x + 1, LANES] for R rows of grad; the last row is the bias. Of the last pack count
// only the first `lanes`: what lies beyond may be infinite.
template <class A, int K, int R>
CLONES void correlate_weights(const Inputs<A>& in, const A* grad, int grad_width, A* sums, int packs, int lanes) {
  constexpr int ROWS = K ? K : 1;
  constexpr int CHAINS = R < 4 ? 1 : K == 1 ? 4 : K == 3 ? 3 : K == 5 ? 2 : 1;  // sums that do not wait for another
  const Pack<A> lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (int u0 = 0; u0 < in.kernel_y; u0 += ROWS)
    for (int v = 0; v < in.kernel_x; ++v) {
      const A* from = in.values + int64_t(u0) * in.width + in.offset[v];
      Pack<A> sum[CHAINS][ROWS] = {};
      auto add = [&](int p, auto only) __attribute__((always_inline)) {
        Pack<A> g[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) g[r] = load(grad + int64_t(r) * grad_width + p * LANES);
#pragma GCC unroll 14
        for (int y = 0; y < ROWS + R - 1; ++y) {
          const Pack<A> pack = only(load(from + int64_t(y) * in.width + p * LANES));
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r)
            if (y >= r && y - r < ROWS) sum[r % CHAINS][y - r] += g[r] * pack;
        }
      };
      for (int p = 0; p < packs - 1; ++p) add(p, [](Pack<A> x) __attribute__((always_inline)) { return x; });
      add(packs - 1, [&](Pack<A> x) __attribute__((always_inline)) { return lane < A(lanes) ? x : Pack<A>{}; });
      for (int u = 0; u < ROWS; ++u) {
        A* to = sums + ((u0 + u) * in.kernel_x + v) * LANES;
        for (int chain = 1; chain < CHAINS; ++chain) sum[0][u] += sum[chain][u];
        store(to, load(to) + sum[0][u]);
      }
    }
  Pack<A> bias = load(sums + in.kernel_y * in.kernel_x * LANES);
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < packs; ++p) bias += load(grad + int64_t(r) * grad_width + p * LANES);
  store(sums + in.kernel_y * in.kernel_x * LANES, bias);
}

// weight and bias as packs [units, taps + 1, LANES]; bias may be null, for zero.
template <class T>
std::vector<acc_t<T>> in_packs(const T* weight, const T* bias, const Pictures& s, bool flipped) {
  const int64_t n_taps = int64_t(s.y.kernel) * s.x.kernel;
  std::vector<acc_t<T>> packs(units_of(s) * (n_taps + 1) * LANES);
  for (int64_t unit = 0; unit < units_of(s); ++unit)
    for (int lane = 0; lane < LANES; ++lane) {
      const int64_t c = s.channels_last ? unit * LANES + lane : unit;
      if (c >= s.channels) continue;
      acc_t<T>* to = packs.data() + unit * (n_taps + 1) * LANES + lane;
      const T* from = weight + c * n_taps;
      for (int64_t k = 0; k < n_taps; ++k) to[k * LANES] = acc_t<T>(from[flipped ? n_taps - 1 - k : k]);
      to[n_taps * LANES] = bias ? acc_t<T>(bias[c]) : 0;
    }
  return packs;
}

template <class T>
void correlate_tile(const Frame<acc_t<T>>& frame, const acc_t<T>* weight, const Plane<T>& out, const Tile& tile) {
  const bool last = frame.unit == LANES;
  const int packs = last ? tile.columns : tile.columns / LANES, lanes = last ? out.channels : LANES;
  for (int i = 0; i < tile.rows;)
    i += some_rows(frame.y.rolls() ? frame.y.kernel : 0, tile.rows - i, [&](auto k, auto r) {
      const Inputs<acc_t<T>> in{frame.values.data() + int64_t(i) * frame.width, frame.width, frame.y.kernel,
                                frame.x.kernel, frame.offset.data()};
      T* to = out.values + (tile.row + i) * out.row + tile.column * out.column;
      correlate<T, k, r>(in, weight, {to, out.row, last ? out.column : LANES, packs, lanes});
      if (last || tile.columns % LANES == 0) return;
      // The last pack overlaps the one before, if there is one.
      const int at = std::max(0, tile.columns - LANES);
      const Inputs<acc_t<T>> rest{in.values + at, in.width, in.kernel_y, in.kernel_x, in.offset};
      correlate<T, k, r>(rest, weight, {to + at, out.row, LANES, 1, std::min(LANES, tile.columns)});
    });
}

template <class T>
void correlate_all(const T* from, const T* weight, const T* bias, T* to, const Pictures& s, bool flipped) {
  const auto line = flipped ? backward_line : forward_line;
  const Line y = line(s.y), x = line(s.x);
  const Tiles tiles(y, x, s);
  const auto packs = in_packs(weight, bias, s, flipped);
  const int64_t units = units_of(s), size = packs.size() / std::max<int64_t>(1, units);
  parallel(s.batch * tiles.down() * tiles.across() * units, 1, [&](int64_t begin, int64_t end) {
    Frame<acc_t<T>> frame(y, x, tiles, unit_of(s));
    for (int64_t i = begin; i < end; ++i) {
      const Tile tile = tiles.tile(i / units, i % units);
      frame.fill(Plane<const T>(from, s, y.source, x.source, tile), tile);
      correlate_tile(frame, packs.data() + tile.unit * size, Plane<T>(to, s, y.out, x.out, tile), tile);
    }
  });
}

template <class A>
void correlate_weights_of_tile(const Frame<A>& in, const Frame<A>& grad, A* sums, const Tile& tile) {
  const bool last = in.unit == LANES;
  const int packs = last ? tile.columns : (tile.columns + LANES - 1) / LANES;
  const int lanes = last ? LANES : tile.columns - (packs - 1) * LANES;
  for (int i = 0; i < tile.rows;)
    i += some_rows(in.y.rolls() ? in.y.kernel : 0, tile.rows - i, [&](auto k, auto r) {
      correlate_weights<A, k, r>({in.values.data() + int64_t(i) * in.width, in.width, in.y.kernel, in.x.kernel,
                                  in.offset.data()},
                                 grad.values.data() + int64_t(i) * grad.width, grad.width, sums, packs, lanes);
    });
}

int64_t parts_of(const Tiles& tiles, const Pictures& s) {
  return std::min(PARTS, s.batch * tiles.down() * tiles.across());
}

// Sums [taps + 1, LANES] of a unit to those of its channels, [C, taps + 1].
template <class A>
void by_channel(const std::vector<A>& sums, A* to, int64_t unit, const Pictures& s) {
  const int64_t rows = sums.size() / LANES;
  for (int64_t k = 0; k < rows; ++k)
    for (int lane = 0; lane < LANES; ++lane) {
      const int64_t c = s.channels_last ? unit * LANES + lane : unit;
      if (c >= s.channels) continue;
      if (s.channels_last || lane == 0) to[c * rows + k] = 0;
      to[c * rows + k] += sums[k * LANES + lane];
    }
}

template <class T>
void to_weight(const T* grad_out, const T* from, T* grad_weight, T* grad_bias, acc_t<T>* scratch, const Pictures& s) {
  using A = acc_t<T>;
  const Line y = forward_line(s.y), x = forward_line(s.x), grad_y = unchanged_line(s.y), grad_x = unchanged_line(s.x);
  const Tiles tiles(y, x, s);
  const int64_t parts = parts_of(tiles, s), units = units_of(s), rows = int64_t(s.y.kernel) * s.x.kernel + 1;
  const int64_t n_tiles = s.batch * tiles.down() * tiles.across();
  parallel(parts * units, 1, [&](int64_t begin, int64_t end) {
    Frame<A> in(y, x, tiles, unit_of(s)), grad(grad_y, grad_x, tiles, unit_of(s));
    std::vector<A> sums(rows * LANES);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t part = i / units, unit = i % units;
      std::fill(sums.begin(), sums.end(), A(0));
      for (int64_t index = n_tiles * part / parts; index < n_tiles * (part + 1) / parts; ++index) {
        const Tile tile = tiles.tile(index, unit);
        in.fill(Plane<const T>(from, s, y.source, x.source, tile), tile);
        grad.fill(Plane<const T>(grad_out, s, y.out, x.out, tile), tile);
        correlate_weights_of_tile(in, grad, sums.data(), tile);
      }
      by_channel(sums, scratch + part * s.channels * rows, unit, s);
    }
  });
  for (int64_t c = 0; c < s.channels; ++c)
    for (int64_t k = 0; k < rows; ++k) {
      A sum = 0;
      for (int64_t part = 0; part < parts; ++part) sum += scratch[(part * s.channels + c) * rows + k];
      (k + 1 < rows ? grad_weight[c * (rows - 1) + k] : grad_bias[c]) = T(sum);
    }
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
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const T* grad = (const T*)grad_out;
    if (grad_weight) to_weight(grad, (const T*)x, (T*)grad_weight, (T*)grad_bias, (acc_t<T>*)scratch, Pictures(s));
    if (grad_x) correlate_all(grad, (const T*)weight, (const T*)nullptr, (T*)grad_x, Pictures(s), true);
  });
  return 0;
}

int64_t conv2d_scratch(DType, const Conv2dShape& shape) {
  const Pictures s(shape);
  const Line y = forward_line(s.y), x = forward_line(s.x);
  return parts_of(Tiles(y, x, s), s) * s.channels * (int64_t(s.y.kernel) * s.x.kernel + 1);
}

}  // namespace nerfkit
