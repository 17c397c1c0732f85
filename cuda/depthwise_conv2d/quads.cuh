// SPDX-License-Identifier: Apache-2.0
// Channels last, with a stride along the rows, for kernels of 2 x 2, 3 x 3, 5 x 5, 7 x 7: the convolution. A thread
// takes 4 neighbouring channels of some outputs of a row, so that what it reads and writes at once are 8 or 16 bytes,
// and its inputs are converted once for all taps of a row. Neighbouring threads take neighbouring channels, as many as
// there are, then the row below: the rows that both read come from the cache.

#pragma once

#include "depthwise_conv2d/generic.cuh"

namespace nerfkit {

constexpr int QUAD = 4;                              // channels of a thread
constexpr int QUAD_OUTPUTS = 4;                      // of a thread, neighbours in a row, where there are many
constexpr int MOST_QUADS = 16;                       // of a block
constexpr int QUAD_PITCH = (MOST_QUADS + 1) * QUAD;  // of a tap's weights, in different banks than those of the next

template <class T>
struct QuadConv {
  const T* in;
  const T* weight;
  const T* bias;
  T* out;
  Axis rows, columns;
  Conv2dShape::Strides from, to;
  int channels, quads, groups;  // quads of a block; groups of them across the channels
  int width, items;             // tiles beside each other; tiles of a block
  unsigned tiles;               // of all pictures, those below each other first
  FastDivide by_groups, by_quads, by_height, by_width;
};

// The weights of a block's channels, and their bias.
template <int K>
struct alignas(16) QuadTaps {
  float of[K * K + 1][QUAD_PITCH];

  template <class T>
  __device__ __forceinline__ void read(const QuadConv<T>& a, int first, int channels) {
    const T* weight = a.weight + int64_t(first) * (K * K);
    for (int i = threadIdx.x; i < channels * K * K; i += THREADS_2D) of[i % (K * K)][i / (K * K)] = float(weight[i]);
    static_assert(MOST_QUADS * QUAD <= THREADS_2D);
    if (int(threadIdx.x) < channels) of[K * K][threadIdx.x] = a.bias ? float(a.bias[first + threadIdx.x]) : 0.f;
    __syncthreads();
  }
};

// Blocks that a multiprocessor is to hold at a time: a row of inputs then fits into registers.
template <class T, int K>
constexpr int RESIDENT_QUADS = sizeof(T) == 4                       ? 5
                               : std::is_same_v<T, __half> && K < 7 ? 7
                                                                    : 6;

// OUTPUTS: of a thread, neighbours in a row. STRIDE: along the row, so that neighbours share inputs; 0 if it is known
// at run time only, and they share none.
template <class T, int K, int STRIDE, int OUTPUTS>
__global__ void __launch_bounds__(THREADS_2D, RESIDENT_QUADS<T, K>) quads_forward(const QuadConv<T> a) {
  constexpr int N = STRIDE ? (OUTPUTS - 1) * STRIDE + K : OUTPUTS * K;  // inputs of a row
  using Words = Vec<unsigned, QUAD * sizeof(T) / 4>;
  __shared__ QuadTaps<K> taps;
  const int part = int(a.by_groups(blockIdx.x)), first = int(blockIdx.x - part * a.groups) * a.quads * QUAD;
  const int channels = min(a.quads * QUAD, a.channels - first);
  taps.read(a, first, channels);
  const int item = int(a.by_quads(threadIdx.x)), channel = (int(threadIdx.x) - item * a.quads) * QUAD;
  const unsigned tile = unsigned(part) * a.items + item;
  if (item >= a.items || channel >= channels || tile >= a.tiles) return;
  const unsigned line = a.by_height(tile), picture = a.by_width(line);
  const int y = int(tile - line * a.rows.out_size), x = int(line - picture * a.width) * OUTPUTS;
  const int top = y * a.rows.stride - a.rows.padding, left = x * a.columns.stride - a.columns.padding;
  const auto place = [&](int i) { return STRIDE ? i : i / K * a.columns.stride + i % K * a.columns.dilation; };
  unsigned inside = 0;  // a bit for each of the inputs
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (unsigned(left + place(i)) < unsigned(a.columns.size)) inside |= 1u << i;
  // From an input to the next; without a STRIDE, after an output's last one to the next output's first.
  const int64_t next = STRIDE ? a.from.column : a.from.column * a.columns.dilation;
  const int64_t other = a.from.column * (a.columns.stride - (K - 1) * a.columns.dilation);
  const T* in = a.in + picture * a.from.batch + left * a.from.column + first + channel;
  float sum[OUTPUTS][QUAD];
#pragma unroll
  for (int q = 0; q < OUTPUTS; ++q) load(&taps.of[K * K][channel], sum[q]);
#pragma unroll
  for (int u = 0; u < K; ++u) {
    const int row = top + u * a.rows.dilation;
    if (unsigned(row) >= unsigned(a.rows.size)) continue;
    const T* from = in + row * a.from.row;
    Words values[N] = {};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (inside >> i & 1) values[i] = *reinterpret_cast<const Words*>(from);
      from += STRIDE || i % K < K - 1 ? next : other;
    }
#pragma unroll
    for (int v = 0; v < K; ++v) {
      float weight[QUAD];
      load(&taps.of[u * K + v][channel], weight);
#pragma unroll
      for (int q = 0; q < OUTPUTS; ++q) {
        const auto& own = reinterpret_cast<const Vec<T, QUAD>&>(values[STRIDE ? q * STRIDE + v : q * K + v]);
#pragma unroll
        for (int c = 0; c < QUAD; ++c) sum[q][c] += weight[c] * float(own.v[c]);
      }
    }
  }
  T* out = a.out + picture * a.to.batch + y * a.to.row + x * a.to.column + first + channel;
#pragma unroll
  for (int q = 0; q < OUTPUTS; ++q)
    if (x + q < a.columns.out_size) store<T, QUAD>(out + q * a.to.column, sum[q]);
}

