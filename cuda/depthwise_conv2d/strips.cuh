// SPDX-License-Identifier: Apache-2.0
// A lane walks down a strip of V columns, with the sums of the K rows of results that a row of the picture adds to.
// Rows come through shared memory, asked for several steps before their use: the bytes on their way are then many even
// where the sums of the weight's gradient leave registers for few warps. A warp has rows of its own and never waits for
// another. Lanes are neighbouring columns or, channels last, neighbouring channels.

#pragma once

#include <type_traits>

#include "common/async_copy.cuh"
#include "depthwise_conv2d/block.cuh"

namespace nerfkit {

// What a lane takes, and how many blocks a multiprocessor is to hold: the fastest of those measured.
struct WalkShape {
  int columns, channels, resident;
};

constexpr WalkShape walk_shape(int k, int bytes, bool channels_last, bool backward) {
  if (!channels_last && bytes == 2) return {8, 1, k == 3 ? (backward ? 3 : 7) : backward ? 2 : 4};
  if (!channels_last) return {4, 1, k == 5 ? 3 : backward ? 6 : 4};
  if (k == 3) return backward ? WalkShape{4, 2, 3} : WalkShape{8, 2, 4};
  return backward ? WalkShape{6, 1, 3} : WalkShape{bytes == 2 ? 8 : 6, 2, 2};
}

// Steps in shared memory: a multiple of the kernel's rows, so that places in registers and in memory are known.
// Few enough that the blocks leave a part of it to the cache, where neighbouring warps meet.
constexpr int walk_depth(int k, int bytes, bool channels_last) {
  return k == 3 && !(channels_last && bytes == 4) ? 6 : k;
}

// Rows of a strip: of the results, and which steps have a row of the window. Step i looks at row first - K / 2 + i.
template <int K>
struct StripRows {
  int first, count, skipped, inside;

  template <class T>
  __device__ __forceinline__ StripRows(const Walk<T>& a, unsigned line, unsigned tiles_y) {
    const bool real = line / tiles_y < unsigned(a.batch);
    first = int(line % tiles_y) * a.rows;
    count = real ? min(a.rows, a.height - first) : 0;
    skipped = max(0, K / 2 - first);
    inside = real ? min(first + count + K / 2, a.height) - max(0, first - K / 2) : 0;
  }
  __device__ __forceinline__ bool has(int step) const { return unsigned(step - skipped) < unsigned(inside); }
};

// Channels last: COLUMNS pixels of a row, of the channels of a warp, copied 16 bytes at a time.
template <class T, int COLUMNS, int CH>
struct alignas(16) Pixels {
  static constexpr int CHUNKS = 32 * CH / VECTOR_WIDTH<T>, ITEMS = COLUMNS * CHUNKS, TURNS = (ITEMS + 31) / 32;
  T value[COLUMNS][32 * CH];

  static __device__ __forceinline__ int pixel() { return threadIdx.x % 32 / CHUNKS; }  // of this lane, first turn
  static __device__ __forceinline__ int chunk() { return threadIdx.x % 32 % CHUNKS * VECTOR_WIDTH<T>; }

  // A bit for each of this lane's turns, of those inside the picture; `first` is the column of the first pixel.
  static __device__ __forceinline__ unsigned turns(int first, int width, int channels) {
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < TURNS; ++k) {
      const int at = pixel() + k * 32 / CHUNKS;
      if (at < COLUMNS && chunk() < channels && unsigned(first + at) < unsigned(width)) bits |= 1u << k;
    }
    return bits;
  }

  // Zeros if not `inside`.
  __device__ __forceinline__ void copy(const T* from, unsigned turns, int column, bool inside) {
#pragma unroll
    for (int k = 0; k < TURNS; ++k)
      if (turns >> k & 1)
        cp_async_zfill<16>(&value[0][(threadIdx.x % 32 + 32 * k) * VECTOR_WIDTH<T>], from + k * (32 / CHUNKS) * column,
                           inside);
  }

  __device__ __forceinline__ void read(acc_t<T> (&to)[COLUMNS][CH]) const {
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) load<T, CH>(&value[i][threadIdx.x % 32 * CH], to[i]);
  }
};

