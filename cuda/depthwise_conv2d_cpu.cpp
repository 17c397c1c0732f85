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
constexpr int SOON = 6;                // rows of inputs and packs of outputs that are fetched ahead
constexpr int64_t PARTS = 128;         // sums of the weight gradient: a number that does not depend on that of threads

// Along an axis, tap u of output i takes place i * stride + u * dilation, where value j of the source is at place
// j * spread + lead, and zeros everywhere else.
struct Line {
  int source, out, kernel, stride, dilation, spread, lead;

  bool rolls() const { return stride == 1 && dilation == 1; }  // tap u of output i takes what tap 0 of i + u does
  int start(int i) const { return i * stride - lead; }         // place of the first tap
  // Where a place is read of the source, or -1.
  int value_at(int place) const {
    return place >= 0 && place % spread == 0 && place / spread < source ? place / spread : -1;
  }
  // The taps of output i that meet the source, as a range; and the outputs of which all do. For spread 1.
  int first_tap(int i) const { return std::max(0, (dilation - 1 - start(i)) / dilation); }
  int last_tap(int i) const { return std::min(kernel, (source - 1 - start(i) + dilation) / dilation); }
  int first_whole() const { return (std::max(0, lead) + stride - 1) / stride; }
  int last_whole() const {
    const int room = source - 1 + lead - (kernel - 1) * dilation;
    return room < 0 ? 0 : room / stride + 1;
  }
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
  int64_t row, column, unit;  // distances
  int channels;               // of the unit

  Plane(T* array, const Pictures& s, int height, int width, const Tile& tile) {
    const auto strides = s.strides(height, width);
    const int64_t channel = tile.unit * unit_of(s);
    values = array + tile.batch * strides.batch + channel * strides.channel;
    row = strides.row, column = strides.column, unit = strides.channel * unit_of(s);
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
HD void copy_values(const T* from, acc_t<T>* to, int n) {
  if (n < LANES) {
    for (int i = 0; i < n; ++i) to[i] = acc_t<T>(from[i]);
    return;
  }
  for (int i = 0; i < n; i += LANES) {  // the last pack overlaps the one before
    const int at = std::min(i, n - LANES);
    store(to + at, load(from + at));
  }
}

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
    copy_values(from + copy.first, to + (copy.first - copy.start), copy.last - copy.first);
  else
    for (int j = copy.first; j < copy.last; ++j) to[copy.position(j)] = acc_t<T>(from[j]);
}

// Tap (u, v) of row r, pack p of some outputs takes the pack at shift + p * pack + offset[v] of rows[r + u].
template <class A>
struct Inputs {
  const A* const* rows;
  int64_t shift, pack;
  const int64_t* offset;
  int kernel_y, kernel_x;
  int first, last;  // the taps along a row that are taken

  Inputs moved(int64_t by) const { return {rows, shift + by, pack, offset, kernel_y, kernel_x, first, last}; }
  Inputs below(int n) const { return {rows + n, shift, pack, offset, kernel_y, kernel_x, first, last}; }
  Inputs only(int from, int to) const { return {rows, shift, pack, offset, kernel_y, kernel_x, from, to}; }
};

// The inputs of a tile, copied to where zeros surround them.
template <class A>
struct Frame {
  const Line &y, &x;
  int unit, phase, width;
  std::vector<A> values;
  std::vector<const A*> rows;
  std::vector<int64_t> offset;

  Frame(const Line& y, const Line& x, const Tiles& tiles, int unit) : y(y), x(x), unit(unit), offset(x.kernel) {
    const int columns = std::min(x.out, tiles.width), whole = unit == LANES ? 1 : LANES;
    phase = (columns + whole - 1) / whole * whole + (x.kernel - 1) * x.dilation / x.stride;
    width = x.stride * phase * unit;
    values.resize(int64_t(tiles.height + y.kernel - 1) * width + LANES);
    for (int r = 0; r < tiles.height + y.kernel - 1; ++r) rows.push_back(values.data() + int64_t(r) * width);
    for (int v = 0; v < x.kernel; ++v) {
      const int place = v * x.dilation;
      offset[v] = (place % x.stride * phase + place / x.stride) * unit;
    }
  }

