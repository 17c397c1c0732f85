// SPDX-License-Identifier: Apache-2.0
// Square kernels of 3, 5 and 7 that leave height and width as they are. A lane goes down a strip of V columns, with the
// sums of the K rows of results that a row of the image adds to; NOTES.md has a drawing. Rows come through shared
// memory, prefetched several steps before their use: the bytes in flight are then many even where the sums of the
// weight's gradient leave registers for few warps. A warp has rows of its own and never waits for another.

#pragma once

#include <type_traits>

#include "common/async_copy.cuh"
#include "common/pdl.cuh"
#include "depthwise_conv2d/kernels.cuh"

namespace nerfkit {

enum class Layout { planes, channels_last };  // [B, C, H, W]; [B, H, W, C]

template <class T>
struct StripArgs : Conv2dArrays<T> {
  int channels, batch, height, width;
  int across;                    // blocks across the channels
  int rows;                      // of a strip
  Conv2dShape::Strides strides;  // of all arrays of images, in elements
};

// What a lane takes, and how many blocks a multiprocessor is to hold.
struct StripShape {
  int columns, channels, resident;
};

// measured: the fastest on an H200 of those whose sums and window fit the registers.
constexpr StripShape strip_shape(int k, int bytes, Layout layout, Pass pass) {
  const bool backward = pass == Pass::backward;
  if (k == 7) return {4, 1, backward ? 2 : 3};
  if (layout == Layout::planes && k == 5) return {4, 1, 3};
  if (layout == Layout::planes)
    return bytes == 2 ? StripShape{8, 1, backward ? 3 : 7} : StripShape{4, 1, backward ? 6 : 4};
  if (k == 3) return backward ? StripShape{4, 2, 3} : StripShape{8, 2, 4};
  return backward ? StripShape{6, 1, 3} : StripShape{bytes == 2 ? 8 : 6, 2, 2};
}

// Rows of the window in shared memory at a time, the slots of a ring: a multiple of the kernel's rows, so that indices
// of registers and slots are known when compiled. Few enough that L1, where neighbouring warps share rows, keeps some.
constexpr int ring_depth(int k, int bytes, Layout layout) {
  return k == 3 && !(layout == Layout::channels_last && bytes == 4) ? 6 : k;
}

// Rows of a strip: of the results, and which steps have a row of the window. Step i reads row first - K / 2 + i.
template <int K>
struct StripRows {
  int first, count, skipped, inside;

