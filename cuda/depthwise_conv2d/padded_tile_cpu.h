// SPDX-License-Identifier: Apache-2.0
// The inputs of a tile: channels last, they are read where they are; else they are copied into a padded with zeros
// around it, after which no tap needs a test.

#pragma once

#include "common/transpose_cpu.h"
#include "depthwise_conv2d/tiles_cpu.h"

namespace nerfkit {
namespace {

// The values first .. last - 1 of a row, value j to position j - start. Places a stride apart become neighbours.
struct RowCopy {
  int first, last, start, stride;
  int64_t phase;

  HD int64_t position(int j) const {
    const int position = j - start;
    return stride == 1 ? position : position % stride * phase + position / stride;
  }
};

template <class T>
HD void copy_values(const T* from, acc_t<T>* to, int64_t n, int64_t ahead) {
  if (n < LANES) {
    for (int i = 0; i < n; ++i) to[i] = acc_t<T>(from[i]);
    return;
  }
  for (int64_t i = 0; i + LANES <= n; i += LANES) {
    __builtin_prefetch(from + ahead + i);
    store(to + i, load(from + i));
  }
  if (n % LANES) store(to + n - LANES, load(from + n - LANES));  // overlaps the one before
}

// One of each S values to each of S arrays.
template <int S, class T>
HD void deinterleave(const T* __restrict from, acc_t<T>* __restrict to, const RowCopy& copy) {
  const int n = copy.last - copy.first;
  int64_t at[S];
  for (int r = 0; r < S; ++r) at[r] = copy.position(copy.first + r);
  from += copy.first;
  for (int i = 0; i < n / S; ++i)
#pragma GCC unroll 4
    for (int r = 0; r < S; ++r) to[at[r] + i] = acc_t<T>(from[i * S + r]);
  for (int r = 0; r < n % S; ++r) to[at[r] + n / S] = acc_t<T>(from[n / S * S + r]);
}

template <class T>
HD void copy_row(const T* from, acc_t<T>* to, const RowCopy& copy, int unit, const ChannelView<const T>& plane) {
  const int64_t column = plane.column, ahead = PREFETCH_DISTANCE * plane.row;
  if (unit == LANES && column == 1)
    return transpose_to_packs(from + copy.first, plane.channel, to + copy.position(copy.first) * LANES, LANES,
                              copy.last - copy.first);
  if (column == unit && copy.stride == 1)
    return copy_values(from + copy.first * column, to + int64_t(copy.first - copy.start) * unit,
                       int64_t(copy.last - copy.first) * unit, ahead);
  for (int64_t j = copy.first * column; j < copy.last * column; j += std::max<int64_t>(column, 64 / sizeof(T)))
    __builtin_prefetch(from + ahead + j);
  if (unit == 1 && copy.stride == 2)
    deinterleave<2>(from, to, copy);
  else if (unit == 1 && copy.stride == 3)
    deinterleave<3>(from, to, copy);
  else if (unit == 1 && copy.stride == 4)
    deinterleave<4>(from, to, copy);
  else if (unit == LANES)
    for (int j = copy.first; j < copy.last; ++j) store(to + copy.position(j) * LANES, load(from + j * column));
  else
    for (int first = copy.first; first < std::min(copy.last, copy.first + copy.stride); ++first) {
      acc_t<T>* next = to + copy.position(first) * unit;
      for (int j = first; j < copy.last; j += copy.stride, next += unit)
        for (int c = 0; c < unit; ++c) next[c] = acc_t<T>(from[j * column + c]);
    }
}

// `rows` rows of positions `step` apart from `position` on, rows of zeros where the source has none.
template <class T>
void copy_rows(const ChannelView<const T>& plane, const AxisGeometry& y, int position, int step, int rows, acc_t<T>* to,
               int64_t width, const RowCopy& copy, int unit) {
  for (int r = 0; r < rows; ++r, to += width) {
    const int at = y.value_at(position + r * step);
    if (at < 0)
      for (int64_t i = 0; i < width; i += LANES) store(to + i, Pack<acc_t<T>>{});
    else if (copy.first < copy.last)
      copy_row(plane.values + at * plane.row, to, copy, unit, plane);
  }
}

// Of each tap by itself the positions that outputs column .. column + columns - 1 take; `phase` positions from tap to
// tap.
template <class T>
void gather_row(const T* from, acc_t<T>* to, const AxisGeometry& x, int column, int columns, int64_t phase, int unit,
                const ChannelView<const T>& plane) {
  for (int v = 0; v < x.kernel; ++v)
    for (int j = 0; j < columns; ++j) {
      const int at = x.value_at(x.start(column + j) + v * x.dilation);
      acc_t<T>* position = to + (v * phase + j) * unit;
      for (int c = 0; c < unit; ++c) position[c] = at < 0 ? 0 : acc_t<T>(from[at * plane.column + c * plane.channel]);
    }
}

// Tap (u, v) of row r, pack p of some outputs takes the pack at shift + p * pack + offset[v] of rows[r * step + u].
template <class A>
struct Inputs {
  const A* const* rows;
  int step;
  int64_t shift, pack;
  const int64_t* offset;
  int kernel_y, kernel_x;
  int first, last;  // the taps along a row that are taken