  Inputs<A> inputs() const { return {rows.data(), 0, LANES, offset.data(), y.kernel, x.kernel, 0, x.kernel}; }

  template <class T>
  void fill(const Plane<const T>& plane, const Tile& tile) {
    const int start = x.start(tile.column);
    const int places = (tile.columns - 1) * x.stride + (x.kernel - 1) * x.dilation + 1;
    const int end = std::max(0, start + places);
    auto up = [&](int place) { return (place + x.spread - 1) / x.spread; };
    const RowCopy copy{up(std::max(0, start)), std::min(x.source, up(end)), x.spread, start, x.stride, phase};
    for (int r = 0; r < tile.rows + y.kernel - 1; ++r) {
      const int at = y.value_at(y.start(tile.row) + r * y.dilation);
      A* to = values.data() + int64_t(r) * width;
      const bool dense = copy.spread == 1 && copy.stride == 1 && at >= 0;
      std::fill(to, to + (dense ? (copy.first - start) * unit : width), A(0));
      if (dense) std::fill(to + (copy.last - start) * unit, to + width, A(0));
      if (at >= 0) copy_row(plane.values + at * plane.row, to, copy, unit, plane);
    }
  }
};

// The inputs of a tile where they are, channels last; there are zeros for the rows above and below the picture.
template <class A>
struct InPlace {
  const Line &y, &x;
  std::vector<A> zeros;
  std::vector<const A*> rows;
  std::vector<int64_t> offset;
  int64_t column = 0;

  InPlace(const Line& y, const Line& x, const Tiles& tiles, int64_t channels)
      : y(y), x(x), rows(tiles.height + y.kernel - 1), offset(x.kernel) {
    const int64_t places = int64_t(std::min(x.out, tiles.width) - 1) * x.stride + int64_t(x.kernel - 1) * x.dilation + 1;
    zeros.resize(places * channels);
    for (int v = 0; v < x.kernel; ++v) offset[v] = int64_t(v) * x.dilation * channels;
    column = x.stride * channels;
  }
  Inputs<A> inputs() const { return {rows.data(), 0, column, offset.data(), y.kernel, x.kernel, 0, x.kernel}; }

