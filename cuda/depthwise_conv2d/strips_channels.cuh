// SPDX-License-Identifier: Apache-2.0
// A strip channels last: the lanes of a warp are neighbouring channels, and each warp has a strip of its own.

#pragma once

#include "depthwise_conv2d/strips.cuh"

namespace nerfkit {

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
  struct Slot {
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

  __device__ __forceinline__ void clear(Slot& slot) const {
    for (int i = threadIdx.x % 32; i < int(sizeof(Slot) / 16); i += 32) reinterpret_cast<uint4*>(&slot)[i] = {};
  }

  __device__ __forceinline__ void prefetch(Slot& slot, bool inside, bool with_x) {
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
  static __device__ __forceinline__ void write_sums(acc_t<T> (&sums)[CH][SUMS], void* memory, const StripArgs<T>& a,
                                                    int part, int group) {
    auto& warp_sums = *reinterpret_cast<WarpSums<acc_t<T>, SUMS>*>(memory);
#pragma unroll
    for (int ch = 0; ch < CH; ++ch)
      write_partials(sums[ch], warp_sums, a.partials, part, group * 32 * CH + ch, 32, CH, a.channels);
  }
};

}  // namespace nerfkit
