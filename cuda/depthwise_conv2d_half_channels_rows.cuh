// SPDX-License-Identifier: Apache-2.0
// How rows of depthwise_conv2d_half_channels.cuh come into shared memory and leave it.

#pragma once

#include <type_traits>

#include "depthwise_conv2d_half_channels_sums.cuh"

namespace nerfkit {

// Of a block: quads, columns, rows of a slot, which are two steps, and slots on their way or in use. Places in registers and
// in memory repeat after DEPTH slots.
template <int K, bool BACKWARD, int QUADS_>
struct HalfChannelsShape {
  static constexpr int QUADS = QUADS_, CHANNELS = 4 * QUADS, COLUMNS = QUAD_COLUMNS, STEPS = 2, ROWS = 2 * STEPS;
  static constexpr int DEPTH = K == 7 ? 4 : 3, RESULTS = DEPTH % 2 ? DEPTH : 2;  // slots of inputs; of results
  static_assert(DEPTH * ROWS % (K + 1) == 0 && DEPTH % RESULTS == 0);
  // Where the registers of a warp are too few for results and sums of the weight's gradient, these have warps of their own.
  // The others, which have less to do, copy what comes in and write the results.
  static constexpr bool TWO_ROLES = BACKWARD && (K == 7 || QUADS < 16);
  static constexpr int MOVERS = 32 * QUADS, THREADS = TWO_ROLES ? 2 * MOVERS : MOVERS;
  static __device__ __forceinline__ int mover() { return TWO_ROLES ? threadIdx.x % MOVERS : threadIdx.x; }
  static constexpr int RESIDENT = 32 * (BACKWARD || K == 7 ? 16 : 24) / THREADS;  // blocks that a multiprocessor is to hold
  using Window = HalfQuads<QUADS, COLUMNS + K - 1, ROWS>;  // from column x0 - K / 2 on
  using Center = HalfQuads<QUADS, COLUMNS, ROWS>;          // x, from column x0 on
  using Result = HalfQuads<QUADS, COLUMNS, ROWS, 16>;  // lanes that write two rows meet all banks
  static constexpr int SLOT = Window::BYTES + (BACKWARD ? Center::BYTES : 0), BYTES = DEPTH * SLOT + RESULTS * Result::BYTES;
};

// A strip goes on from picture to picture: rows of all pictures are counted as one column, with K / 2 or more rows of zeros
// after each. So blocks have equal shares, whatever the pictures' number and height.
struct HalfChannelsStrip {
  int part, x0, first, last, channel;  // rows of that column

