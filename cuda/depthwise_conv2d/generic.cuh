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
#include "depthwise_conv2d/block.cuh"

namespace nerfkit {

struct AnyAxis : Axis {
  int common, step, apart;  // g, stride / g, dilation / g
  int inverse;              // of step modulo apart
  int chunk, chunks;        // taps at once, and how often
  int anchor;               // the tap by which an output counts for the bias's gradient
  int low, count;           // inputs: those of the picture and of all anchors
  int classes;              // tiles that interleave
  FastDivide by_stride, by_classes, by_common;
};

template <class T>
struct AnyConv {
  const T* in;  // x, or grad_out for the backward pass
  const T* weight;
  const T* bias;
  T* out;              // null if only the weight's gradient is wanted
  const T* x;          // backward
  acc_t<T>* partials;  // [parts, C, KH * KW + 1], or null
  AnyAxis rows, columns;
  Conv2dShape::Strides from, to;                 // of in; of out and x
  int from_row, from_column, to_row, to_column;  // in bytes
  int channels, lanes, across;                   // of all pictures; of a block; blocks across the channels
  unsigned shared, tiles;                        // blocks that share the tiles of a channel
  int width, height;                             // tiles beside and below each other
  FastDivide by_across, by_lanes, by_width, by_height;
};

// STEP is stride / g along the rows, 0 for one that is known at run time only; EXACT: the kernel is KH x KW.
template <int KH_, int KW_, int STEP_, bool EXACT_>
struct AnyForm {
  static constexpr int KH = KH_, KW = KW_, STEP = STEP_, TAPS = KH * KW;
  static constexpr bool EXACT = EXACT_;
  static constexpr int AHEAD = KW == 3 ? 3 : 2;                 // rows on their way
  static constexpr int COLUMNS = EXACT && STEP > 1 ? STEP : 1;  // of inputs that a thread takes, backward
  static constexpr int rows(bool backward, int bytes) {         // of outputs that a thread takes, backward of inputs
    if (STEP == 0) return KH > 1 ? 2 : backward ? 4 : 8;
    return (KH > 3 && (backward ? bytes == 8 : STEP == 2)) || (KH == 7 && STEP == 1 && backward) ? 4 : 8;
  }
};

// Taps [u, u + height) x [v, v + width) of the kernel.
struct Chunk {
  int u, v, height, width;

