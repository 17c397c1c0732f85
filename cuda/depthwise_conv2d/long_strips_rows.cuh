// SPDX-License-Identifier: Apache-2.0
// How rows of depthwise_conv2d_long_strips.cuh come into shared memory and leave it.

#pragma once

#include <type_traits>

#include "common/async_copy.cuh"
#include "depthwise_conv2d/block.cuh"

namespace nerfkit {

struct LongConv {
  const float* in;      // x, or grad_out for the backward pass
  const float* weight;  // [C, K * K]
  const float* bias;
  float* out;       // null if only the weight's gradient is wanted
  const float* x;   // backward: to be multiplied with the window
  float* partials;  // [parts, C, K * K + 1], or null
  int channels, batch, height, width;
  int period;                // rows from picture to picture, K / 2 of them zeros
  int rows, strips, across;  // rows of a piece, strips beside each other, blocks across the channels
  int64_t picture, channel;  // distances of neighbours, in elements
  int row, column;           // the same
  int next_picture;          // from the last row of a period to the next picture's first one
};

template <bool CHANNELS_LAST, bool BACKWARD>
struct LongShape {
  static constexpr int COLUMNS = 4, AHEAD = 4;  // steps that a row is asked for before its use
  static constexpr int WARPS = CHANNELS_LAST ? 4 : 1, THREADS = 32 * WARPS;  // a channel of planes has few strips
  static constexpr int RESIDENT = (BACKWARD ? 8 : 16) / WARPS;               // blocks that a multiprocessor is to hold
  static constexpr int UNROLL = CHANNELS_LAST ? 1 : 2;                       // steps of a turn of the loop
};

// Of a warp, in bytes: windows on their way or in use, and as many rows of x as K steps need besides. These are a ring
// whose first K rows are there a second time after its end, so that K rows in order are at constant distances.
template <int K, int AHEAD, int WINDOW_, int CENTER_, bool BACKWARD>
struct LongRing {
  static constexpr int WINDOW = WINDOW_, CENTER = CENTER_, WINDOWS = AHEAD + 1, CENTERS = K + AHEAD, REPEATED = K;
  static constexpr int FIRST_CENTER = WINDOWS * WINDOW, ROUND = CENTERS * CENTER;
  static constexpr int BYTES = FIRST_CENTER + (BACKWARD ? ROUND + REPEATED * CENTER : 0);
};

// A lane's row, on its way down all pictures.
template <class T>
struct LongPlace {
  T* at;
  int y;  // from `height` on zeros

  // `picture`: the first one. Rows before it are outside.
  __device__ __forceinline__ LongPlace(const LongConv& a, T* picture, int row) {
    const int index = max(row, 0) / a.period;
    y = row - index * a.period;
    at = picture + index * a.picture + y * int64_t(a.row);
  }
  __device__ __forceinline__ bool inside(const LongConv& a) const { return unsigned(y) < unsigned(a.height); }
  __device__ __forceinline__ void advance(const LongConv& a) {
    const bool last = ++y == a.period;
    at += last ? a.next_picture : a.row;
    if (last) y = 0;
  }
};

// Channels last: lanes are neighbouring channels. Pixels come 16 bytes a lane, 4 of them at a time.
template <int K, bool BACKWARD>
struct LongChannels {
  using Shape = LongShape<true, BACKWARD>;
  static constexpr int V = Shape::COLUMNS, N = V + K - 1, PIXEL = 32 * sizeof(float), TOGETHER = 4;
  static constexpr int TURNS = (N + TOGETHER - 1) / TOGETHER;
  static_assert(V == TOGETHER, "x is one turn");
  using Ring = LongRing<K, Shape::AHEAD, N * PIXEL, V * PIXEL, BACKWARD>;
  int x0, line, channel;     // line: of pieces; channel: of this lane
  int64_t source, result;    // of the first row's pixel that this lane copies first; of its first result
  unsigned to, from, turns;  // places in shared memory that it copies to and reads from; a bit for each pixel inside
  int columns;               // of its results

