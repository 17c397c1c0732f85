// SPDX-License-Identifier: Apache-2.0
// 7 x 7 in float32. A warp walks down a strip of 4 columns, a row of the window a step, with the sums of the rows of results
// that it adds to. All pictures are one strip, cut into equal pieces. A step is a turn of a loop: with seven in a row, so
// that each sum stays in its register, there are more instructions than the instruction cache holds. The sums move on by a
// register in every step without an instruction of their own, for the first product of a step has another register as its
// result than as its operand. The rows of x that the weight's gradient needs are read from shared memory at every step.

#pragma once

#include <cstdlib>
#include <type_traits>

#include "async_copy.cuh"
#include "depthwise_conv2d_block.cuh"
#include "early_launch.cuh"

namespace nerfkit {

struct LongConv {
  const float* in;      // x, or grad_out for the backward pass
  const float* weight;  // [C, K * K]
  const float* bias;
  float* out;           // null if only the weight's gradient is wanted
  const float* x;       // backward: to be multiplied with the window
  float* partials;      // [parts, C, K * K + 1], or null
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

// Of a warp, in bytes: windows on their way or in use, and as many rows of x as K steps need besides. These are a ring whose
// first K rows are there a second time after its end, so that K rows in order are at constant distances.
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
  int x0, line, channel;  // line: of pieces; channel: of this lane
  int64_t source, result;  // of the first row's pixel that this lane copies first; of its first result
  unsigned to, from, turns;  // places in shared memory that it copies to and reads from; a bit for each pixel inside
  int columns;               // of its results

  __device__ __forceinline__ LongChannels(const LongConv& a, int block, int group) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pixel = lane / 8, at = block * Shape::WARPS + warp;
    x0 = at % a.strips * V, line = at / a.strips, channel = group * 32 + lane;
    source = group * 32 + lane % 8 * 4 + int64_t(x0 + pixel) * a.column, result = channel + int64_t(x0) * a.column;
    to = kept(warp * Ring::BYTES + 16 * lane), from = kept(warp * Ring::BYTES + sizeof(float) * lane);
    turns = 0;
#pragma unroll
    for (int k = 0; k < TURNS; ++k) {
      const int i = pixel + k * TOGETHER;
      if (i < N && unsigned(x0 - K / 2 + i) < unsigned(a.width)) turns |= 1u << k;
    }
    if (x0 + pixel < a.width) turns |= 1u << TURNS;
    if (group * 32 + lane % 8 * 4 >= a.channels) turns = 0;
    columns = int(kept(channel < a.channels ? min(V, a.width - x0) : 0));
  }
  __device__ __forceinline__ int64_t window_source(const LongConv& a) const { return source - K / 2 * a.column; }

  __device__ __forceinline__ void copy_window(unsigned slot, const float* row, const LongConv& a, bool inside) const {
#pragma unroll
    for (int k = 0; k < TURNS; ++k)
      if (turns >> k & 1)
        copy_async_or_zeros<16>(slot + to + k * TOGETHER * PIXEL, row + k * TOGETHER * a.column, inside);
  }
  __device__ __forceinline__ void copy_center(unsigned slot, const float* row, bool inside) const {
    if (turns >> TURNS & 1) copy_async_or_zeros<16>(slot + to, row, inside);
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
    own = kept(BYTES * (lane + 1)), left = kept(BYTES * (x0 ? lane : ZERO)), right = kept(BYTES * (last ? ZERO : lane + 2));
    edge = lane == 0 && x0 ? -1 : lane == 31 && !last ? 1 : 0;
  }
  __device__ __forceinline__ int64_t window_source(const LongConv&) const { return source; }