  template <class T>
  __device__ __forceinline__ StripRows(const StripArgs<T>& a, unsigned line, unsigned tiles_y) {
    const bool real = line / tiles_y < unsigned(a.batch);
    first = int(line % tiles_y) * a.rows;
    count = real ? min(a.rows, a.height - first) : 0;
    skipped = max(0, K / 2 - first);
    inside = real ? min(first + count + K / 2, a.height) - max(0, first - K / 2) : 0;
  }
  __device__ __forceinline__ bool has(int step) const { return unsigned(step - skipped) < unsigned(inside); }
};

// How strips are shared between blocks.
struct StripGrid {
  int64_t across, shared;  // blocks for all channels; blocks for a channel, each with a partial sum
  int rows;                // of a strip
};

// The height of a strip that needs the fewest steps, one wave of blocks after another.
inline StripGrid strip_grid(const Conv2dShape& s, int bytes, Pass pass, int processors) {
  constexpr int MOST_STRIPS = 64, START = 5;  // below each other; steps' worth of waiting when a strip begins
  const int K = s.x.kernel;
  const Layout layout = s.channels_last ? Layout::channels_last : Layout::planes;
  const StripShape shape = strip_shape(K, bytes, layout, pass);
  const int64_t columns = s.batch * blocks_for(s.x.size, shape.columns);
  const int64_t resident = int64_t(processors) * shape.resident;
  StripGrid best{s.channels_last ? blocks_for(s.channels, 32 * shape.channels) : s.channels, 0, 0};
  int64_t least = INT64_MAX;
  for (int strips = 1; strips == 1 || (strips <= MOST_STRIPS && strips * 2 * K <= s.y.size); ++strips) {
    const int rows = (s.y.size + strips - 1) / strips;
    const int64_t shared = blocks_for(columns * blocks_for(s.y.size, rows), s.channels_last ? WARPS_2D : THREADS_2D);
    const int64_t waves = (best.across * shared + resident - 1) / resident;
    const int64_t cost = waves * (rows + K - 1 + START);
    if (cost < least) least = cost, best.shared = shared, best.rows = rows;
  }
  return best;
}

// ---- planes: lanes are neighbouring columns, then the next strip of the channel; a block has one channel ----

// Value i of a lane's window: its own and, HALF to either side, what the lanes beside it have.
template <int HALF, class A, int V>
__device__ __forceinline__ A of_neighbours(const A (&before)[V], const A (&own)[V], const A (&after)[V], int i) {
  return i < HALF ? before[(i + V - HALF) % V] : i < HALF + V ? own[(i - HALF + V) % V] : after[(i - HALF) % V];
}

// Its methods that take a slot are called once a step, in order.
template <class T, int K, Pass PASS>
struct PlaneStrip {
  static constexpr bool BACKWARD = PASS == Pass::backward;
  static constexpr StripShape SHAPE = strip_shape(K, sizeof(T), Layout::planes, PASS);
  static constexpr int V = SHAPE.columns, CH = 1, N = V + K - 1, BYTES = V * sizeof(T), ZERO = 34;
  struct alignas(16) RingSlot {
    T window[36][V];  // of lane i at 1 + i, its neighbours' beside it; at ZERO what is outside the image
    T center[BACKWARD ? 32 : 1][V];
  };
  const T* in;  // [B, C, H, W], at this lane's columns of the next row of the window
  const T* x;   // [B, C, H, W], likewise of the results
  T* out;       // [B, C, H, W], at this lane's results of the next row
  int left, right, edge;
  int64_t row;

  static __device__ __forceinline__ int channel(int group) { return group; }

  // Which line of strips, over all images; x0: the strip's first column.
  static __device__ __forceinline__ unsigned line(const StripArgs<T>& a, int part, int& x0) {
    const unsigned tiles_x = a.width / V, at = unsigned(part) * THREADS_2D + threadIdx.x;
    x0 = int(at % tiles_x) * V;
    return at / tiles_x;
  }

  // base: the offset of the strip's first result, of channel 0.
  __device__ __forceinline__ PlaneStrip(const StripArgs<T>& a, int64_t base, int x0, int c) {
    const int lane = threadIdx.x % 32;
    const bool last = x0 + V == a.width;
    left = x0 ? lane : ZERO, right = last ? ZERO : lane + 2;
    edge = lane == 0 && x0 ? -1 : lane == 31 && !last ? 1 : 0;  // a neighbour that another warp has
    base += c * a.strides.channel, row = a.strides.row;
    in = a.in + base - K / 2 * row, x = a.x + base, out = a.out + base - (K - 1) * row;
  }

  __device__ __forceinline__ void clear(RingSlot& slot) const {
    if (threadIdx.x % 32 < V) slot.window[ZERO][threadIdx.x % 32] = T(0.f);
  }

  __device__ __forceinline__ void prefetch(RingSlot& slot, bool inside, bool with_x) {
    const int lane = threadIdx.x % 32;
    cp_async_zfill<BYTES>(slot.window[1 + lane], in, inside);
    if (edge) cp_async_zfill<BYTES>(slot.window[1 + lane + edge], in + edge * V, inside);
    in += row;
    if (!BACKWARD) return;
    cp_async_zfill<BYTES>(slot.center[lane], x, with_x);
    x += row;
  }

