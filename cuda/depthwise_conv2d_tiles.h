// SPDX-License-Identifier: Apache-2.0
// How depthwise_conv2d_*cpu.cpp walk over a picture. Both layouts alike: LANES neighbours of a row, or, channels last,
// LANES channels of a pixel are one pack. Channels last, a tile's inputs are read where they are; else they are copied
// into a frame with zeros around it, after which no tap needs a test.

#pragma once

#include "depthwise_conv2d.h"

#include <utility>
#include <vector>

#include "cpu.h"

namespace nerfkit {
namespace {

constexpr int DOWN = 32, ACROSS = 32;  // rows and packs of a tile of outputs
constexpr int DOWN_IN_PLACE = 8;        // rows may lie so far apart that they share a few sets of a cache
constexpr int SOON = 8;                // rows of inputs and packs of outputs that are fetched ahead

// Along an axis, tap u of output i takes place i * stride + u * dilation, where value j of the source is at place
// j * spread + lead, and zeros everywhere else.
struct Line {
  int source, out, kernel, stride, dilation, spread, lead;

  bool rolls() const { return stride == 1 && dilation == 1; }  // tap u of output i takes what tap 0 of i + u does
  int start(int i) const { return i * stride - lead; }         // place of the first tap
  // Where a place is read of the source, or -1.
  int value_at(int place) const {
    if (spread == 1) return place >= 0 && place < source ? place : -1;
    return place >= 0 && place % spread == 0 && place / spread < source ? place / spread : -1;
  }
  // The taps of output i that meet the source, as a range. For spread 1.
  int first_tap(int i) const { return std::max(0, (dilation - 1 - start(i)) / dilation); }
  int last_tap(int i) const { return std::min(kernel, (source - 1 - start(i) + dilation) / dilation); }
  // Of n outputs from `from` on, those of which all taps meet the source.
  std::pair<int, int> whole(int from, int n) const {
    const int room = source - 1 + lead - (kernel - 1) * dilation;
    const int first = (std::max(0, lead) + stride - 1) / stride, last = room < 0 ? 0 : room / stride + 1;
    const int begin = std::max(0, std::min(n, first - from));
    return {begin, std::max(begin, std::min(n, last - from))};
  }
};
inline Line forward_line(const Axis& a) {
  return {a.size, a.out_size, a.kernel, a.out_size > 1 ? a.stride : 1, a.dilation, 1, a.padding};
}
inline Line backward_line(const Axis& a) {
  return {a.out_size, a.size, a.kernel, 1, a.dilation, a.stride, a.dilation * (a.kernel - 1) - a.padding};
}
inline Line unchanged_line(const Axis& a) { return {a.out_size, a.out_size, 1, 1, 1, 1, 0}; }

// Dense rows [B, C, 1, L] as pictures [B, 1, C, L] of which every row has a kernel of its own.
struct Pictures : Conv2dShape {
  bool rows;

  explicit Pictures(const Conv2dShape& s)
      : Conv2dShape(s),
        rows(!channels_last && y.size == 1 && y.kernel == 1 && y.padding == 0 && channels <= INT32_MAX) {
    if (rows) y = {int(channels), int(channels), 1, 1, 0, 1}, channels = 1;
  }
  int64_t kernels() const { return rows ? y.size : channels; }
};

// A unit is what a pack holds channels of: one, or LANES.
inline int unit_of(const Pictures& s) { return s.channels_last ? LANES : 1; }
inline int64_t units_of(const Pictures& s) { return (s.channels + unit_of(s) - 1) / unit_of(s); }

// Outputs of one unit, in one picture.
struct Tile {
  int64_t batch, unit;
  int row, rows, column, columns;
};

// Whether the inputs are read where they are. Half types are not: each is converted once, on its way into a frame.
template <class T>
bool in_place(const Pictures& s) {
  return s.channels_last && std::is_same_v<T, acc_t<T>>;
}

// Tiles that share kernels make a series.
struct Tiles {
  const Line &y, &x;
  int height, width;
  int64_t down, across, series, length;
  bool rows;

  Tiles(const Line& y, const Line& x, const Pictures& s, bool in_place)
      : y(y), x(x), height(!y.rolls() ? 1 : in_place ? DOWN_IN_PLACE : DOWN), width(ACROSS * LANES / unit_of(s)), rows(s.rows) {
    down = (y.out + height - 1) / height, across = (x.out + width - 1) / width;
    series = rows ? down : units_of(s), length = s.batch * across * (rows ? 1 : down);
  }
  Tile tile(int64_t which, int64_t index) const {
    const int64_t picture = index / across / (rows ? 1 : down), below = rows ? which : index / across % down;
    const int row = int(below) * height, column = int(index % across) * width;
    return {picture, rows ? 0 : which, row, std::min(height, y.out - row), column, std::min(width, x.out - column)};
  }
};

// Where a tile's unit begins in an array of pictures.
template <class T>
struct Plane {
  T* values;
  int64_t row, column, unit;  // distances; the last to what comes next
  int channels;  // of the unit