  __device__ __forceinline__ void copy_window(unsigned slot, const float* row, const LongConv&, bool inside) const {
    copy_async_or_zeros<BYTES>(slot + own, row, inside);
    if (edge) copy_async_or_zeros<BYTES>(slot + own + edge * BYTES, row + edge * V, inside);
  }
  __device__ __forceinline__ void copy_center(unsigned slot, const float* row, bool inside) const {
    copy_async_or_zeros<BYTES>(slot + own - BYTES, row, inside);
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
      : in(a, a.in + strip.window_source(a), first - half), x(a, a.x + strip.source, first),
        end(count ? min(count + 2 * half, a.batch * a.period - first + half) : 0), end_x(a.partials ? count : 0),
        window(0), copied(0), copied_x(0) {}

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
    end_copies();
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

// Copies the weights of a block's 32 channels to shared memory, in order, and returns those of this lane's channel: if a lane
// loaded its own from global memory, each load would touch 32 lines.
template <int TAPS, int THREADS>
__device__ __forceinline__ const float* share_weights(const LongConv& a, int group, float* shared) {
  const int64_t first = int64_t(group) * 32 * TAPS, end = int64_t(a.channels) * TAPS;
#pragma unroll
  for (int k = 0; k < (32 * TAPS + THREADS - 1) / THREADS; ++k) {
    const int i = threadIdx.x + k * THREADS;
    if (i < 32 * TAPS) copy_async_or_zeros<sizeof(float)>(shared + i, a.weight + first + i, first + i < end);
  }
  end_copies();
  await_copies<0>();
  __syncthreads();
  return shared + threadIdx.x % 32 * TAPS;
}

// What a lane keeps of its columns.
template <class Strip, int K, bool BACKWARD>
struct LongSums {
  static constexpr int V = Strip::V, N = Strip::N, TAPS = K * K, HALF = K / 2;
  float weight[TAPS], start;
  float result[K - 1][V];  // of the row that the next step ends, then of those below
  float taps[TAPS + 1];    // of the weight's gradient, flipped, and of the bias's

  __device__ __forceinline__ LongSums(const float* from, float bias) : start(bias), result{}, taps{} {
#pragma unroll
    for (int k = 0; k < TAPS; ++k) weight[BACKWARD ? TAPS - 1 - k : k] = from[k];
  }

  // Of a row of the window, which is zero outside the picture.
  __device__ __forceinline__ void add_to_bias(const float (&window)[N]) {
    static_assert(V == 4);
    taps[TAPS] += (window[HALF] + window[HALF + 1]) + (window[HALF + 2] + window[HALF + 3]);
  }

  // Adds the products with a row of the window, and with K rows of x, the oldest first. `ended`: a row of results.
  __device__ __forceinline__ void add_row(const Strip& strip, const float (&window)[N], const unsigned char* centers,
                                          float (&ended)[V]) {
#pragma unroll
    for (int i = 0; i < K; ++i) {
      const int u = K - 1 - i;  // the window is at this row of result i's
      float now[V], center[V];
      if (BACKWARD) strip.read_center(centers + i * Strip::Ring::CENTER, center);
#pragma unroll
      for (int j = 0; j < V; ++j) now[j] = u ? result[i][j] : start;
#pragma unroll
      for (int v = 0; v < K; ++v)
#pragma unroll
        for (int j = 0; j < V; ++j) now[j] += weight[u * K + v] * window[v + j];
#pragma unroll
      for (int j = 0; j < V; ++j) (i ? result[i - 1] : ended)[j] = now[j];
      if constexpr (BACKWARD)
#pragma unroll
        for (int v = 0; v < K; ++v)
#pragma unroll
          for (int j = 0; j < V; ++j) taps[u * K + v] += center[j] * window[v + j];
    }
  }
};

template <int K, bool CHANNELS_LAST, bool BACKWARD>
constexpr int long_shared_bytes() {
  using Shape = LongShape<CHANNELS_LAST, BACKWARD>;
  using Ring = typename LongStrip<K, CHANNELS_LAST, BACKWARD>::Ring;
  const int rows = Shape::WARPS * Ring::BYTES, weights = CHANNELS_LAST ? 32 * K * K * int(sizeof(float)) : 0;
  return std::max({rows, weights, BACKWARD ? int(sizeof(WarpSums<float, K * K + 1, Shape::WARPS>)) : 0});
}

template <int K, bool CHANNELS_LAST, bool BACKWARD>
__global__ void __launch_bounds__(LongShape<CHANNELS_LAST, BACKWARD>::THREADS, LongShape<CHANNELS_LAST, BACKWARD>::RESIDENT)
    long_strips(const LongConv a) {
  using Shape = LongShape<CHANNELS_LAST, BACKWARD>;
  using Strip = LongStrip<K, CHANNELS_LAST, BACKWARD>;
  using Ring = typename Strip::Ring;
  constexpr int TAPS = K * K, AHEAD = Shape::AHEAD;
  if (BACKWARD) invite_next_kernel();
  extern __shared__ __align__(16) unsigned char memory[];
  const int part = blockIdx.x / a.across, group = blockIdx.x % a.across, all_rows = a.batch * a.period;
  const Strip strip(a, part, group);
  const int first = int(min(int64_t(strip.line) * a.rows, int64_t(all_rows))), count = min(a.rows, all_rows - first);
  LongRows<Strip, BACKWARD> inputs(a, strip, first, count, K / 2);
  LongPlace<float> out(a, a.out + strip.result, first - (K - 1));
  await_kernels_before();
  const bool real = strip.channel < a.channels;
  const float* weight = a.weight + int64_t(real ? strip.channel : 0) * TAPS;
  if constexpr (CHANNELS_LAST) weight = share_weights<TAPS, Shape::THREADS>(a, group, reinterpret_cast<float*>(memory));
  LongSums<Strip, K, BACKWARD> sums(weight, !BACKWARD && a.bias && real ? a.bias[strip.channel] : 0.f);
  __syncthreads();  // the memory is now for the rows
  for (int i = threadIdx.x; i < Shape::WARPS * Ring::BYTES / 16; i += Shape::THREADS) reinterpret_cast<uint4*>(memory)[i] = {};
  __syncthreads();
  const unsigned address = kept(shared_address(memory));
  inputs.start(address, strip, a);

  const int steps = a.rows + K - 1, to_write = a.out ? count : 0;
#pragma unroll(Shape::UNROLL)
  for (int step = 0; step < steps; ++step) {
    await_copies<AHEAD - 1>();
    __syncwarp();  // all lanes' copies are there, and all have read the slots that the next copies go to
    inputs.copy(address, strip, a, step + AHEAD);
    float window[Strip::N], ended[Strip::V];
    strip.read_window(inputs.window_in(memory), window);
    const unsigned char* centers = inputs.centers_in(memory);
    inputs.advance();
    if (BACKWARD && unsigned(step - K / 2) < unsigned(count)) sums.add_to_bias(window);
    sums.add_row(strip, window, centers, ended);
    strip.write(out.at, a, out.inside(a) && unsigned(step - (K - 1)) < unsigned(to_write), ended);
    out.advance(a);
  }
  if constexpr (BACKWARD) {
    if (!a.partials) return;
    await_copies<0>();  // the memory is now for the sums
    float flipped[TAPS + 1];
#pragma unroll
    for (int k = 0; k <= TAPS; ++k) flipped[k] = sums.taps[k < TAPS ? TAPS - 1 - k : TAPS];
    auto& of_warp = *reinterpret_cast<WarpSums<float, TAPS + 1, Shape::WARPS>*>(memory);
    constexpr int CHANNELS = CHANNELS_LAST ? 32 : 1;
    write_partials(flipped, of_warp, a.partials, part, group * CHANNELS, CHANNELS, 1, a.channels);
  }
}

// Pieces of the strips, so that blocks come in full waves; a piece begins with the rows of its neighbour and with waiting.
// Returns the blocks that share a channel.
template <bool CHANNELS_LAST, bool BACKWARD>
int64_t cut_long_strips(LongConv& a, int kernel, int processors) {
  using Shape = LongShape<CHANNELS_LAST, BACKWARD>;
  constexpr int MOST_WAVES = 16, START = 4, OF_BLOCK = CHANNELS_LAST ? Shape::WARPS : 32;  // START: steps' worth of waiting
  const int64_t all_rows = int64_t(a.batch) * a.period, resident = int64_t(processors) * Shape::RESIDENT;
  const int64_t most = std::max<int64_t>(1, all_rows / kernel);
  int64_t least = INT64_MAX, parts = 0;
  for (int64_t waves = 1; waves <= MOST_WAVES; ++waves) {
    const int64_t wanted = std::clamp<int64_t>(waves * resident * OF_BLOCK / a.across / a.strips, 1, most);
    const int64_t rows = (all_rows + wanted - 1) / wanted, pieces = a.strips * ((all_rows + rows - 1) / rows);
    const int64_t blocks = (pieces + OF_BLOCK - 1) / OF_BLOCK;
    const int64_t cost = (a.across * blocks + resident - 1) / resident * (rows + kernel - 1 + START);
    if (cost < least) least = cost, a.rows = int(rows), parts = blocks;
  }
  return parts;
}

// Returns the blocks that share a channel, or 0 if this is too large.
template <bool CHANNELS_LAST>
int64_t share_out_long_strips(LongConv& a, const Conv2dShape& s, bool backward, const Gpu& gpu) {
  constexpr int OUTSIDE = 16;  // columns beside a picture, rows of a piece that ends later: distances are int
  const int kernel = s.x.kernel;
  const Conv2dShape::Strides strides = s.strides(s.y.size, s.x.size);
  const int64_t period = s.y.size + kernel / 2, next_picture = strides.batch - (period - 1) * strides.row;
  if ((s.x.size + OUTSIDE) * strides.column > INT32_MAX || strides.row > INT32_MAX) return 0;
  if (s.batch > 1 && std::abs(next_picture) > INT32_MAX) return 0;
  if (2 * s.batch * (period + OUTSIDE) > INT32_MAX) return 0;
  a.channels = int(s.channels), a.batch = int(s.batch), a.height = s.y.size, a.width = s.x.size, a.period = int(period);
  a.picture = strides.batch, a.channel = strides.channel;
  a.row = int(strides.row), a.column = int(strides.column), a.next_picture = int(next_picture);
  a.strips = int(blocks_for(a.width, LongShape<CHANNELS_LAST, true>::COLUMNS));
  a.across = int(CHANNELS_LAST ? blocks_for(a.channels, 32) : a.channels);
  const int64_t parts = backward ? cut_long_strips<CHANNELS_LAST, true>(a, kernel, gpu.processors)
                                 : cut_long_strips<CHANNELS_LAST, false>(a, kernel, gpu.processors);
  return parts > INT32_MAX / 32 || a.across * parts > INT32_MAX ? 0 : parts;
}

template <int K, bool CHANNELS_LAST, bool BACKWARD>
void launch_long_strips(const LongConv& a, int64_t parts, cudaStream_t stream) {
  constexpr int BYTES = long_shared_bytes<K, CHANNELS_LAST, BACKWARD>();
  static_assert(BYTES <= 64 * 1024, "a block may have that of every GPU");
  const auto kernel = long_strips<K, CHANNELS_LAST, BACKWARD>;
  if (BYTES > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
  launch_early(kernel, unsigned(a.across * parts), LongShape<CHANNELS_LAST, BACKWARD>::THREADS, BYTES, stream, a);
}

}  // namespace nerfkit
