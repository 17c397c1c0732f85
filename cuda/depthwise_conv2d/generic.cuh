// SPDX-License-Identifier: Apache-2.0
// Any kernel, stride, padding and dilation: what both passes share. Lanes take neighbouring columns or, channels last,
// neighbouring channels, so that what is read or written together lies together; a thread takes a column of several
// rows and loads a value once for all taps of its column. A kernel too large for registers is taken in chunks of taps.
//
// Along an axis output i meets input i * stride - padding + u * dilation. Let g be the greatest common divisor of
// stride and dilation: outputs dilation / g apart meet inputs `dilation` apart. Among these nothing is dilated, and the
// stride is stride / g, a constant of the kernel where it is 1 or 2. So the rows of a thread are that far apart, and
// tiles interleave in classes.

#pragma once

#include <numeric>
#include <type_traits>

#include "common/fast_divide.cuh"
#include "depthwise_conv2d/block_sums.cuh"
#include "depthwise_conv2d/kernels.cuh"

namespace nerfkit {

struct GenericAxis : Axis {
  int common, step, apart;  // g, stride / g, dilation / g
  int inverse;              // of step modulo apart
  int chunk, chunks;        // taps at once, and how often
  int anchor;               // the tap by which an output counts for the bias's gradient
  int low, count;           // inputs: those of the image and of all anchors
  int classes;              // tiles that interleave
  FastDivide by_stride, by_classes, by_common;
};

template <class T>
struct GenericArgs : Conv2dArrays<T> {
  GenericAxis rows, columns;
  Conv2dShape::Strides from, to;                 // of in; of out and x; in elements
  int from_row, from_column, to_row, to_column;  // the same in bytes
  int channels, lanes, across;                   // of all images; of a block; blocks across the channels
  unsigned shared, tiles;                        // blocks that share the tiles of a channel
  int width, height;                             // tiles beside and below each other
  FastDivide by_across, by_lanes, by_width, by_height;
};

// STEP is stride / g along the rows, 0 for one that is known at run time only; EXACT: the kernel is KH x KW.
template <int KH_, int KW_, int STEP_, bool EXACT_>
struct GenericForm {
  static constexpr int KH = KH_, KW = KW_, STEP = STEP_, TAPS = KH * KW;
  static constexpr bool EXACT = EXACT_;
  static constexpr int AHEAD = KW == 3 ? 3 : 2;                 // rows that are prefetched
  static constexpr int COLUMNS = EXACT && STEP > 1 ? STEP : 1;  // of inputs that a thread takes, backward
  // Of outputs that a thread takes, backward of inputs; measured: more rows spill registers or leave too few threads.
  static constexpr int rows(Pass pass) {
    const bool backward = pass == Pass::backward;
    if (STEP == 0) return KH > 1 ? 2 : backward ? 4 : 8;
    return (KH > 3 && STEP == 2 && !backward) || (KH == 7 && STEP == 1 && backward) ? 4 : 8;
  }
};

// Taps [u, u + height) x [v, v + width) of the kernel.
struct Chunk {
  int u, v, height, width;

  template <class T>
  __device__ __forceinline__ Chunk(const GenericArgs<T>& a, int index) {
    if (a.rows.chunks * a.columns.chunks == 1) {
      u = v = 0, height = a.rows.kernel, width = a.columns.kernel;
      return;
    }
    const int line = index / a.columns.chunks;
    u = line * a.rows.chunk, v = (index - line * a.columns.chunks) * a.columns.chunk;
    height = min(a.rows.chunk, a.rows.kernel - u), width = min(a.columns.chunk, a.columns.kernel - v);
  }
};

// Which channels and tiles are a block's.
struct GenericBlock {
  int part, group, lane;   // index of its partial sum; its first channel; this thread's, from there
  unsigned item, threads;  // this thread's index among those that share a channel; how many

  template <class T>
  __device__ __forceinline__ explicit GenericBlock(const GenericArgs<T>& a) {
    part = int(a.by_across(blockIdx.x)), group = int(blockIdx.x - part * a.across) * a.lanes;
    item = a.by_lanes(threadIdx.x), lane = int(threadIdx.x - item * a.lanes), threads = a.by_lanes(THREADS_2D);
  }
};

// A thread's tile.
struct GenericTile {
  int channel, row, row_class, column, column_class;  // row, column: its index among those of its class
  int64_t batch;
  bool real;

  template <class T>
  __device__ __forceinline__ GenericTile(const GenericArgs<T>& a, const GenericBlock& block, unsigned first) {
    const unsigned at = first + block.item;
    channel = block.group + block.lane, real = channel < a.channels && at < a.tiles && block.item < block.threads;
    const unsigned line = a.by_width(at), image = a.by_height(line), tile = line - image * a.height;
    const unsigned beside = at - line * a.width;
    row = int(a.rows.by_classes(tile)), row_class = int(tile) - row * a.rows.classes, batch = image;
    column = int(a.columns.by_classes(beside)), column_class = int(beside) - column * a.columns.classes;
  }
};

constexpr int MOST_LANES = 64;  // channels of a block

template <int TAPS>
constexpr int WEIGHTS_OF_BLOCK = MOST_LANES * (TAPS | 1);  // an odd distance, for the banks

// The weights of a chunk, through shared memory [lanes, PITCH]: channels last, a lane's lie far from its neighbours'.
template <class Form, class T>
__device__ __forceinline__ void read_taps(const GenericArgs<T>& a, const GenericBlock& block, const Chunk& chunk,
                                          acc_t<T>* shared, acc_t<T> (&to)[Form::TAPS]) {
  constexpr int KW = Form::KW, TAPS = Form::TAPS, PITCH = TAPS | 1;
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < TAPS * a.lanes; i += THREADS_2D) {
    const int lane = i / TAPS, u = i % TAPS / KW, v = i % TAPS % KW;
    const bool inside = block.group + lane < a.channels && u < chunk.height && v < chunk.width;
    const int64_t row = int64_t(block.group + lane) * a.rows.kernel + chunk.u + u;
    shared[lane * PITCH + i % TAPS] = inside ? acc_t<T>(a.weight[row * a.columns.kernel + chunk.v + v]) : acc_t<T>(0);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < TAPS; ++k) to[k] = shared[block.lane * PITCH + k];
}

// Addresses in bytes take fewer instructions than those in elements.
template <class T>
__device__ __forceinline__ T* byte_offset(T* from, int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(from) + bytes);
}

// Those of a row that have an offset; zeros for the others, and if the row is not `inside`.
template <int KW, class T>
__device__ __forceinline__ void load_taps(const T* row, bool inside, const int (&offsets)[KW], T (&to)[KW]) {
#pragma unroll
  for (int v = 0; v < KW; ++v) {
    to[v] = T(0.f);
    if (inside && offsets[v] >= 0) to[v] = *byte_offset(row, offsets[v]);
  }
}

}  // namespace nerfkit
