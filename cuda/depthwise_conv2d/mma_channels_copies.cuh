// SPDX-License-Identifier: Apache-2.0
// How rows of mma_channels.cu come into shared memory and leave it.

#pragma once

#include <type_traits>

#include "depthwise_conv2d/mma_channels_fragments.cuh"

namespace nerfkit {

// The shared memory of a block: a ring of DEPTH slots, each with the rows of the window (and, backward, of x) of STEPS
// steps, then RESULTS slots of results. Indices of registers and of slots repeat after DEPTH slots.
template <Pass PASS>
struct ChannelsBlock {
  static constexpr bool BACKWARD = PASS == Pass::backward;
  static constexpr int STEPS = 2, ROWS = 2 * STEPS, DEPTH = 4, RESULTS = 2;
  static_assert(DEPTH * ROWS % (SIDE + 1) == 0 && DEPTH % RESULTS == 0);
  // One warp per quad computes results and copies. Registers are too few for the sums of the weight's gradient beside
  // it, so these have warps of their own.
  static constexpr int RESULT_THREADS = 32 * QUADS, THREADS = BACKWARD ? 2 * RESULT_THREADS : RESULT_THREADS;
  static constexpr int RESIDENT = 512 / THREADS;            // blocks of a multiprocessor: 128 registers per thread
  using Window = QuadTile<STRIP_COLUMNS + SIDE - 1, ROWS>;  // from column x0 - SIDE / 2 on
  using Center = QuadTile<STRIP_COLUMNS, ROWS>;             // x, from column x0 on
  using Result = QuadTile<STRIP_COLUMNS, ROWS, 16>;         // lanes that write two rows meet all banks
  static constexpr int SLOT = Window::BYTES + (BACKWARD ? Center::BYTES : 0);
  static constexpr int BYTES = DEPTH * SLOT + RESULTS * Result::BYTES;

  static __device__ __forceinline__ int copier() { return threadIdx.x % RESULT_THREADS; }
};

// A piece of a strip. Strips go on from image to image: rows of all images are counted as one column, with SIDE / 2 or
// more rows of zeros after each. So blocks have equal shares, whatever the images' number and height.
struct ChannelsPiece {
  int part, x0, first, last, end, channel;  // of that column: rows of this piece; all rows

  // The groups of channels of one strip are neighbours.
  template <class T>
  __device__ __forceinline__ ChannelsPiece(const MmaChannelsArgs<T>& a, int unit) {
    const int groups = (a.channels + BLOCK_CHANNELS - 1) / BLOCK_CHANNELS;
    part = unit / groups, channel = unit % groups * BLOCK_CHANNELS;
    x0 = part % a.strips * STRIP_COLUMNS, end = a.images * a.period;
    first = part / a.strips * a.rows, last = min(first + a.rows, end);
  }
};

// A thread's pointer that goes down a strip.
template <class T>
struct StripPointer {
  using Value = std::remove_const_t<T>;
  T* at;            // [B, H, W, C]
  int row, end, y;  // of the rows that count, from 0 on; of the image, where zeros follow from `height` on

  // `images`: the first one, in the right column. Rows of the strip from `first` on count, up to `last`.
  __device__ __forceinline__ StripPointer(const MmaChannelsArgs<Value>& a, T* images, int row, int first, int last)
      : row(row - first), end(last - first) {
    const int index = max(row, 0) / a.period;
    y = row - index * a.period;
    at = images + index * a.strides.batch + y * a.strides.row;
  }
  __device__ __forceinline__ bool inside(const MmaChannelsArgs<Value>& a) const {
    return unsigned(y) < unsigned(a.height) && unsigned(row) < unsigned(end);
  }
  // At most an image's rows.
  __device__ __forceinline__ void advance(const MmaChannelsArgs<Value>& a, int rows) {
    row += rows, y += rows, at += rows * a.strides.row;
    if (y >= a.period) y -= a.period, at += a.strides.batch - a.period * a.strides.row;
  }
};

// What a thread copies of a slot's rows: every APART-th column of one row, of one quad.
template <class T, class Block, class Rows>
struct RowCopies {
  static constexpr int COLUMNS = Rows::COLUMNS, APART = 32 / Block::ROWS, TURNS = (COLUMNS + APART - 1) / APART;
  static constexpr bool EVEN = COLUMNS % APART == 0;  // or only threads with LAST in `turns` have a last turn
  static constexpr unsigned LAST = 1u << 31;
  StripPointer<const T> from;
  unsigned to, turns;  // address of the first column; a bit for each turn whose column is inside the image

  static __device__ __forceinline__ int quad() { return Block::copier() % QUADS; }
  static __device__ __forceinline__ int column() { return Block::copier() / QUADS % APART; }
  static __device__ __forceinline__ int row() { return Block::copier() / QUADS / APART; }