  void find(const Plane<const A>& plane, const Tile& tile) {
    for (int r = 0; r < tile.rows + y.kernel - 1; ++r) {
      const int at = y.value_at(y.start(tile.row) + r * y.dilation);
      rows[r] = at < 0 ? zeros.data() : plane.values + at * plane.row + x.start(tile.column) * plane.column;
    }
  }
};

template <int N>
using Int = std::integral_constant<int, N>;

// Calls f(K, R) for R rows at once, at most `most`; K is the kernel's height, or 0 for any with R = 1.
template <class F>
int some_rows(int kernel, int rows, int most, const F& f) {
  auto rows_of = [&](auto k) {
    if (rows >= 8 && most >= 8) return f(k, Int<8>()), 8;
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

template <class T>
struct Outputs {
  T* values;
  int64_t row, pack;  // distances
  int lanes;          // to write of each pack
  const T* soon;      // inputs of the tile that comes next, fetched while this one is summed
  int64_t soon_row, soon_pack;

  Outputs moved(int64_t by) const { return {values + by, row, pack, lanes, soon + by, soon_row, soon_pack}; }
  void fetch(int row_at, int64_t p) const {
    __builtin_prefetch(soon + row_at * soon_row + p * soon_pack);
    __builtin_prefetch(values + row_at * row + (p + SOON) * pack, 1);
  }
};

// Keeps the compiler from loading early what would push sums out of the registers.
inline void in_order() { asm volatile("" ::: "memory"); }

// P packs of R rows: enough sums that none waits for itself. weight [kernel_y * kernel_x + 1, LANES]; the last row is
// the bias.
template <class T, int K, int R, int P>
CLONES void correlate(const Inputs<acc_t<T>>& in, const acc_t<T>* weight, const Outputs<T>& out, int begin, int end) {
  using A = acc_t<T>;
  const int kernel_y = K ? K : in.kernel_y, kernel_x = in.kernel_x, first = in.first, last = in.last;
  const A* const* rows = in.rows;
  const int64_t in_pack = in.pack, *offset = in.offset;
  for (int p = begin; p + P <= end; p += P) {
    for (int i = 0; i < P; ++i)
      for (int r = 0; r < R; ++r) out.fetch(r, p + i);
    Pack<A> sum[R][P];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) sum[r][i] = load(weight + kernel_y * kernel_x * LANES);
    for (int v = first; v < last; ++v) {
      const int64_t at = in.shift + p * in_pack + offset[v];
      Pack<A> w[K ? K : 1];
#pragma GCC unroll 7
      for (int u = 0; u < K; ++u) w[u] = load(weight + (u * kernel_x + v) * LANES);
#pragma GCC unroll 14
      for (int y = 0; y < kernel_y + R - 1; ++y) {
        in_order();
#pragma GCC unroll 4
        for (int i = 0; i < P; ++i) {
          const Pack<A> pack = load(rows[y] + at + i * in_pack);
          if (K == 0) sum[0][i] += load(weight + (y * kernel_x + v) * LANES) * pack;
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r)
            if (y >= r && y - r < K) sum[r][i] += w[y - r] * pack;
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) store(out.values + r * out.row + (p + i) * out.pack, sum[r][i], P > 1 ? LANES : out.lanes);
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
      const A* const* from = in.rows + u0;
      Pack<A> sum[CHAINS][ROWS] = {};
      auto add = [&](int p, auto only) __attribute__((always_inline)) {
        Pack<A> g[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) g[r] = load(grad + int64_t(r) * grad_width + p * LANES);
#pragma GCC unroll 14
        for (int y = 0; y < ROWS + R - 1; ++y) {
          const Pack<A> pack = only(load(from[y] + in.offset[v] + p * LANES));
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

template <class A, int R>
int packs_at_once() {
  return sizeof(A) > sizeof(float) || !has_wide_registers() ? 1 : R == 1 ? 1 : 2;
}

// Channels last: packs begin .. end - 1 of R rows.
template <class T, int K, int R>
void correlate_packs(const Inputs<acc_t<T>>& in, const acc_t<T>* weight, const Outputs<T>& out, int begin, int end) {
  constexpr int P = R == 1 ? 1 : 2;
  if (packs_at_once<acc_t<T>, R>() == P && out.lanes == LANES) {
    correlate<T, K, R, P>(in, weight, out, begin, end);
    begin = end - (end - begin) % P;
  }
  if (begin < end) correlate<T, K, R, 1>(in, weight, out, begin, end);
}

// `columns` neighbours of R rows. The last packs overlap those before, if there are any.
template <class T, int K, int R>
void correlate_columns(const Inputs<acc_t<T>>& in, const acc_t<T>* weight, const Outputs<T>& out, int columns) {
  constexpr int P = R == 1 ? 1 : 2;
  const int wide = packs_at_once<acc_t<T>, R>() * LANES, whole = columns / wide * wide, rest = columns - whole;
  correlate_packs<T, K, R>(in, weight, out, 0, whole / LANES);
  if (rest > LANES && whole > 0) {
    const int at = columns - wide;
    correlate<T, K, R, P>(in.moved(at), weight, out.moved(at), 0, P);
    return;
  }
  for (int at = whole; at < columns; at += LANES) {
    const int from = std::max(0, std::min(at, columns - LANES));
    Outputs<T> to = out.moved(from);
    to.lanes = std::min(LANES, columns);
    correlate<T, K, R, 1>(in.moved(from), weight, to, 0, 1);
  }
}

// Outputs of a tile, from its row i on.
template <class T>
Outputs<T> outputs_of(const Plane<T>& out, const Plane<const T>& source, const Tile& tile, int i, const Pictures& s) {
  const int64_t row = tile.row + i, pack = s.channels_last ? 1 : LANES;
  T* to = out.values + row * out.row + tile.column * out.column;
  const T* soon = source.values + source.unit + row * source.row + tile.column * source.column;
  return {to,   out.row,    out.column * pack,   s.channels_last ? out.channels : LANES,
          soon, source.row, source.column * pack};
}

template <class F>
void row_by_row(const Line& y, const Tile& tile, const F& f) {
  for (int i = 0; i < tile.rows;)
    i += some_rows(y.rolls() ? y.kernel : 0, tile.rows - i, has_wide_registers() ? 8 : 4,
                   [&](auto k, auto r) { f(k, r, i); });
}

template <class T>
void correlate_tile(const Frame<acc_t<T>>& frame, const acc_t<T>* weight, const Plane<T>& out,
                    const Plane<const T>& source, const Tile& tile, const Pictures& s) {
  row_by_row(frame.y, tile, [&](auto k, auto r, int i) {
    const auto in = frame.inputs().below(i);
    const auto to = outputs_of(out, source, tile, i, s);
    if (s.channels_last)
      correlate_packs<T, k, r>(in, weight, to, 0, tile.columns);
    else
      correlate_columns<T, k, r>(in, weight, to, tile.columns);
  });
}

template <class T>
void correlate_tile(const InPlace<T>& in_place, const T* weight, const Plane<T>& out, const Plane<const T>& source,
                    const Tile& tile, const Pictures& s) {
  const Line& x = in_place.x;
  auto in_tile = [&](int column) { return std::max(0, std::min(tile.columns, column - tile.column)); };
  const int first = in_tile(x.first_whole()), last = std::max(first, in_tile(x.last_whole()));
  row_by_row(in_place.y, tile, [&](auto k, auto r, int i) {
    const auto in = in_place.inputs().below(i);
    const auto to = outputs_of(out, source, tile, i, s);
    auto edge = [&](int j) {
      const int column = tile.column + j;
      correlate<T, k, r, 1>(in.only(x.first_tap(column), x.last_tap(column)), weight, to, j, j + 1);
    };
    for (int j = 0; j < first; ++j) edge(j);
    correlate_packs<T, k, r>(in, weight, to, first, last);
    for (int j = last; j < tile.columns; ++j) edge(j);
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
    InPlace<acc_t<T>> in_place(y, x, tiles, s.channels);
    for (int64_t i = begin; i < end; ++i) {
      const Tile tile = tiles.tile(i / units, i % units);
      const Plane<const T> source(from, s, y.source, x.source, tile);
      const Plane<T> out(to, s, y.out, x.out, tile);
      const acc_t<T>* w = packs.data() + tile.unit * size;
      if constexpr (std::is_same_v<T, acc_t<T>>)
        if (s.channels_last && source.channels == LANES && x.spread == 1) {
          in_place.find(source, tile);
          correlate_tile(in_place, w, out, source, tile, s);
          continue;
        }
      frame.fill(source, tile);
      correlate_tile(frame, w, out, source, tile, s);
    }
  });
}

template <class A>
void correlate_weights_of_tile(const Frame<A>& in, const Frame<A>& grad, A* sums, const Tile& tile) {
  const bool last = in.unit == LANES;
  const int packs = last ? tile.columns : (tile.columns + LANES - 1) / LANES;
  const int lanes = last ? LANES : tile.columns - (packs - 1) * LANES, most = has_wide_registers() ? 8 : 4;
  for (int i = 0; i < tile.rows;)
    i += some_rows(in.y.rolls() ? in.y.kernel : 0, tile.rows - i, most, [&](auto k, auto r) {
      correlate_weights<A, k, r>(in.inputs().below(i), grad.rows[i], grad.width, sums, packs, lanes);
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