// A strip's methods are called once a step, in order.
template <class T, int K, bool BACKWARD>
struct ChannelsStrip {
  static constexpr WalkShape SHAPE = walk_shape(K, sizeof(T), true, BACKWARD);
  static constexpr int V = SHAPE.columns, CH = SHAPE.channels, N = V + K - 1;
  using Window = Pixels<T, N, CH>;
  using Center = Pixels<T, BACKWARD ? V : 1, CH>;
  struct Slot {
    Window window;
    Center center;
  };
  const T *in, *x;
  T* out;
  int column;
  unsigned window_turns, center_turns, columns;  // columns: a bit for each result that is inside
  int64_t row;

  static __device__ __forceinline__ int channel(int group) { return (group * 32 + threadIdx.x % 32) * CH; }

  static __device__ __forceinline__ unsigned line(const Walk<T>& a, int part, int& x0) {
    const unsigned tiles_x = (a.width + V - 1) / V, strip = unsigned(part) * WARPS_2D + threadIdx.x / 32;
    x0 = int(strip % tiles_x) * V;
    return strip / tiles_x;
  }

  __device__ __forceinline__ ChannelsStrip(const Walk<T>& a, int64_t base, int x0, int group) {
    const int first = group * 32 * CH, channels = a.channels - first;
    column = int(a.strides.column), row = a.strides.row;
    window_turns = Window::turns(x0 - K / 2, a.width, channels), center_turns = Center::turns(x0, a.width, channels);
    columns = channel(group) < a.channels ? (1u << min(V, a.width - x0)) - 1 : 0;
    base += first;
    in = a.in + base + (Window::pixel() - K / 2) * column + Window::chunk() - K / 2 * row;
    x = a.x + base + Center::pixel() * column + Center::chunk();
    out = a.out + base + threadIdx.x % 32 * CH - (K - 1) * row;
  }

  __device__ __forceinline__ void clear(Slot& slot) const {
    for (int i = threadIdx.x % 32; i < int(sizeof(Slot) / 16); i += 32) reinterpret_cast<uint4*>(&slot)[i] = {};
  }

  __device__ __forceinline__ void fetch(Slot& slot, bool inside, bool with_x) {
    slot.window.copy(in, window_turns, column, inside);
    in += row;
    if (!BACKWARD) return;
    slot.center.copy(x, center_turns, column, with_x);
    x += row;
  }

  __device__ __forceinline__ void read(const Slot& slot, acc_t<T> (&window)[N][CH]) const { slot.window.read(window); }

  __device__ __forceinline__ void read_center(const Slot& slot, acc_t<T> (&center)[V][CH]) const {
    if constexpr (BACKWARD) slot.center.read(center);
  }

  __device__ __forceinline__ void write(bool wanted, const acc_t<T> (&from)[V][CH]) {
    if (wanted) {
#pragma unroll
      for (int i = 0; i < V; ++i)
        if (columns >> i & 1) store<T, CH>(out + i * column, from[i]);
    }
    out += row;
  }

  template <int SUMS>
  static __device__ __forceinline__ void add_up(acc_t<T> (&sums)[CH][SUMS], void* memory, const Walk<T>& a, int part,
                                                int group) {
    auto& of_warp = *reinterpret_cast<WarpSums<acc_t<T>, SUMS>*>(memory);
#pragma unroll
    for (int ch = 0; ch < CH; ++ch)
      write_partials(sums[ch], of_warp, a.partials, part, group * 32 * CH + ch, 32, CH, a.channels);
  }
};

// Planes: lanes take neighbouring columns, then the next strip of the channel; a block has one channel.
template <class T, int K, bool BACKWARD>
struct ColumnsStrip {
  static constexpr WalkShape SHAPE = walk_shape(K, sizeof(T), false, BACKWARD);
  static constexpr int V = SHAPE.columns, CH = 1, N = V + K - 1, BYTES = V * sizeof(T), ZERO = 34;
  struct alignas(16) Slot {
    T window[36][V];  // of lane i at 1 + i, its neighbours' beside it; at ZERO what is outside the picture
    T center[BACKWARD ? 32 : 1][V];
  };
  const T *in, *x;
  T* out;
  int left, right, edge;
  int64_t row;

  static __device__ __forceinline__ int channel(int group) { return group; }

  static __device__ __forceinline__ unsigned line(const Walk<T>& a, int part, int& x0) {
    const unsigned tiles_x = a.width / V, at = unsigned(part) * THREADS_2D + threadIdx.x;
    x0 = int(at % tiles_x) * V;
    return at / tiles_x;
  }