  __device__ __forceinline__ LongChannels(const LongConv& a, int block, int group) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pixel = lane / 8, at = block * Shape::WARPS + warp;
    x0 = at % a.strips * V, line = at / a.strips, channel = group * 32 + lane;
    source = group * 32 + lane % 8 * 4 + int64_t(x0 + pixel) * a.column, result = channel + int64_t(x0) * a.column;
    to = no_remat(warp * Ring::BYTES + 16 * lane), from = no_remat(warp * Ring::BYTES + sizeof(float) * lane);
    turns = 0;
#pragma unroll
    for (int k = 0; k < TURNS; ++k) {
      const int i = pixel + k * TOGETHER;
      if (i < N && unsigned(x0 - K / 2 + i) < unsigned(a.width)) turns |= 1u << k;
    }
    if (x0 + pixel < a.width) turns |= 1u << TURNS;
    if (group * 32 + lane % 8 * 4 >= a.channels) turns = 0;
    columns = int(no_remat(channel < a.channels ? min(V, a.width - x0) : 0));
  }
  __device__ __forceinline__ int64_t window_source(const LongConv& a) const { return source - K / 2 * a.column; }

  __device__ __forceinline__ void copy_window(unsigned slot, const float* row, const LongConv& a, bool inside) const {
#pragma unroll
    for (int k = 0; k < TURNS; ++k)
      if (turns >> k & 1) cp_async_zfill<16>(slot + to + k * TOGETHER * PIXEL, row + k * TOGETHER * a.column, inside);
  }
  __device__ __forceinline__ void copy_center(unsigned slot, const float* row, bool inside) const {
    if (turns >> TURNS & 1) cp_async_zfill<16>(slot + to, row, inside);
  }
  __device__ __forceinline__ void read_window(const unsigned char* slot, float (&window)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) window[i] = *reinterpret_cast<const float*>(slot + from + i * PIXEL);
  }
  __device__ __forceinline__ void read_center(const unsigned char* slot, float (&center)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) center[i] = *reinterpret_cast<const float*>(slot + from + i * PIXEL);
  }
  __device__ __forceinline__ void write(float* row, const LongConv& a, bool wanted, const float (&results)[V]) const {
    const int count = wanted ? columns : 0;
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (i < count) row[i * a.column] = results[i];
  }
};

// Planes: lanes are neighbouring columns, then the next piece of the channel; a block has one channel.
template <int K, bool BACKWARD>
struct LongPlanes {
  using Shape = LongShape<false, BACKWARD>;
  static constexpr int V = Shape::COLUMNS, N = V + K - 1, BYTES = V * sizeof(float), ZERO = 34;
  using Ring = LongRing<K, Shape::AHEAD, (ZERO + 1) * BYTES, 32 * BYTES, BACKWARD>;
  int line, channel;
  int64_t source, result;
  unsigned own, left, right;  // of the window: its columns, and its neighbours'; at ZERO what is outside the picture
  int edge;                   // a neighbour that another warp has: -1 or 1

  __device__ __forceinline__ LongPlanes(const LongConv& a, int block, int group) {
    const unsigned lane = threadIdx.x, at = block * 32u + lane;
    const int x0 = int(at % a.strips) * V;
    const bool last = x0 + V == a.width;
    line = int(at / a.strips), channel = group, source = result = group * a.channel + x0;
    own = no_remat(BYTES * (lane + 1)), left = no_remat(BYTES * (x0 ? lane : ZERO)),
    right = no_remat(BYTES * (last ? ZERO : lane + 2));
    edge = lane == 0 && x0 ? -1 : lane == 31 && !last ? 1 : 0;
  }
  __device__ __forceinline__ int64_t window_source(const LongConv&) const { return source; }