  // Rows from `first` on up to `last`, columns from x0 on. Rows before the strip are outside.
  __device__ __forceinline__ RowCopies(const MmaChannelsArgs<T>& a, const ChannelsPiece& at, const T* images,
                                       unsigned memory, int first, int last, int x0)
      : from(a, images + at.channel + 4 * quad() + (x0 + column()) * a.strides.column, first + row(), max(first, 0),
             last),
        to(no_remat(memory + row() * Rows::ROW + quad() * Rows::PITCH + column() * 8)),
        turns(0) {
#pragma unroll
    for (int k = 0; k < TURNS; ++k)
      if (unsigned(x0 + column() + k * APART) < unsigned(a.width)) turns |= 1u << k;
    if (at.channel + 4 * quad() >= a.channels) turns = 0;
    if (column() < COLUMNS % APART) turns |= LAST;
  }

  __device__ __forceinline__ bool has_turn(int k) const { return EVEN || k < TURNS - 1 || turns & LAST; }
  __device__ __forceinline__ const T* source(int k, const MmaChannelsArgs<T>& a) const {
    return from.at + k * APART * a.channels;
  }

  // To L2, for this thread's row.
  __device__ __forceinline__ void prefetch(const MmaChannelsArgs<T>& a) const {
    const unsigned real = from.inside(a) ? turns : 0;
#pragma unroll
    for (int k = 0; k < TURNS; ++k)
      if (has_turn(k) && real & 1u << k) prefetch_l2(source(k, a));
  }

  // This thread's row, or zeros; the next call takes the one a slot below.
  __device__ __forceinline__ void copy(int offset, const MmaChannelsArgs<T>& a) {
    const unsigned real = from.inside(a) ? turns : 0;
#pragma unroll
    for (int k = 0; k < TURNS; ++k)
      if (has_turn(k)) cp_async_zfill<8, true>(to + offset + k * APART * 8, source(k, a), real & 1u << k);
    from.advance(a, Block::ROWS);
  }
};

// Between global and shared memory, in the slots' order: what a thread copies, and 8 channels of a pixel that it
// writes.
template <class T, Pass PASS>
struct Copier {
  using Block = ChannelsBlock<PASS>;
  using Result = typename Block::Result;
  static constexpr int CHUNKS = QUADS / 2;
  static_assert(Block::RESULT_THREADS == CHUNKS * STRIP_COLUMNS * Block::ROWS, "a thread writes once per slot");
  RowCopies<T, Block, typename Block::Window> window;
  RowCopies<T, Block, typename Block::Center> x;
  unsigned results;
  StripPointer<T> to;

  static __device__ __forceinline__ int chunk() { return Block::copier() % CHUNKS; }
  static __device__ __forceinline__ int column() { return Block::copier() / CHUNKS % STRIP_COLUMNS; }
  static __device__ __forceinline__ int row() { return Block::copier() / CHUNKS / STRIP_COLUMNS; }

  __device__ __forceinline__ Copier(const MmaChannelsArgs<T>& a, const ChannelsPiece& at, unsigned memory)
      : window(a, at, a.in, memory, at.first - SIDE / 2, min(at.last + SIDE / 2, at.end), at.x0 - SIDE / 2),
        x(a, at, a.x, memory + Block::Window::BYTES, at.first, a.partials ? at.last : at.first, at.x0),
        results(no_remat(memory + Block::DEPTH * Block::SLOT + row() * Result::ROW + 2 * chunk() * Result::PITCH +
                         column() * 8)),
        to(a, a.out + at.channel + 8 * chunk() + (at.x0 + column()) * a.strides.column, at.first - (SIDE - 1) + row(),
           at.first, at.last) {
    if (!a.out || at.x0 + column() >= a.width || at.channel + 8 * chunk() >= a.channels) to.end = 0;
  }

  // For the first rows.
  __device__ __forceinline__ void prefetch(const MmaChannelsArgs<T>& a) const {
    window.prefetch(a);
    if constexpr (Block::BACKWARD) x.prefetch(a);
  }

  __device__ __forceinline__ void copy(int slot, const MmaChannelsArgs<T>& a) {
    window.copy(slot * Block::SLOT, a);
    if constexpr (Block::BACKWARD) x.copy(slot * Block::SLOT, a);
  }

  // What a slot's steps completed.
  __device__ __forceinline__ void write(int slot, const MmaChannelsArgs<T>& a) {
    if (to.inside(a)) {
      const unsigned from = results + slot % Block::RESULTS * Result::BYTES;
      const uint2 low = load_shared(from), high = load_shared(from + Result::PITCH);
      store_16_bytes(to.at, low, high);
    }
    to.advance(a, Block::ROWS);
  }
};

}  // namespace nerfkit
