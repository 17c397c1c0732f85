// SPDX-License-Identifier: Apache-2.0
// How rows of depthwise_conv2d_half_channels.cuh come into shared memory and leave it.

#pragma once

#include <type_traits>

#include "depthwise_conv2d/mma_channels_sums.cuh"

namespace nerfkit {

// Of a block: quads, columns, steps and rows of a slot, and slots on their way or in use. Places in registers and in
// memory repeat after DEPTH slots. Longer slots have fewer barriers, shorter ones less to wait for at both ends.
template <int K, bool BACKWARD, int QUADS_>
struct HalfChannelsShape {
  static constexpr int QUADS = QUADS_, CHANNELS = 4 * QUADS, COLUMNS = QUAD_COLUMNS;
  static constexpr bool LONG = BACKWARD && (K == 7) == (QUADS == 4);
  static constexpr int STEPS = LONG ? 4 : 2, ROWS = 2 * STEPS;
  static constexpr int DEPTH = K == 7 && !LONG ? 4 : 3, RESULTS = DEPTH % 2 ? DEPTH : 2;  // slots of inputs; of results
  static_assert(DEPTH * ROWS % (K + 1) == 0 && DEPTH % RESULTS == 0);
  // Whether two pictures may share a strip, where it was faster.
  static constexpr bool PAIRS = BACKWARD && K == 7 && QUADS == 4;
  // The registers of a warp are too few for results and sums of the weight's gradient, so these have warps of their
  // own. The others, which have less to do, copy what comes in and write the results, GROUP rows at a time.
  static constexpr int MOVERS = 32 * QUADS, THREADS = BACKWARD ? 2 * MOVERS : MOVERS, GROUP = 4;
  static __device__ __forceinline__ int mover() { return threadIdx.x % MOVERS; }
  static constexpr int RESIDENT =
      32 * (BACKWARD || K == 7 ? 16 : 24) / THREADS;  // blocks that a multiprocessor is to hold
  static constexpr int WIDTH = COLUMNS + K - 1, PLACES = PAIRS ? WIDTH + PAIRED_COLUMNS : WIDTH;
  using Window = HalfQuads<QUADS, WIDTH, ROWS, PLACES>;         // from column x0 - K / 2 on
  using Center = HalfQuads<QUADS, COLUMNS, ROWS>;               // x, from column x0 on
  using Result = HalfQuads<QUADS, COLUMNS, ROWS, COLUMNS, 16>;  // lanes that write two rows meet all banks
  static constexpr int SLOT = Window::BYTES + (BACKWARD ? Center::BYTES : 0),
                       BYTES = DEPTH * SLOT + RESULTS * Result::BYTES;
};

// A strip goes on from picture to picture: rows of all pictures are counted as one column, with K / 2 or more rows of
// zeros after each. So blocks have equal shares, whatever the pictures' number and height. Where at most 8 columns are
// left of a row, two pictures may share a strip, a picture and the one half of all further on: the last columns of
// both.
struct HalfChannelsStrip {
  int part, x0, first, last, end, channel;  // of that column: rows of this piece; all rows
  bool paired;

  // The groups of one strip are neighbours.
  template <class T>
  __device__ __forceinline__ HalfChannelsStrip(const HalfConv<T>& a, int unit, int channels) {
    const int groups = (a.channels + channels - 1) / channels;
    part = unit / groups, channel = unit % groups * channels;
    const int paired_piece = part - a.strips * a.pieces;
    paired = paired_piece >= 0;
    const int rows = paired ? a.paired_rows : a.rows;
    x0 = (paired ? a.strips : part % a.strips) * QUAD_COLUMNS;
    end = (paired ? a.pictures / 2 : a.pictures) * a.period;
    first = (paired ? paired_piece : part / a.strips) * rows, last = min(first + rows, end);
  }

  // From a column of the strip, were it the first picture's, to where it is in the second.
  template <class T>
  __device__ __forceinline__ int64_t to_second(const HalfConv<T>& a) const {
    return paired ? a.pictures / 2 * a.strides.batch - PAIRED_COLUMNS * a.strides.column : 0;
  }
};

// A thread's way along a strip.
template <class T>
struct HalfChannelsPlace {
  using Value = std::remove_const_t<T>;
  T* at;
  int row, end, y;  // of the rows that count, from 0 on; of the picture, where zeros follow from `height` on