  __device__ __forceinline__ void read(const RingSlot& slot, acc_t<T> (&window)[N][CH]) const {
    acc_t<T> before[V], own[V], after[V];
    load(slot.window[left], before);
    load(slot.window[1 + threadIdx.x % 32], own);
    load(slot.window[right], after);
#pragma unroll
    for (int i = 0; i < N; ++i) window[i][0] = of_neighbours<K / 2>(before, own, after, i);
  }

  __device__ __forceinline__ void read_center(const RingSlot& slot, acc_t<T> (&center)[V][CH]) const {
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
  static __device__ __forceinline__ void write_sums(acc_t<T> (&sums)[CH][SUMS], void* memory, const StripArgs<T>& a,
                                                    int part, int c) {
    auto& warp_sums = *reinterpret_cast<WarpSums<acc_t<T>, SUMS>*>(memory);
    write_partials(sums[0], warp_sums, a.partials + int64_t(part) * a.channels * SUMS, SUMS, SUMS, c, 1, 1, a.channels);
  }
};

// ---- channels last: the lanes of a warp are neighbouring channels, and each warp has a strip of its own ----

// COLUMNS pixels of a row, of the channels of a warp, copied 16 bytes at a time. Of those, the ITEMS of a row are
// shared between the lanes in TURNS.
template <class T, int COLUMNS, int CH>
struct alignas(16) Pixels {
  static constexpr int CHUNKS = 32 * CH / VECTOR_WIDTH<T>, ITEMS = COLUMNS * CHUNKS, TURNS = (ITEMS + 31) / 32;
  T value[COLUMNS][32 * CH];

  static __device__ __forceinline__ int pixel() { return threadIdx.x % 32 / CHUNKS; }  // of this lane, first turn
  static __device__ __forceinline__ int chunk() { return threadIdx.x % 32 % CHUNKS * VECTOR_WIDTH<T>; }

  // A bit for each of this lane's turns, of those inside the image; `first` is the column of the first pixel.
  static __device__ __forceinline__ unsigned turns(int first, int width, int channels) {
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < TURNS; ++k) {
      const int at = pixel() + k * 32 / CHUNKS;
      if (at < COLUMNS && chunk() < channels && unsigned(first + at) < unsigned(width)) bits |= 1u << k;
    }
    return bits;
  }

  // From a row [W, C] at this lane's first pixel, `column` elements from one to the next. Zeros if not `inside`.
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

// Its methods that take a slot are called once a step, in order.
template <class T, int K, Pass PASS>
struct ChannelsStrip {
  static constexpr bool BACKWARD = PASS == Pass::backward;
  static constexpr StripShape SHAPE = strip_shape(K, sizeof(T), Layout::channels_last, PASS);
  static constexpr int V = SHAPE.columns, CH = SHAPE.channels, N = V + K - 1;
  using Window = Pixels<T, N, CH>;
  using Center = Pixels<T, BACKWARD ? V : 1, CH>;
  struct RingSlot {
    Window window;
    Center center;  // of x, that the window is multiplied with
  };
  const T* in;  // [B, H, W, C], at this lane's pixel of the next row of the window
  const T* x;   // [B, H, W, C], likewise of the results
  T* out;       // [B, H, W, C], at this lane's first result of the next row
  int column;
  unsigned window_turns, center_turns, columns;  // columns: a bit for each result that is inside
  int64_t row;

  static __device__ __forceinline__ int channel(int group) { return (group * 32 + threadIdx.x % 32) * CH; }

  // Which line of strips, over all images; x0: the strip's first column.
  static __device__ __forceinline__ unsigned line(const StripArgs<T>& a, int part, int& x0) {
    const unsigned tiles_x = (a.width + V - 1) / V, strip = unsigned(part) * WARPS_2D + threadIdx.x / 32;
    x0 = int(strip % tiles_x) * V;
    return strip / tiles_x;
  }