  Plane(T* array, const Pictures& s, int height, int width, const Tile& tile) {
    const auto strides = s.strides(height, width);
    const int64_t channel = tile.unit * unit_of(s);
    values = array + tile.batch * strides.batch + channel * strides.channel;
    row = strides.row, column = strides.column, unit = s.rows ? DOWN * row : strides.channel * unit_of(s);
    channels = int(std::min<int64_t>(unit_of(s), s.channels - channel));
  }
};

// The values first .. last - 1 of a row, value j to place j * spread - start. Places a stride apart become neighbours.
struct RowCopy {
  int first, last, spread, start, stride;
  int64_t phase;

  HD int64_t position(int j) const {
    const int place = j * spread - start;
    return stride == 1 ? place : place % stride * phase + place / stride;
  }
};

template <class T>
HD void copy_values(const T* from, acc_t<T>* to, int n, int64_t ahead) {
  if (n < LANES) {
    for (int i = 0; i < n; ++i) to[i] = acc_t<T>(from[i]);
    return;
  }
  for (int i = 0; i + LANES <= n; i += LANES) {
    __builtin_prefetch(from + ahead + i);
    store(to + i, load(from + i));
  }
  if (n % LANES) store(to + n - LANES, load(from + n - LANES));  // overlaps the one before
}

template <class T>
HD void copy_row(const T* from, acc_t<T>* to, const RowCopy& copy, int unit, const Plane<const T>& plane) {
  const int64_t column = plane.column, ahead = SOON * plane.row;
  if (unit == 1 && copy.spread == 1 && copy.stride == 1)
    return copy_values(from + copy.first, to + (copy.first - copy.start), copy.last - copy.first, ahead);
  for (int64_t j = copy.first * column; j < copy.last * column; j += std::max<int64_t>(column, 64 / sizeof(T)))
    __builtin_prefetch(from + ahead + j);
  if (unit == LANES && plane.channels == LANES && copy.spread == 1 && copy.stride == 1)
    for (int j = copy.first; j < copy.last; ++j) store(to + int64_t(j - copy.start) * LANES, load(from + j * column));
  else if (unit == LANES)
    for (int j = copy.first; j < copy.last; ++j)
      store(to + copy.position(j) * LANES, load(from + j * column, plane.channels));
  else
    for (int j = copy.first; j < copy.last; ++j) to[copy.position(j)] = acc_t<T>(from[j]);
}

// Rows of places from `row` on, rows of zeros where the source has none.
template <class T>
CLONES void copy_rows(const Plane<const T>& plane, const Line& y, int row, int rows, acc_t<T>* to, int64_t width,
                      const RowCopy& copy, int unit) {
  for (int r = 0; r < rows; ++r, to += width) {
    const int at = y.value_at(y.start(row) + r * y.dilation);
    if (at < 0)
      for (int64_t i = 0; i < width; i += LANES) store(to + i, Pack<acc_t<T>>{});
    else
      copy_row(plane.values + at * plane.row, to, copy, unit, plane);
  }
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
  int unit;
  int64_t phase, width;
  std::vector<A> values;
  A* first;  // of the places
  std::vector<const A*> rows;
  std::vector<int64_t> offset;
  int64_t size;
  int zeros = -1, copied = 0;  // how many places of a row are zeros before those that are copied

  Frame(const Line& y, const Line& x, const Tiles& tiles, int unit) : y(y), x(x), unit(unit), offset(x.kernel) {
    const int columns = std::min(x.out, tiles.width), whole = unit == LANES ? 1 : LANES;
    phase = (columns + whole - 1) / whole * whole + (x.kernel - 1) * x.dilation / x.stride;
    width = (x.stride * phase * unit + LANES - 1) / LANES * LANES;
    size = (tiles.height + y.kernel - 1) * width + 3 * LANES;
    values.reserve(size);
    // What is copied begins where a line of the cache does, as do fewer loads and stores then meet two lines.
    first = values.data() + (-uintptr_t(values.data()) / sizeof(A) - (unit == 1 ? x.lead : 0)) % LANES;
    for (int r = 0; r < tiles.height + y.kernel - 1; ++r) rows.push_back(first + r * width);
    for (int v = 0; v < x.kernel; ++v) {
      const int place = v * x.dilation;
      offset[v] = (place % x.stride * phase + place / x.stride) * unit;
    }
  }

  Inputs<A> inputs() const { return {rows.data(), 0, LANES, offset.data(), y.kernel, x.kernel, 0, x.kernel}; }

  // Zeros everywhere, unless what is copied covers all that was copied before.
  void clear(int before, int n) {
    if (before != zeros || n != copied) values.assign(size, A(0));
    zeros = before, copied = n;
  }

  template <class T>
  void fill(const Plane<const T>& plane, const Tile& tile) {
    const int start = x.start(tile.column);
    const int places = (tile.columns - 1) * x.stride + (x.kernel - 1) * x.dilation + 1;
    const int end = std::max(0, start + places);
    auto up = [&](int place) { return (place + x.spread - 1) / x.spread; };
    const RowCopy copy{up(std::max(0, start)), std::min(x.source, up(end)), x.spread, start, x.stride, phase};
    clear(copy.first * x.spread - start, copy.last - copy.first);
    copy_rows(plane, y, tile.row, tile.rows + y.kernel - 1, first, width, copy, unit);
  }
};

// The inputs of a tile where they are, channels last; there are zeros for the rows above and below the picture.
template <class A>
struct InPlace {
  const Line &y, &x;
  const Tiles& tiles;
  std::vector<A> zeros;
  std::vector<const A*> rows;
  std::vector<int64_t> offset;
  int64_t column;