  // `picture`: the first one, in the right column. Rows of the strip from `first` on count, up to `last`.
  __device__ __forceinline__ HalfChannelsPlace(const HalfConv<Value>& a, T* picture, int row, int first, int last)
      : row(row - first), end(last - first) {
    const int index = max(row, 0) / a.period;
    y = row - index * a.period;
    at = picture + index * a.strides.batch + y * a.strides.row;
  }
  __device__ __forceinline__ bool inside(const HalfConv<Value>& a) const {
    return unsigned(y) < unsigned(a.height) && unsigned(row) < unsigned(end);
  }
  // At most a picture's rows.
  __device__ __forceinline__ void advance(const HalfConv<Value>& a, int rows) {
    row += rows, y += rows, at += rows * a.strides.row;
    if (y >= a.period) y -= a.period, at += a.strides.batch - a.period * a.strides.row;
  }
};

// What a thread copies of some rows of a strip: every APART-th column of one row, of one quad. Where two pictures share
// the strip, one more turn copies the columns that both have, of the second.
template <class T, class Shape, class Rows>
struct HalfChannelsCopies {
  static constexpr int QUADS = Rows::QUADS, COLUMNS = Rows::COLUMNS, APART = 32 / Shape::GROUP;
  static constexpr int TURNS = (COLUMNS + APART - 1) / APART;
  static constexpr bool WHOLE = COLUMNS % APART == 0;  // or only threads with LAST in `turns` have a last turn
  static constexpr int ALL_TURNS = TURNS + (Shape::PAIRS && !WHOLE);
  static_assert(APART == PAIRED_COLUMNS, "columns of a turn are of one picture, but for those that both have");
  static constexpr unsigned LAST = 1u << 31, PAIRED = 1u << 30;
  HalfChannelsPlace<const T> from;
  unsigned to, turns;  // of the first column; a bit for each column that is inside the picture
  int64_t to_second;

  static __device__ __forceinline__ int quad() { return Shape::mover() % QUADS; }
  static __device__ __forceinline__ int column() { return Shape::mover() / QUADS % APART; }
  static __device__ __forceinline__ int row() { return Shape::mover() / QUADS / APART; }

  // Rows from `first` on up to `last`, columns from x0 on. Rows before the strip are outside.
  __device__ __forceinline__ HalfChannelsCopies(const HalfConv<T>& a, const HalfChannelsStrip& at, const T* pictures,
                                                unsigned memory, int first, int last, int x0)
      : from(a, pictures + at.channel + 4 * quad() + (x0 + column()) * a.strides.column, first + row(), max(first, 0),
             last),
        to(no_remat(memory + row() * Rows::ROW + quad() * Rows::PITCH + column() * 8)),
        turns(0),
        to_second(at.to_second(a)) {
    const bool last_turn = column() < COLUMNS % APART, paired = Shape::PAIRS && at.paired;
#pragma unroll
    for (int k = 0; k < ALL_TURNS; ++k) {
      const int x = x0 + column() + turn_column(k) - (paired && of_second(k, last_turn) ? PAIRED_COLUMNS : 0);
      if (unsigned(x) < unsigned(a.width)) turns |= 1u << k;
    }
    if (at.channel + 4 * quad() >= a.channels) turns = 0;
    if (last_turn) turns |= paired ? LAST | PAIRED : LAST;
  }

  // Turn k's first column, and its place; the one more has the second turn's columns.
  static constexpr int turn_column(int k) { return (k < TURNS ? k : 1) * APART; }
  static constexpr int turn_place(int k) { return (k < TURNS ? k : 3) * APART; }
  // Of the columns that both pictures have, which threads with a last turn copy in the second, these are the first's.
  static __device__ __forceinline__ bool of_second(int k, bool last_turn) { return k > 1 || (k == 1 && !last_turn); }
  __device__ __forceinline__ bool has_turn(int k) const {
    return WHOLE || k < TURNS - 1 || turns & (k < TURNS ? LAST : PAIRED);
  }
  __device__ __forceinline__ const T* source(int k, const HalfConv<T>& a) const {
    const bool second = Shape::PAIRS && of_second(k, turns & LAST);
    return from.at + (second ? to_second : 0) + turn_column(k) * a.channels;
  }