  // Every period'th pack, from one on.
  Inputs every(int period, int from) const {
    return {rows, step, shift + from * LANES, pack * period, offset, kernel_y, kernel_x, first, last};
  }
  HD Inputs moved(int64_t by) const { return {rows, step, shift + by, pack, offset, kernel_y, kernel_x, first, last}; }
  HD Inputs below(int n) const { return {rows + n * step, step, shift, pack, offset, kernel_y, kernel_x, first, last}; }
  Inputs only(int from, int to) const { return {rows, step, shift, pack, offset, kernel_y, kernel_x, from, to}; }
};

// Rows that each output has pointers to: its own, or the first of those it shares with the outputs below.
inline int step_of(const AxisGeometry& y) { return y.shares_rows() ? 1 : y.kernel; }
inline int pointers_of(const AxisGeometry& y, int rows) {
  return y.shares_rows() ? rows + y.kernel - 1 : rows * y.kernel;
}
// The position of pointer i, from that of the first.
inline int position_of(const AxisGeometry& y, int i) {
  return y.shares_rows() ? i * y.dilation : i / y.kernel * y.stride + i % y.kernel * y.dilation;
}

// The inputs of a tile, copied to where zeros surround them.
template <class A>
struct PaddedTile {
  const AxisGeometry &y, &x;
  const int unit, row_step;  // numbers of a position; positions from one row to the next
  bool apart;                // whether a tap has positions of its own, as those between would be many more
  int64_t phase, width;
  PackVector<A> values;
  A* first;  // of the positions
  std::vector<const A*> rows;
  std::vector<int64_t> offset;
  int64_t size;
  int zeros = -1, copied = 0;  // how many positions of a row are zeros before those that are copied