  InPlace(const Line& y, const Line& x, const Tiles& tiles, int64_t channels)
      : y(y), x(x), tiles(tiles), rows(tiles.height + y.kernel - 1), offset(x.kernel) {
    for (int v = 0; v < x.kernel; ++v) offset[v] = int64_t(v) * x.dilation * channels;
    column = x.stride * channels;
  }
  Inputs<A> inputs() const { return {rows.data(), 0, column, offset.data(), y.kernel, x.kernel, 0, x.kernel}; }

  void find(const Plane<const A>& plane, const Tile& tile) {
    for (int r = 0; r < tile.rows + y.kernel - 1; ++r) {
      const int at = y.value_at(y.start(tile.row) + r * y.dilation);
      if (at < 0) zeros.resize(std::min(x.out, tiles.width) * column + offset[x.kernel - 1]);
      rows[r] = at < 0 ? zeros.data() : plane.values + at * plane.row + x.start(tile.column) * plane.column;
    }
  }
};

template <int N>
using Int = std::integral_constant<int, N>;

// Calls f(K, R, groups) for groups of R rows, as many as registers hold, and returns how many rows these are; K is the
// kernel's height, or 0 for any with R = 1. EIGHT_OF_5: also for kernels of 5.
template <bool EIGHT_OF_5, class F>
int some_groups(int kernel, int rows, const F& f) {
  auto groups_of = [&](auto k) {
    if constexpr (EIGHT_OF_5 || k != 5)
      if (rows >= 8 && has_wide_registers()) return f(k, Int<8>(), rows / 8), rows / 8 * 8;
    if (rows >= 4) return f(k, Int<4>(), rows / 4), rows / 4 * 4;
    return f(Int<0>(), Int<1>(), rows), rows;
  };
  switch (kernel) {
    case 1: return groups_of(Int<1>());
    case 3: return groups_of(Int<3>());
    case 5: return groups_of(Int<5>());
    case 7: return groups_of(Int<7>());
    default: return f(Int<0>(), Int<1>(), rows), rows;
  }
}

// Calls f(K, R, i, groups) for groups of R rows from row i on.
template <bool EIGHT_OF_5, class F>
void rows_by_group(const Line& y, const Tile& tile, const F& f) {
  for (int i = 0; i < tile.rows;)
    i += some_groups<EIGHT_OF_5>(y.rolls() ? y.kernel : 0, tile.rows - i,
                                 [&](auto k, auto r, int groups) { f(k, r, i, groups); });
}

// Calls f(K, R, i) for R rows from row i on.
template <bool EIGHT_OF_5, class F>
void row_by_row(const Line& y, const Tile& tile, const F& f) {
  rows_by_group<EIGHT_OF_5>(y, tile, [&](auto k, auto r, int i, int groups) {
    for (int group = 0; group < groups; ++group) f(k, r, i + group * r);
  });
}

// Keeps the compiler from loading early what would push sums out of the registers.
inline void in_order() { asm volatile("" ::: "memory"); }

}  // namespace

void depthwise_conv2d_weights(DType, const void* grad_out, const void* x, void* grad_weight, void* grad_bias,
                              void* scratch, const Conv2dShape&);

}  // namespace nerfkit