  // For this thread's row.
  __device__ __forceinline__ void ask(const HalfConv<T>& a) const {
    const unsigned real = from.inside(a) ? turns : 0;
#pragma unroll
    for (int k = 0; k < ALL_TURNS; ++k)
      if (has_turn(k) && real & 1u << k) prefetch_l2(source(k, a));
  }

  // This thread's row, or zeros. Then the one GROUP below.
  __device__ __forceinline__ void copy(int offset, const HalfConv<T>& a) {
    const unsigned real = from.inside(a) ? turns : 0;
#pragma unroll
    for (int k = 0; k < ALL_TURNS; ++k)
      if (has_turn(k)) cp_async_zfill<8, true>(to + offset + turn_place(k) * 8, source(k, a), real & 1u << k);
    from.advance(a, Shape::GROUP);
  }
};

// Between global and shared memory, in the slots' order: what a thread copies, and 8 channels of pixels that it writes.
template <class T, int K, bool BACKWARD, class Shape>
struct HalfChannelsMover {
  using Result = typename Shape::Result;
  static constexpr int CHUNKS = Shape::QUADS / 2;
  static_assert(Shape::MOVERS == CHUNKS * Shape::COLUMNS * Shape::GROUP, "a thread writes once of a group of rows");
  HalfChannelsCopies<T, Shape, typename Shape::Window> window;
  HalfChannelsCopies<T, Shape, typename Shape::Center> x;
  unsigned results;
  HalfChannelsPlace<T> to;

  static __device__ __forceinline__ int chunk() { return Shape::mover() % CHUNKS; }
  static __device__ __forceinline__ int column() { return Shape::mover() / CHUNKS % Shape::COLUMNS; }
  static __device__ __forceinline__ int row() { return Shape::mover() / CHUNKS / Shape::COLUMNS; }

  __device__ __forceinline__ HalfChannelsMover(const HalfConv<T>& a, const HalfChannelsStrip& at, unsigned memory)
      : window(a, at, a.in, memory, at.first - K / 2, min(at.last + K / 2, at.end), at.x0 - K / 2),
        x(a, at, a.x, memory + Shape::Window::BYTES, at.first, a.partials ? at.last : at.first, at.x0),
        results(no_remat(memory + Shape::DEPTH * Shape::SLOT + row() * Result::ROW + 2 * chunk() * Result::PITCH +
                         column() * 8)),
        to(a, a.out + at.channel + 8 * chunk() + (at.x0 + column()) * a.strides.column, at.first - (K - 1) + row(),
           at.first, at.last) {
    const bool second = Shape::PAIRS && at.paired && column() >= PAIRED_COLUMNS;
    if (second) to.at += at.to_second(a);
    const int x = at.x0 + column() - (second ? PAIRED_COLUMNS : 0);
    if (!a.out || x >= a.width || at.channel + 8 * chunk() >= a.channels) to.end = 0;
  }

  // For the first rows.
  __device__ __forceinline__ void ask(const HalfConv<T>& a) const {
    window.ask(a);
    if constexpr (BACKWARD) x.ask(a);
  }

  __device__ __forceinline__ void fetch(int place, const HalfConv<T>& a) {
#pragma unroll
    for (int row = 0; row < Shape::ROWS; row += Shape::GROUP) {
      window.copy(place * Shape::SLOT + row * Shape::Window::ROW, a);
      if constexpr (BACKWARD) x.copy(place * Shape::SLOT + row * Shape::Center::ROW, a);
    }
  }

  // What a slot's steps completed.
  __device__ __forceinline__ void write(int place, const HalfConv<T>& a) {
#pragma unroll
    for (int row = 0; row < Shape::ROWS; row += Shape::GROUP) {
      if (to.inside(a)) {
        const unsigned from = results + place % Shape::RESULTS * Result::BYTES + row * Result::ROW;
        const uint2 low = load_shared(from), high = load_shared(from + Result::PITCH);
        store_16_bytes(to.at, low, high);
      }
      to.advance(a, Shape::GROUP);
    }
  }
};

}  // namespace nerfkit