  PaddedTile(const AxisGeometry& y, const AxisGeometry& x, const Tiles& tiles, int unit)
      : y(y), x(x), unit(unit), row_step(tiles.height > 1 && !y.shares_rows() ? 1 : y.dilation), offset(x.kernel) {
    const int columns = std::min(x.out, tiles.width), height = tiles.height;
    const int64_t positions = int64_t(columns - 1) * x.stride + int64_t(x.kernel - 1) * x.dilation + 1;
    apart = positions > int64_t(FAR) * x.kernel * (columns + LANES);
    const int stride = phases(), padded = (columns + LANES - 1) / LANES * LANES;
    phase = apart ? padded : unit == LANES ? positions : padded + (x.kernel - 1) * x.dilation / stride;
    width = ((apart ? x.kernel : stride) * phase * unit + LANES - 1) / LANES * LANES;
    size = rows_for(height) * width + 3 * LANES;
    values.reserve(size);
    // What is copied begins at a multiple of a pack: fewer loads and stores then meet two lines of the cache.
    const int64_t lead = unit == LANES ? 0 : int64_t(x.lead) * unit;
    first = values.data() + (-uintptr_t(values.data()) / sizeof(A) - lead) % LANES;
    for (int i = 0; i < pointers_of(y, height); ++i) { rows.push_back(first + position_of(y, i) / row_step * width); }
    for (int v = 0; v < x.kernel; ++v) {
      const int64_t position = int64_t(v) * x.dilation;
      offset[v] = (apart ? v * phase : position % stride * phase + position / stride) * unit;
    }
  }
  // Packs of channels may lie a stride apart; of lanes along a row, positions a stride apart become neighbours.
  int phases() const { return unit == LANES || apart ? 1 : x.stride; }
  int64_t rows_for(int outputs) const { return position_of(y, pointers_of(y, outputs) - 1) / row_step + 1; }

  Inputs<A> inputs() const {
    const int64_t pack = unit == LANES && !apart ? int64_t(x.stride) * LANES : LANES;
    return {rows.data(), step_of(y), 0, pack, offset.data(), y.kernel, x.kernel, 0, x.kernel};
  }

  // Zeros everywhere, unless what is copied covers all that was copied before.
  void clear(int before, int n) {
    if (before != zeros || n != copied) values.assign(size, A(0));
    zeros = before, copied = n;
  }

  template <class T>
  void gather(const ChannelView<const T>& plane, const Tile& tile) {
    clear(0, tile.columns);
    for (int64_t r = 0; r < rows_for(tile.rows); ++r) {
      const int at = y.value_at(y.start(tile.row) + int(r) * row_step);
      A* to = first + r * width;
      if (at < 0) std::fill_n(to, width, A(0));
      if (at >= 0) gather_row(plane.values + at * plane.row, to, x, tile.column, tile.columns, phase, unit, plane);
    }
  }

  template <class T>
  void fill(const ChannelView<const T>& plane, const Tile& tile) {
    if (y.kernel == 0 || x.kernel == 0) return;
    if (apart) return gather(plane, tile);
    const int start = x.start(tile.column);
    const int positions = (tile.columns - 1) * x.stride + (x.kernel - 1) * x.dilation + 1;
    const int end = std::max(0, start + positions);
    const RowCopy copy{std::max(0, start), std::min(x.source, end), start, phases(), phase};
    clear(copy.first - start, copy.last - copy.first);
    copy_rows(plane, y, y.start(tile.row), row_step, rows_for(tile.rows), first, width, copy, unit);
  }
};

// The inputs of a tile where they are, channels last; there are zeros for the rows above and below the image.
template <class A>
struct TileInPlace {
  const AxisGeometry &y, &x;
  PackVector<A> zeros;
  std::vector<const A*> rows;
  std::vector<int64_t> offset;
  int64_t column;

  TileInPlace(const AxisGeometry& y, const AxisGeometry& x, const Tiles& tiles, int64_t channels)
      : y(y), x(x), rows(pointers_of(y, tiles.height)), offset(x.kernel) {
    for (int v = 0; v < x.kernel; ++v) offset[v] = int64_t(v) * x.dilation * channels;
    column = x.stride * channels;
  }
  Inputs<A> inputs() const {
    return {rows.data(), step_of(y), 0, column, offset.data(), y.kernel, x.kernel, 0, x.kernel};
  }

  void find(const ChannelView<const A>& plane, const Tile& tile) {
    for (int i = 0; i < pointers_of(y, tile.rows); ++i) {
      const int at = y.value_at(y.start(tile.row) + position_of(y, i));
      if (at < 0) zeros.resize(x.source * plane.column);
      rows[i] = (at < 0 ? zeros.data() : plane.values + at * plane.row) + x.start(tile.column) * plane.column;
    }
  }
};

}  // namespace
}  // namespace nerfkit