  __device__ __forceinline__ ColumnsStrip(const Walk<T>& a, int64_t base, int x0, int c) {
    const int lane = threadIdx.x % 32;
    const bool last = x0 + V == a.width;
    left = x0 ? lane : ZERO, right = last ? ZERO : lane + 2;
    edge = lane == 0 && x0 ? -1 : lane == 31 && !last ? 1 : 0;  // a neighbour that another warp has
    base += c * a.strides.channel, row = a.strides.row;
    in = a.in + base - K / 2 * row, x = a.x + base, out = a.out + base - (K - 1) * row;
  }

  __device__ __forceinline__ void clear(Slot& slot) const {
    if (threadIdx.x % 32 < V) slot.window[ZERO][threadIdx.x % 32] = T(0.f);
  }

  __device__ __forceinline__ void fetch(Slot& slot, bool inside, bool with_x) {
    const int lane = threadIdx.x % 32;
    cp_async_zfill<BYTES>(slot.window[1 + lane], in, inside);
    if (edge) cp_async_zfill<BYTES>(slot.window[1 + lane + edge], in + edge * V, inside);
    in += row;
    if (!BACKWARD) return;
    cp_async_zfill<BYTES>(slot.center[lane], x, with_x);
    x += row;
  }

  __device__ __forceinline__ void read(const Slot& slot, acc_t<T> (&window)[N][CH]) const {
    acc_t<T> before[V], own[V], after[V];
    load(slot.window[left], before);
    load(slot.window[1 + threadIdx.x % 32], own);
    load(slot.window[right], after);
#pragma unroll
    for (int i = 0; i < N; ++i) window[i][0] = of_neighbours<K / 2>(before, own, after, i);
  }

  __device__ __forceinline__ void read_center(const Slot& slot, acc_t<T> (&center)[V][CH]) const {
    acc_t<T> values[V];
    load(slot.center[threadIdx.x % 32], values);
#pragma unroll
    for (int i = 0; i < V; ++i) center[i][0] = values[i];
  }

  __device__ __forceinline__ void write(bool wanted, const acc_t<T> (&from)[V][CH]) {
    acc_t<T> values[V];
#pragma unroll
    for (int i = 0; i < V; ++i) values[i] = from[i][0];
    if (wanted) store(out, values);
    out += row;
  }

  template <int SUMS>
  static __device__ __forceinline__ void add_up(acc_t<T> (&sums)[CH][SUMS], void* memory, const Walk<T>& a, int part,
                                                int c) {
    write_partials(sums[0], *reinterpret_cast<WarpSums<acc_t<T>, SUMS>*>(memory), a.partials, part, c, 1, 1,
                   a.channels);
  }
};

template <class T, int K, bool CHANNELS_LAST, bool BACKWARD>
using WalkStrip = std::conditional_t<CHANNELS_LAST, ChannelsStrip<T, K, BACKWARD>, ColumnsStrip<T, K, BACKWARD>>;