  template <class T>
  __device__ __forceinline__ Chunk(const AnyConv<T>& a, int index) {
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
struct AnyBlock {
  int part, group, lane;   // group: the first of its channels; lane: this thread's, from there
  unsigned item, threads;  // this thread's place among those that share a channel; how many

  template <class T>
  __device__ __forceinline__ explicit AnyBlock(const AnyConv<T>& a) {
    part = int(a.by_across(blockIdx.x)), group = int(blockIdx.x - part * a.across) * a.lanes;
    item = a.by_lanes(threadIdx.x), lane = int(threadIdx.x - item * a.lanes), threads = a.by_lanes(THREADS_2D);
  }
};

// A thread's tile.
struct AnyTile {
  int channel, row, row_class, column, column_class;  // row, column: its place among those of its class
  int64_t batch;
  bool real;

  template <class T>
  __device__ __forceinline__ AnyTile(const AnyConv<T>& a, const AnyBlock& block, unsigned first) {
    const unsigned at = first + block.item;
    channel = block.group + block.lane, real = channel < a.channels && at < a.tiles && block.item < block.threads;
    const unsigned line = a.by_width(at), picture = a.by_height(line), tile = line - picture * a.height;
    const unsigned beside = at - line * a.width;
    row = int(a.rows.by_classes(tile)), row_class = int(tile) - row * a.rows.classes, batch = picture;
    column = int(a.columns.by_classes(beside)), column_class = int(beside) - column * a.columns.classes;
  }
};

constexpr int MOST_LANES = 64;  // channels of a block

template <int TAPS>
constexpr int WEIGHTS_OF_BLOCK = MOST_LANES * (TAPS | 1);  // an odd distance, for the banks

// The weights of a chunk, through shared memory: channels last, a lane's lie far from those of its neighbours.
template <class Form, class T>
__device__ __forceinline__ void read_taps(const AnyConv<T>& a, const AnyBlock& block, const Chunk& chunk,
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
__device__ __forceinline__ T* moved(T* from, int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(from) + bytes);
}

// Those of a row that have an offset; zeros for the others, and if the row is not `inside`.
template <int KW, class T>
__device__ __forceinline__ void load_taps(const T* row, bool inside, const int (&offsets)[KW], T (&to)[KW]) {
#pragma unroll
  for (int v = 0; v < KW; ++v) {
    to[v] = T(0.f);
    if (inside && offsets[v] >= 0) to[v] = *moved(row, offsets[v]);
  }
}

inline AnyAxis any_axis(const Axis& axis, int most, int multiple) {
  AnyAxis a{axis};
  if (a.kernel == 1) a.dilation = 1;
  a.common = std::gcd(a.stride, a.dilation), a.step = a.stride / a.common, a.apart = a.dilation / a.common;
  while (a.inverse < a.apart && int64_t(a.inverse) * a.step % a.apart != 1 % a.apart) ++a.inverse;
  // Chunks of about one size; a chunk begins at a multiple of the stride.
  a.chunk = a.kernel, a.chunks = 1;
  if (a.kernel > most) {
    const int largest = most / multiple * multiple, n = (a.kernel + largest - 1) / largest;
    a.chunk = ((a.kernel + n - 1) / n + multiple - 1) / multiple * multiple,
    a.chunks = (a.kernel + a.chunk - 1) / a.chunk;
  }
  // Where nothing is padded twice, each output has its anchor in the picture.
  a.anchor = std::min(a.kernel - 1, a.padding / a.dilation);
  const int first = a.anchor * a.dilation - a.padding, last = (a.out_size - 1) * a.stride + first;
  a.low = std::min(0, first), a.count = std::max(a.size - 1, last) + 1 - a.low;
  a.by_stride = FastDivide::of(a.stride), a.by_common = FastDivide::of(a.common);
  return a;
}

// Whether all places are numbers that the kernels can take; `bytes` are those of an element.
inline bool any_fits(const Conv2dShape& s, int bytes) {
  constexpr int MOST = 1 << 28, MOST_STRIDE = 1 << 12;
  for (const Axis& axis : {s.y, s.x}) {
    if (axis.size > MOST || axis.padding > MOST / 2 || axis.stride > MOST_STRIDE) return false;
    if (axis.kernel > 1 && axis.dilation > MOST_STRIDE) return false;
  }
  const int64_t across = s.channels_last ? s.channels : 1, width = std::max(s.x.size, s.x.out_size);
  const int64_t row =
      width * (s.y.size == 1 ? s.channels : across) * bytes;  // a whole picture if that takes a row's place
  return s.batch <= MOST && s.channels <= MOST && row <= INT32_MAX && row * s.y.dilation <= INT32_MAX;
}

// Tiles of `of_tile` places along an axis, in interleaving classes; a class begins at a multiple of `step`.
inline int64_t any_tiles(AnyAxis& a, bool backward, int classes, int of_tile, int step) {
  const int places = backward ? a.count : a.out_size,
            of_class = (places + classes - 1) / classes + std::max(step - 1, 0);
  a.classes = classes, a.by_classes = FastDivide::of(classes);
  return int64_t(classes) * blocks_for(of_class, of_tile);
}

// Neighbouring channels that a block takes. Backward lanes of a channel add up their sums, so that they are a power of
// two; forward as many as leave the fewest threads without work, of equal ones the most.
inline int any_lanes(int channels, bool backward) {
  if (backward) {
    int lanes = 32;
    while (lanes > 1 && lanes / 2 >= channels) lanes /= 2;
    return lanes;
  }
  int best = 1;
  double most = 0;
  for (int lanes = std::min(channels, MOST_LANES); lanes >= std::min(channels, MOST_LANES / 4); --lanes) {
    const double busy = double(channels) / blocks_for(channels, lanes) * (THREADS_2D / lanes);
    if (busy > most) most = busy, best = lanes;
  }
  return best;
}

// Sets all but the pointers; false if there is nothing to do, or too much. `bytes` are those of an element.
template <class Form, class T>
bool share_out(AnyConv<T>& a, const Conv2dShape& shape, int bytes, bool backward) {
  if (shape.batch * shape.channels == 0 || !any_fits(shape, bytes)) return false;
  Conv2dShape s = shape;
  a.to = s.strides(s.y.out_size, s.x.out_size), a.from = s.strides(s.y.size, s.x.size);
  if (s.y.kernel == 1 && s.y.size == 1 && s.y.padding == 0) {  // the batch takes the place of the rows
    s.y = {int(s.batch), int(s.batch), 1, 1, 0, 1}, s.batch = 1;
    a.to.row = a.to.batch, a.from.row = a.from.batch;
  }
  if (backward) std::swap(a.from, a.to);
  a.from_row = int(a.from.row * bytes), a.from_column = int(a.from.column * bytes);
  a.to_row = int(a.to.row * bytes), a.to_column = int(a.to.column * bytes);
  a.rows = any_axis(s.y, Form::KH, std::max(1, Form::STEP)), a.columns = any_axis(s.x, Form::KW, 1);
  a.channels = int(s.channels), a.lanes = s.channels_last ? any_lanes(a.channels, backward) : 1;
  a.across = int(blocks_for(s.channels, a.lanes)), a.by_across = FastDivide::of(a.across),
  a.by_lanes = FastDivide::of(a.lanes);
  const bool pairs = backward && Form::COLUMNS > 1;
  const int64_t height = any_tiles(a.rows, backward,
                                   backward && Form::STEP ? a.rows.dilation
                                   : backward             ? 1
                                                          : a.rows.apart,
                                   Form::rows(backward, bytes), backward ? Form::STEP : 1);
  const int64_t width = any_tiles(a.columns, backward, pairs ? a.columns.dilation : 1, backward ? Form::COLUMNS : 1,
                                  pairs ? Form::STEP : 1);
  const int64_t tiles = s.batch * height * width;
  if (height > INT32_MAX / 2 || width > INT32_MAX / 2 || tiles >= INT32_MAX / 2) return false;
  a.height = int(height), a.width = int(width), a.tiles = unsigned(tiles);
  a.shared = blocks_for(tiles, THREADS_2D / a.lanes);
  a.by_width = FastDivide::of(a.width), a.by_height = FastDivide::of(a.height);
  return int64_t(a.shared) * a.across < INT32_MAX;
}

}  // namespace nerfkit