// Whether outputs that are neighbours in a row share inputs in the way that the kernels are made for.
inline bool by_two(const Conv2dShape& s) { return s.x.stride == 2 && s.x.dilation == 1; }

// Whether this is for threads of 4 channels; `bytes` are those of an element.
inline bool takes_quads(const Conv2dShape& s, int bytes) {
  const int k = s.x.kernel;
  const bool taken = k == 2 || k == 3 || ((k == 5 || k == 7) && by_two(s));
  return taken && s.y.kernel == k && s.x.stride > 1 && s.channels_last && s.channels % QUAD == 0 && any_fits(s, bytes);
}

// False if there is nothing to do, or too much.
template <class T>
bool share_out_quads(QuadConv<T>& a, const Conv2dShape& s, int outputs) {
  a.rows = s.y, a.columns = s.x, a.channels = int(s.channels);
  a.from = s.strides(s.y.size, s.x.size), a.to = s.strides(s.y.out_size, s.x.out_size);
  const int quads = a.channels / QUAD;
  a.groups = int(blocks_for(quads, MOST_QUADS)), a.quads = int(blocks_for(quads, a.groups)),
  a.items = THREADS_2D / a.quads;
  a.width = int(blocks_for(s.x.out_size, outputs));
  const int64_t tiles = s.batch * a.width * s.y.out_size, blocks = (tiles + a.items - 1) / a.items * a.groups;
  if (tiles == 0 || tiles >= INT32_MAX / 2 || blocks > INT32_MAX) return false;
  a.tiles = unsigned(tiles);
  a.by_groups = FastDivide::of(a.groups), a.by_quads = FastDivide::of(a.quads);
  a.by_height = FastDivide::of(s.y.out_size), a.by_width = FastDivide::of(a.width);
  return true;
}

// False if there is nothing to do, or too much.
template <class T, int K, int STRIDE, int OUTPUTS = QUAD_OUTPUTS>
bool launch_quads(QuadConv<T> a, const Conv2dShape& s, cudaStream_t stream) {
  if (!share_out_quads(a, s, OUTPUTS)) return false;
  const unsigned blocks = blocks_for(a.tiles, a.items) * a.groups;
  if constexpr (OUTPUTS > 1)  // where blocks are few, what counts is how long a thread takes
    if (blocks < 2u * current_gpu().processors) return launch_quads<T, K, STRIDE, 1>(a, s, stream);
  quads_forward<T, K, STRIDE, OUTPUTS><<<blocks, THREADS_2D, 0, stream>>>(a);
  return true;
}

}  // namespace nerfkit