  // base: the offset of the strip's first result, of channel 0.
  __device__ __forceinline__ ChannelsStrip(const StripArgs<T>& a, int64_t base, int x0, int group) {
    const int first = group * 32 * CH, channels = a.channels - first;
    column = int(a.strides.column), row = a.strides.row;
    window_turns = Window::turns(x0 - K / 2, a.width, channels), center_turns = Center::turns(x0, a.width, channels);
    columns = channel(group) < a.channels ? (1u << min(V, a.width - x0)) - 1 : 0;
    base += first;
    in = a.in + base + (Window::pixel() - K / 2) * column + Window::chunk() - K / 2 * row;
    x = a.x + base + Center::pixel() * column + Center::chunk();
    out = a.out + base + threadIdx.x % 32 * CH - (K - 1) * row;
  }

  __device__ __forceinline__ void clear(RingSlot& slot) const {
    for (int i = threadIdx.x % 32; i < int(sizeof(RingSlot) / 16); i += 32) reinterpret_cast<uint4*>(&slot)[i] = {};
  }

  __device__ __forceinline__ void prefetch(RingSlot& slot, bool inside, bool with_x) {
    slot.window.copy(in, window_turns, column, inside);
    in += row;
    if (!BACKWARD) return;
    slot.center.copy(x, center_turns, column, with_x);
    x += row;
  }

  __device__ __forceinline__ void read(const RingSlot& slot, acc_t<T> (&window)[N][CH]) const {
    slot.window.read(window);
  }

