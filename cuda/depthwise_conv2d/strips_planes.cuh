// SPDX-License-Identifier: Apache-2.0
// A strip of planes: lanes are neighbouring columns, then the next strip of the channel; a block has one channel.

#pragma once

#include "depthwise_conv2d/strips.cuh"

namespace nerfkit {

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
  struct alignas(16) Slot {
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

  __device__ __forceinline__ void clear(Slot& slot) const {
    if (threadIdx.x % 32 < V) slot.window[ZERO][threadIdx.x % 32] = T(0.f);
  }

  __device__ __forceinline__ void prefetch(Slot& slot, bool inside, bool with_x) {
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
  static __device__ __forceinline__ void write_sums(acc_t<T> (&sums)[CH][SUMS], void* memory, const StripArgs<T>& a,
                                                    int part, int c) {
    auto& warp_sums = *reinterpret_cast<WarpSums<acc_t<T>, SUMS>*>(memory);
    write_partials(sums[0], warp_sums, a.partials, part, c, 1, 1, a.channels);
  }
};

}  // namespace nerfkit