template <class T, int K, bool CHANNELS_LAST, bool BACKWARD>
__global__ void __launch_bounds__(THREADS_2D, walk_shape(K, sizeof(T), CHANNELS_LAST, BACKWARD).resident)
    walk(const Walk<T> a) {
  using A = acc_t<T>;
  using Strip = WalkStrip<T, K, CHANNELS_LAST, BACKWARD>;
  constexpr int V = Strip::V, CH = Strip::CH, N = Strip::N, TAPS = K * K, HALF = K / 2;
  constexpr int DEPTH = walk_depth(K, sizeof(T), CHANNELS_LAST);
  if (BACKWARD) pdl_trigger();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& slots = reinterpret_cast<typename Strip::Slot(*)[DEPTH]>(memory)[threadIdx.x / 32];
  const int part = blockIdx.x / a.across, group = blockIdx.x % a.across, c = Strip::channel(group);
  const bool real = c < a.channels, to_sums = BACKWARD && a.partials;
  const unsigned tiles_y = (a.height + a.rows - 1) / a.rows;
  int x0;
  const unsigned line = Strip::line(a, part, x0);
  const StripRows<K> rows(a, line, tiles_y);
  Strip strip(a, line / tiles_y * a.strides.batch + rows.first * a.strides.row + x0 * a.strides.column, x0, group);
  pdl_wait();
  A w[CH][TAPS], start[CH] = {}, sums[CH][TAPS + 1] = {};
  const auto read_weights = [](const T* weight, A(&to)[TAPS]) {
#pragma unroll
    for (int k = 0; k < TAPS; ++k) to[BACKWARD ? TAPS - 1 - k : k] = A(weight[k]);
  };
  for (int i = 0; i < DEPTH; ++i) strip.clear(slots[i]);
  __syncwarp();

  const int steps = a.rows + K - 1, to_read = to_sums ? rows.count : 0, to_write = a.out ? rows.count : 0;
  const auto fetch = [&](int step, typename Strip::Slot& slot) {
    strip.fetch(slot, rows.has(step), step < to_read);
    cp_async_commit();
  };
#pragma unroll
  for (int i = 0; i < DEPTH - 1; ++i) fetch(i, slots[i]);

#pragma unroll
  for (int ch = 0; ch < CH; ++ch) {
    read_weights(a.weight + int64_t(real ? c + ch : 0) * TAPS, w[ch]);
    if (!BACKWARD && a.bias && real) start[ch] = A(a.bias[c + ch]);
  }

  // A step adds to the results of rows step - u; result row i keeps its sum, and its x, in place i % K.
  A sum[K][V][CH] = {}, center[K][V][CH] = {};
  for (int step0 = 0; step0 < steps; step0 += DEPTH) {
#pragma unroll
    for (int j = 0; j < DEPTH; ++j) {
      const int step = step0 + j;
      if (step >= steps) break;
      cp_async_wait<DEPTH - 2>();
      __syncwarp();  // all lanes' copies are there, and all have read the slot that the next copies go to
      fetch(step + DEPTH - 1, slots[(j + DEPTH - 1) % DEPTH]);
      A window[N][CH];
      if (BACKWARD) strip.read_center(slots[j], center[j % K]);
      strip.read(slots[j], window);
      if (BACKWARD && unsigned(step - HALF) < unsigned(rows.count)) {
#pragma unroll
        for (int i = 0; i < V; ++i)
#pragma unroll
          for (int ch = 0; ch < CH; ++ch) sums[ch][TAPS] += window[HALF + i][ch];  // zero outside the picture
      }
      // Results of neighbouring strips too: a branch around their products costs more than they do.
#pragma unroll
      for (int u = 0; u < K; ++u) {
        const int place = (j + DEPTH - u) % K;
#pragma unroll
        for (int v = 0; v < K; ++v)
#pragma unroll
          for (int i = 0; i < V; ++i)
#pragma unroll
            for (int ch = 0; ch < CH; ++ch) {
              sum[place][i][ch] = w[ch][u * K + v] * window[v + i][ch] + (u || v ? sum[place][i][ch] : start[ch]);
              if (BACKWARD) sums[ch][u * K + v] += center[place][i][ch] * window[v + i][ch];
            }
      }
      strip.write(unsigned(step - (K - 1)) < unsigned(to_write), sum[(j + 1) % K]);
    }
  }
  if constexpr (BACKWARD) {
    if (!to_sums) return;
    cp_async_wait<0>();  // the memory is now for the sums
    A flipped[CH][TAPS + 1];
#pragma unroll
    for (int ch = 0; ch < CH; ++ch)
#pragma unroll
      for (int k = 0; k <= TAPS; ++k) flipped[ch][k] = sums[ch][k < TAPS ? TAPS - 1 - k : TAPS];
    Strip::add_up(flipped, memory, a, part, group);
  }
}

// Blocks of a walk.
struct WalkGrid {
  int64_t across, shared;  // for all channels; for a channel, each with a sum of the weight's gradient
  int rows;                // of a strip
};

inline WalkGrid walk_grid(const Conv2dShape& s, int bytes, bool backward, int processors) {
  const int K = s.x.kernel;
  const WalkShape shape = walk_shape(K, bytes, s.channels_last, backward);
  const int64_t columns = s.batch * blocks_for(s.x.size, shape.columns),
                resident = int64_t(processors) * shape.resident;
  WalkGrid best{s.channels_last ? blocks_for(s.channels, 32 * shape.channels) : s.channels};
  // Full waves of short strips, or long ones: a strip begins with loads and the rows of its neighbours.
  int64_t least = INT64_MAX;
  for (int strips = 1; strips == 1 || (strips <= 64 && strips * 2 * K <= s.y.size); ++strips) {
    const int rows = (s.y.size + strips - 1) / strips;
    const int64_t shared = blocks_for(columns * blocks_for(s.y.size, rows), s.channels_last ? WARPS_2D : THREADS_2D);
    const int64_t cost = (best.across * shared + resident - 1) / resident * (rows + K + 4);
    if (cost < least) least = cost, best.shared = shared, best.rows = rows;
  }
  return best;
}

}  // namespace nerfkit