  // The groups of one strip are neighbours.
  template <class T>
  __device__ __forceinline__ HalfChannelsStrip(const HalfConv<T>& a, int unit, int channels) {
    const int groups = (a.channels + channels - 1) / channels;
    part = unit / groups, channel = unit % groups * channels;
    x0 = part % a.strips * QUAD_COLUMNS, first = part / a.strips * a.rows, last = min(first + a.rows, a.pictures * a.period);
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

// What a thread copies of some rows of a strip: every APART-th column of one row, of one quad.
template <class T, class Shape, class Rows>
struct HalfChannelsCopies {
  static constexpr int QUADS = Rows::QUADS, COLUMNS = Rows::COLUMNS, APART = 32 / Rows::ROWS;
  static constexpr int TURNS = (COLUMNS + APART - 1) / APART;
  static constexpr bool WHOLE = COLUMNS % APART == 0;  // or only threads with LAST in `turns` have a last turn
  static constexpr unsigned LAST = 1u << 31;
  HalfChannelsPlace<const T> from;
  unsigned to, turns;  // of the first column; a bit for each column that is inside the picture

  // Of 16 lanes, at most 8 quads of a pixel: these meet all banks.
  static __device__ __forceinline__ int quad() {
    return QUADS > 8 ? Shape::mover() % 8 + Shape::mover() / 16 % (QUADS / 8) * 8 : Shape::mover() % QUADS;
  }
  static __device__ __forceinline__ int column() {
    const int pixel = Shape::mover() / QUADS;
    return QUADS > 8 ? Shape::mover() / 8 % 2 + pixel / 2 % (APART / 2) * 2 : pixel % APART;
  }
  static __device__ __forceinline__ int row() { return Shape::mover() / QUADS / APART; }

  // Rows from `first` on up to `last`, columns from x0 on. Rows before the strip are outside.
  __device__ __forceinline__ HalfChannelsCopies(const HalfConv<T>& a, const T* pictures, unsigned memory, int channel,
                                                int first, int last, int x0)
      : from(a, pictures + channel + 4 * quad() + (x0 + column()) * a.strides.column, first + row(), max(first, 0), last),
        to(kept(memory + row() * Rows::ROW + quad() * Rows::PITCH + column() * 8)), turns(0) {
#pragma unroll
    for (int k = 0; k < TURNS; ++k)
      if (unsigned(x0 + column() + k * APART) < unsigned(a.width)) turns |= 1u << k;
    if (channel + 4 * quad() >= a.channels) turns = 0;
    if (column() < COLUMNS % APART) turns |= LAST;
  }

  // For this thread's row.
  __device__ __forceinline__ void ask(const HalfConv<T>& a) const {
    const unsigned real = from.inside(a) ? turns : 0;
#pragma unroll
    for (int k = 0; k < TURNS; ++k)
      if ((WHOLE || k < TURNS - 1 || turns & LAST) && real & 1u << k) ask_for_line(from.at + k * APART * a.channels);
  }

  // This thread's row, or zeros. Then the one ROWS below.
  __device__ __forceinline__ void copy(int offset, const HalfConv<T>& a) {
    const unsigned real = from.inside(a) ? turns : 0;
#pragma unroll
    for (int k = 0; k < TURNS; ++k)
      if (WHOLE || k < TURNS - 1 || turns & LAST)
        copy_async_or_zeros<8, true>(to + offset + k * APART * 8, from.at + k * APART * a.channels, real & 1u << k);
    from.advance(a, Rows::ROWS);
  }
};

// Between global and shared memory, in the slots' order: what a thread copies, and 8 channels of a pixel that it writes.
template <class T, int K, bool BACKWARD, class Shape>
struct HalfChannelsMover {
  using Result = typename Shape::Result;
  static constexpr int CHUNKS = Shape::QUADS / 2;
  static_assert(Shape::MOVERS == CHUNKS * Shape::COLUMNS * Shape::ROWS, "a thread writes once a slot");
  HalfChannelsCopies<T, Shape, typename Shape::Window> window;
  HalfChannelsCopies<T, Shape, typename Shape::Center> x;
  unsigned results;
  HalfChannelsPlace<T> to;

  static __device__ __forceinline__ int chunk() { return Shape::mover() % CHUNKS; }
  static __device__ __forceinline__ int column() { return Shape::mover() / CHUNKS % Shape::COLUMNS; }
  static __device__ __forceinline__ int row() { return Shape::mover() / CHUNKS / Shape::COLUMNS; }

  __device__ __forceinline__ HalfChannelsMover(const HalfConv<T>& a, const HalfChannelsStrip& at, unsigned memory)
      : window(a, a.in, memory, at.channel, at.first - K / 2, min(at.last + K / 2, a.pictures * a.period), at.x0 - K / 2),
        x(a, a.x, memory + Shape::Window::BYTES, at.channel, at.first, a.partials ? at.last : at.first, at.x0),
        results(kept(memory + Shape::DEPTH * Shape::SLOT + row() * Result::ROW + 2 * chunk() * Result::PITCH +
                     column() * 8)),
        to(a, a.out + at.channel + 8 * chunk() + (at.x0 + column()) * a.strides.column, at.first - (K - 1) + row(), at.first,
           at.last) {
    if (!a.out || at.x0 + column() >= a.width || at.channel + 8 * chunk() >= a.channels) to.end = 0;
  }

  // For the first slot.
  __device__ __forceinline__ void ask(const HalfConv<T>& a) const {
    window.ask(a);
    if constexpr (BACKWARD) x.ask(a);
  }

  __device__ __forceinline__ void fetch(int place, const HalfConv<T>& a) {
    window.copy(place * Shape::SLOT, a);
    if constexpr (BACKWARD) x.copy(place * Shape::SLOT, a);
  }

  // What a slot's steps completed.
  __device__ __forceinline__ void write(int place, const HalfConv<T>& a) {
    if (to.inside(a)) {
      const unsigned from = results + place % Shape::RESULTS * Result::BYTES;
      const uint2 low = load_shared(from), high = load_shared(from + Result::PITCH);
      store_wide(to.at, low, high);
    }
    to.advance(a, Shape::ROWS);
  }
};

}  // namespace nerfkit