  __device__ __forceinline__ void copy_window(unsigned slot, const float* row, const LongConv&, bool inside) const {
    cp_async_zfill<BYTES>(slot + own, row, inside);
    if (edge) cp_async_zfill<BYTES>(slot + own + edge * BYTES, row + edge * V, inside);
  }
  __device__ __forceinline__ void copy_center(unsigned slot, const float* row, bool inside) const {
    cp_async_zfill<BYTES>(slot + own - BYTES, row, inside);
  }
  __device__ __forceinline__ void read_window(const unsigned char* slot, float (&window)[N]) const {
    float before[V], middle[V], after[V];
    load(reinterpret_cast<const float*>(slot + left), before);
    load(reinterpret_cast<const float*>(slot + own), middle);
    load(reinterpret_cast<const float*>(slot + right), after);
#pragma unroll
    for (int i = 0; i < N; ++i) window[i] = of_neighbours<K / 2>(before, middle, after, i);
  }
  __device__ __forceinline__ void read_center(const unsigned char* slot, float (&center)[V]) const {
    load(reinterpret_cast<const float*>(slot + own - BYTES), center);
  }
  __device__ __forceinline__ void write(float* row, const LongConv&, bool wanted, const float (&results)[V]) const {
    if (wanted) store(row, results);
  }
};

template <int K, bool CHANNELS_LAST, bool BACKWARD>
using LongStrip = std::conditional_t<CHANNELS_LAST, LongChannels<K, BACKWARD>, LongPlanes<K, BACKWARD>>;

// A lane's rows on their way through shared memory.
template <class Strip, bool BACKWARD>
struct LongRows {
  using Ring = typename Strip::Ring;
  LongPlace<const float> in, x;
  int end, end_x;                // of the steps that have one
  int window, copied, copied_x;  // places in the ring: to read next, and to copy to

  // Of a piece's `count` rows from `first` on, and `half` to either side where there are any.
  __device__ __forceinline__ LongRows(const LongConv& a, const Strip& strip, int first, int count, int half)
      : in(a, a.in + strip.window_source(a), first - half),
        x(a, a.x + strip.source, first),
        end(count ? min(count + 2 * half, a.batch * a.period - first + half) : 0),
        end_x(a.partials ? count : 0),
        window(0),
        copied(0),
        copied_x(0) {}

  // The rows that step `step` needs first.
  __device__ __forceinline__ void copy(unsigned memory, const Strip& strip, const LongConv& a, int step) {
    strip.copy_window(memory + copied * Ring::WINDOW, in.at, a, in.inside(a) && step < end);
    in.advance(a);
    if (BACKWARD) {
      const unsigned to = memory + Ring::FIRST_CENTER + copied_x * Ring::CENTER;
      const bool inside = x.inside(a) && step < end_x;
      strip.copy_center(to, x.at, inside);
      if (copied_x < Ring::REPEATED) strip.copy_center(to + Ring::ROUND, x.at, inside);
      x.advance(a);
    }
    cp_async_commit();
  }
  // The rows of the first steps.
  __device__ __forceinline__ void start(unsigned memory, const Strip& strip, const LongConv& a) {
    for (int step = 0; step < Ring::WINDOWS - 1; ++step, ++copied, ++copied_x) copy(memory, strip, a, step);
  }
  // Of a step, after its copies: its row of the window; K rows of x, the oldest first.
  __device__ __forceinline__ const unsigned char* window_in(const unsigned char* memory) const {
    return memory + window * Ring::WINDOW;
  }
  __device__ __forceinline__ const unsigned char* centers_in(const unsigned char* memory) const {
    return memory + Ring::FIRST_CENTER + (copied_x + 1) * Ring::CENTER;
  }
  __device__ __forceinline__ void advance() {
    window = window + 1 == Ring::WINDOWS ? 0 : window + 1, copied = copied + 1 == Ring::WINDOWS ? 0 : copied + 1;
    copied_x = copied_x + 1 == Ring::CENTERS ? 0 : copied_x + 1;
  }
};

}  // namespace nerfkit