  __device__ __forceinline__ void read_center(const RingSlot& slot, acc_t<T> (&center)[V][CH]) const {
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
  static __device__ __forceinline__ void write_sums(acc_t<T> (&sums)[CH][SUMS], void* memory, const StripArgs<T>& a,
                                                    int part, int group) {
    auto& warp_sums = *reinterpret_cast<WarpSums<acc_t<T>, SUMS>*>(memory);
#pragma unroll
    for (int ch = 0; ch < CH; ++ch)
      write_partials(sums[ch], warp_sums, a.partials + int64_t(part) * a.channels * SUMS, SUMS, SUMS,
                     group * 32 * CH + ch, 32, CH, a.channels);
  }
};

// ---- the kernel ----

template <class T, int K, Layout LAYOUT, Pass PASS>
using Strip = std::conditional_t<LAYOUT == Layout::planes, PlaneStrip<T, K, PASS>, ChannelsStrip<T, K, PASS>>;

// Copies the weights [32, K * K] of a block's channels to shared memory and returns those of this lane's channel: if a
// lane loaded its own from global memory, each load would touch 32 cache lines.
template <int TAPS, class T>
__device__ __forceinline__ const T* share_weights(const StripArgs<T>& a, int group, T* shared) {
  const int64_t first = int64_t(group) * 32 * TAPS, end = int64_t(a.channels) * TAPS;
  for (int i = threadIdx.x; i < 32 * TAPS; i += THREADS_2D) shared[i] = first + i < end ? a.weight[first + i] : T(0.f);
  __syncthreads();
  return shared + threadIdx.x % 32 * TAPS;
}

template <class T, int K, Layout LAYOUT, Pass PASS>
__global__ void __launch_bounds__(THREADS_2D, strip_shape(K, sizeof(T), LAYOUT, PASS).resident)
    depthwise_conv2d_strips(const StripArgs<T> a) {
  using A = acc_t<T>;
  using S = Strip<T, K, LAYOUT, PASS>;
  constexpr bool BACKWARD = PASS == Pass::backward, SHARE_WEIGHTS = LAYOUT == Layout::channels_last && K == 7;
  constexpr int V = S::V, CH = S::CH, N = S::N, TAPS = K * K, HALF = K / 2, DEPTH = ring_depth(K, sizeof(T), LAYOUT);
  if (BACKWARD) pdl_trigger();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& slots = reinterpret_cast<typename S::RingSlot(*)[DEPTH]>(memory)[threadIdx.x / 32];
  const int part = blockIdx.x / a.across, group = blockIdx.x % a.across, c = S::channel(group);
  const bool real = c < a.channels, to_sums = BACKWARD && a.partials;
  const unsigned tiles_y = (a.height + a.rows - 1) / a.rows;
  int x0;
  const unsigned line = S::line(a, part, x0);
  const StripRows<K> rows(a, line, tiles_y);
  S strip(a, line / tiles_y * a.strides.batch + rows.first * a.strides.row + x0 * a.strides.column, x0, group);
  pdl_wait();
  A w[CH][TAPS], start[CH] = {}, sums[CH][TAPS + 1] = {};
  const auto read_weights = [](const T* weight, A(&to)[TAPS]) {  // flipped backward
#pragma unroll
    for (int k = 0; k < TAPS; ++k) to[BACKWARD ? TAPS - 1 - k : k] = A(weight[k]);
  };
  if constexpr (SHARE_WEIGHTS) {
    static_assert(CH == 1 && sizeof(slots) * WARPS_2D >= 32 * TAPS * sizeof(T));
    read_weights(share_weights<TAPS>(a, group, reinterpret_cast<T*>(memory)), w[0]);
    __syncthreads();  // the memory is now for the rows
  }
  for (int i = 0; i < DEPTH; ++i) strip.clear(slots[i]);
  __syncwarp();

  const int steps = a.rows + K - 1, to_read = to_sums ? rows.count : 0, to_write = a.out ? rows.count : 0;
  const auto prefetch = [&](int step, typename S::RingSlot& slot) {
    strip.prefetch(slot, rows.has(step), step < to_read);
    cp_async_commit();
  };
#pragma unroll
  for (int i = 0; i < DEPTH - 1; ++i) prefetch(i, slots[i]);

#pragma unroll
  for (int ch = 0; ch < CH; ++ch) {
    if (!SHARE_WEIGHTS) read_weights(a.weight + int64_t(real ? c + ch : 0) * TAPS, w[ch]);
    if (!BACKWARD && a.bias && real) start[ch] = A(a.bias[c + ch]);
  }

  // A step adds to the results of rows step - u; result row i has its accumulators, and its x, at index i % K.
  A sum[K][V][CH] = {}, center[K][V][CH] = {};
  for (int step0 = 0; step0 < steps; step0 += DEPTH) {
#pragma unroll
    for (int j = 0; j < DEPTH; ++j) {
      const int step = step0 + j;
      if (step >= steps) break;
      cp_async_wait<DEPTH - 2>();
      __syncwarp();  // all lanes' copies have arrived, and all have read the slot that the next copies go to
      prefetch(step + DEPTH - 1, slots[(j + DEPTH - 1) % DEPTH]);
      A window[N][CH];
      if (BACKWARD) strip.read_center(slots[j], center[j % K]);
      strip.read(slots[j], window);
      if (BACKWARD && unsigned(step - HALF) < unsigned(rows.count)) {
#pragma unroll
        for (int i = 0; i < V; ++i)
#pragma unroll
          for (int ch = 0; ch < CH; ++ch) sums[ch][TAPS] += window[HALF + i][ch];  // zero outside the image
      }
      // Results of neighbouring strips too: a branch around their products costs more than they do.
#pragma unroll
      for (int u = 0; u < K; ++u) {
        const int open = (j + DEPTH - u) % K;
#pragma unroll
        for (int v = 0; v < K; ++v)
#pragma unroll
          for (int i = 0; i < V; ++i)
#pragma unroll
            for (int ch = 0; ch < CH; ++ch) {
              sum[open][i][ch] = w[ch][u * K + v] * window[v + i][ch] + (u || v ? sum[open][i][ch] : start[ch]);
              if (BACKWARD) sums[ch][u * K + v] += center[open][i][ch] * window[v + i][ch];
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
    S::write_sums(flipped, memory, a, part, group);
  }
}

// False if a block of this GPU has too little shared memory.
template <class T, int K, Layout LAYOUT, Pass PASS>
bool launch_strips(const StripArgs<T>& a, const StripGrid& grid, const Gpu& gpu, cudaStream_t stream) {
  constexpr bool BACKWARD = PASS == Pass::backward;
  using RingSlot = typename Strip<T, K, LAYOUT, PASS>::RingSlot;
  constexpr size_t RING = sizeof(RingSlot) * ring_depth(K, sizeof(T), LAYOUT) * WARPS_2D;
  constexpr size_t SUMS = BACKWARD ? sizeof(WarpSums<acc_t<T>, K * K + 1>) : 0, SHARED = std::max(RING, SUMS);
  if (SHARED > size_t(gpu.shared_bytes)) return false;
  const auto kernel = depthwise_conv2d_strips<T, K, LAYOUT, PASS>;
  if (SHARED > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(SHARED));
  const unsigned blocks = unsigned(grid.across * grid.shared);
  if (BACKWARD && K == 3)  // measured: launched early, it took up to a tenth longer
    kernel<<<blocks, THREADS_2D, SHARED, stream>>>(a);
  else
    pdl_launch(kernel, blocks, THREADS_2D, SHARED, stream, a);
  return true;
}

// Whether the kernels are made for a case: K of 3, 5 or 7, each output in the middle of its window.
inline bool fits_strips(const Conv2dShape& s, int bytes, Pass pass) {
  constexpr int64_t MOST = INT32_MAX / 2;  // so that rows and columns somewhat outside the image are int too
  constexpr int OUTSIDE = 16;              // columns; distances along a row are int
  const int k = s.x.kernel;
  for (const Axis& axis : {s.y, s.x})
    if (axis.kernel != k || axis.stride != 1 || axis.dilation != 1 || axis.padding != k / 2) return false;
  if ((k != 3 && k != 5 && k != 7) || bytes > 4 || s.batch * s.channels * s.y.size * s.x.size == 0) return false;
  if (std::max({s.batch, s.channels, int64_t(s.y.size), int64_t(s.x.size)}) > MOST) return false;
  if (!s.channels_last) return s.x.size % strip_shape(k, bytes, Layout::planes, pass).columns == 0;
  return s.channels * bytes % 16 == 0 && (s.x.size + OUTSIDE) * s.channels <= INT32_MAX;
}

template <class T, Pass PASS>
int64_t try_launch_strips(const Conv2dArrays<T>& arrays, const Conv2dShape& s, cudaStream_t stream) {
  if (!fits_strips(s, sizeof(T), PASS)) return 0;
  if (!aligned(arrays.in, 16) || !aligned(arrays.out, 16) || !aligned(arrays.x, 16)) return 0;
  const Gpu gpu = current_gpu();
  const StripGrid grid = strip_grid(s, sizeof(T), PASS, gpu.processors);
  if (grid.across * grid.shared > INT32_MAX || grid.shared > INT32_MAX / THREADS_2D) return 0;
  const StripArgs<T> a{arrays,   int(s.channels),  int(s.batch), s.y.size,
                       s.x.size, int(grid.across), grid.rows,    s.strides(s.y.size, s.x.size)};
  const auto launch = [&](auto side) {
    constexpr int K = decltype(side)::value;
    return s.channels_last ? launch_strips<T, K, Layout::channels_last, PASS>(a, grid, gpu, stream)
                           : launch_strips<T, K, Layout::planes, PASS>(a, grid, gpu, stream);
  };
  const bool taken = s.x.kernel == 3   ? launch(std::integral_constant<int, 3>())
                     : s.x.kernel == 5 ? launch(std::integral_constant<int, 5>())
                                       : launch(std::integral_constant<int, 7>());
  return taken ? grid.shared : 0;
}

}  // namespace nerfkit
