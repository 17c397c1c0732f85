// SPDX-License-Identifier: Apache-2.0
// How the CPU kernels go over an image: tiles and views of them. The numbers of a pack are neighbours of a row that has
// `unit` numbers for each pixel: LANES channels; all channels, where channels are last and few; or, of planes, one.

#pragma once

#include "depthwise_conv2d/args.h"

#include <numeric>
#include <utility>
#include <vector>

#include "common/simd_cpu.h"

namespace nerfkit {
namespace {

constexpr int DOWN = 32, ACROSS = 32;  // rows and packs of a tile of outputs
constexpr int FEW_DOWN =
    8;  // rows: in position, they may share a few sets of a cache; transposed, padded_tiles have to fit
constexpr int PREFETCH_DISTANCE = 8;  // rows of inputs and packs of outputs that are fetched ahead
// Bytes of inputs and outputs up to which prefetching costs more than it saves (measured): channels last; planes.
constexpr int64_t CACHED = 24 << 20, CACHED_PLANES = 12 << 20;
constexpr int FAR = 8;  // times the positions that outputs take: what a padded holds at most
constexpr int MOST_DEINTERLEAVED =
    2;                      // the largest stride for which lanes are columns: rows are dealt out to so many arrays
constexpr int NARROW = 24;  // pixels of a row of outputs: fewer leave lanes of columns idle, or are mostly edges

// Along an axis, tap u of output i takes position i * stride + u * dilation, where value j of the source is at position
// j + lead, and zeros everywhere else.
struct AxisGeometry {
  int source, out, kernel, stride, dilation, lead;

  // Of outputs step() apart, tap u of output i takes what tap 0 of i + u does.
  bool shares_rows() const { return stride == 1; }
  int step() const { return shares_rows() ? dilation : 1; }  // from one row of a tile to the next
  // Whether outputs that follow one another take nearly every position between: a tile then has several rows.
  bool dense() const { return shares_rows() || (stride <= kernel && int64_t(kernel - 1) * dilation < DOWN); }
  int start(int i) const { return i * stride - lead; }  // position of the first tap
  // Where a position is read of the source, or -1.
  int value_at(int position) const { return position >= 0 && position < source ? position : -1; }
  // The taps of output i that meet the source, as a range.
  int first_tap(int i) const { return std::max(0, int((int64_t(dilation) - 1 - start(i)) / dilation)); }
  int last_tap(int i) const { return std::min(kernel, int((int64_t(source) - 1 - start(i) + dilation) / dilation)); }
  // Of n outputs from `from` on, those of which all taps meet the source.
  std::pair<int, int> interior(int from, int n) const {
    if (kernel == 0) return {0, n};
    const int left = source - 1 + lead - (kernel - 1) * dilation;
    const int first = int((int64_t(std::max(0, lead)) + stride - 1) / stride), last = left < 0 ? 0 : left / stride + 1;
    const int begin = std::max(0, std::min(n, first - from));
    return {begin, std::max(begin, std::min(n, last - from))};
  }
};
inline AxisGeometry forward_geometry(const Axis& a) {
  return {a.size, a.out_size, a.kernel, a.out_size > 1 ? a.stride : 1, a.kernel > 1 ? a.dilation : 1, a.padding};
}
inline AxisGeometry output_geometry(const Axis& a) {  // a tile's rows are those of the forward axis
  return {a.out_size, a.out_size, 1, 1, forward_geometry(a).step(), 0};
}

// Dense rows [B, C, 1, L] as images [B, 1, C, L] of which every row has a kernel of its own.
struct Conv2dProblem : Conv2dShape {
  bool rows;

  explicit Conv2dProblem(const Conv2dShape& s)
      : Conv2dShape(s),
        rows(!channels_last && y.size == 1 && y.kernel == 1 && y.padding == 0 && channels <= INT32_MAX) {
    if (rows) y = {int(channels), int(channels), 1, 1, 0, 1}, channels = 1;
  }
  int64_t kernels() const { return rows ? y.size : channels; }

  // Whether lanes are channels. Planes are transposed for it where lanes of columns would be gathered or idle.
  bool lanes_are_channels() const {
    return channels >= LANES && (channels_last || (!rows && (x.stride > MOST_DEINTERLEAVED || x.out_size < NARROW)));
  }
  // Numbers of a pixel that lie side by side where they are summed.
  int unit() const { return lanes_are_channels() ? LANES : channels_last ? std::max(1, int(channels)) : 1; }
  int64_t units() const { return (channels + unit() - 1) / unit(); }
  // Bytes of inputs and outputs together.
  template <class T>
  int64_t bytes() const {
    return batch * channels * (int64_t(y.size) * x.size + int64_t(y.out_size) * x.out_size) * int64_t(sizeof(T));
  }
  // The last unit overlaps the one before: of outputs, what both write is the same.
  int64_t first_channel(int64_t which) const { return std::min(which * unit(), channels - unit()); }
};

// Lane i of pack p of a row is of channel (p * LANES + i) % unit of its unit, the same for every period'th pack.
inline int period_of(int unit) { return unit / std::gcd(unit, LANES); }

// Outputs of one unit, in one image.
struct Tile {
  int64_t batch, unit;
  int row, rows, column, columns;
};

// Whether the inputs are read where they are; of outputs, those that are not by_pixel(). Only float32: half types are
// converted once, on their way into a padded tile, and float64 takes the most general way.
template <class T>
bool in_place(const Conv2dProblem& s, const AxisGeometry& x) {
  const bool few_edges = x.out >= NARROW || s.x.stride > 1;
  return s.channels_last && s.lanes_are_channels() && few_edges && std::is_same_v<T, float>;
}

// Whether outputs are summed in the order in which they lie in memory (depthwise_conv2d_pixels_cpu.cpp).
template <class T>
bool by_pixel(const Conv2dProblem& s) {
  const bool few = s.y.stride > 1 || s.x.stride > 1 || (s.y.kernel <= 3 && s.x.kernel <= 3);
  return few && s.channels_last && s.lanes_are_channels() && std::is_same_v<T, float>;
}

// Whether results are written past the caches by a call that moves so many bytes: they are rows of full packs and
// cache lines, `apart` numbers from one to the next, and of the packs so many are written together.
template <class T>
bool rows_go_past_caches(const T* results, int64_t apart, int together, int64_t moved) {
  if constexpr (std::is_same_v<T, acc_t<T>>)
    return together >= PACKS_PER_LINE<T> && apart % (PACKS_PER_LINE<T> * LANES) == 0 &&
           use_streaming_stores(results, moved);
  return false;
}

// Whether planes become packs of channels on their way into a padded.
inline bool transposed(const Conv2dProblem& s) { return s.lanes_are_channels() && !s.channels_last; }

// At most `most` of n pixels, in parts as equal as multiples of `unit` are, the pixels that are summed at once or make
// a line of the cache: threads then get equal shares.
inline int even_part(int64_t n, int most, int unit) {
  if (n > most) most = std::max(unit, most / unit * unit);
  const int64_t parts = std::max<int64_t>(1, (n + most - 1) / most),
                part = std::max<int64_t>(1, (n + parts - 1) / parts);
  return int(std::min<int64_t>(most, (part + unit - 1) / unit * unit));
}

// Tiles that share kernels make a series.
struct Tiles {
  const AxisGeometry &y, &x;
  int height, width, apart;  // rows, pixels, and rows from one to the next
  int64_t down, across, series, length;
  bool rows, down_first = false;  // down_first: the next tile is below

  Tiles(const AxisGeometry& y, const AxisGeometry& x, const Conv2dProblem& s, bool few)
      : y(y),
        x(x),
        width(even_part(x.out, ACROSS * LANES / s.unit(), s.lanes_are_channels() ? 2 : 64 / int(sizeof(float)))),
        apart(std::max(1, std::min(y.step(), y.out))),
        rows(s.rows) {
    const int most = !y.dense() ? 1 : few || transposed(s) ? FEW_DOWN : DOWN, each = (y.out + apart - 1) / apart;
    height = std::max(1, std::min(most, each));
    down = (each + height - 1) / height * apart, across = (x.out + width - 1) / width;
    series = rows ? down : s.units(), length = s.batch * across * (rows ? 1 : down);
  }
  // Of all channels: `most` rows of at most `wide` pixels.
  Tiles(const AxisGeometry& y, const AxisGeometry& x, int64_t batch, int most, int wide)
      : y(y),
        x(x),
        width(even_part(x.out, wide, LANES / 2)),
        apart(std::max(1, std::min(y.step(), y.out))),
        rows(false),
        down_first(true) {
    const int each = (y.out + apart - 1) / apart;
    height = std::max(1, std::min(most, each));
    down = (each + height - 1) / height * apart, across = (x.out + width - 1) / width, series = 1;
    length = batch * across * down;
  }
  Tile tile(int64_t which, int64_t index) const {
    const int64_t image = index / across / (rows ? 1 : down);
    const int64_t below = rows ? which : down_first ? index % down : index / across % down;
    const int row = int(below / apart * height * apart + below % apart);
    const int column = int(down_first ? index / down % across : index % across) * width;
    const int height_here = std::min<int64_t>(height, (y.out - row + apart - 1) / apart);  // none, perhaps
    return {image, rows ? 0 : which, row, height_here, column, std::min(width, x.out - column)};
  }
};

// Where a tile's unit begins in an array of images.
template <class T>
struct ChannelView {
  T* values;                           // [B, C, H, W] or channels last, or a buffer [rows, columns, LANES]
  int64_t channel, row, column, unit;  // distances; the last to what comes next

  ChannelView(T* array, const Conv2dProblem& s, int height, int width, const Tile& tile) {
    const auto strides = s.strides(height, width);
    values = array + tile.batch * strides.batch + s.first_channel(tile.unit) * strides.channel;
    channel = strides.channel, row = strides.row, column = strides.column;
    unit = s.rows ? DOWN * row : channel * s.unit();
  }
  // LANES channels of each pixel.
  ChannelView(T* values, int64_t row) : values(values), channel(1), row(row), column(LANES), unit(0) {}

  // Every n'th row or column, from `from` on.
  ChannelView rows(int from, int n) const {
    ChannelView some = *this;
    some.values += from * row, some.row *= n;
    return some;
  }
  ChannelView columns(int from, int n) const {
    ChannelView some = *this;
    some.values += from * column, some.column *= n;
    return some;
  }
};

template <int N>
using Int = std::integral_constant<int, N>;

// Calls f(K): the kernel's height, or 0 for any, of float64 always. K saves loads of rows that outputs share.
template <class A, class F>
void with_height(int kernel, const F& f) {
  if constexpr (std::is_same_v<A, double>) return f(Int<0>());
  switch (kernel) {
    case 3:
      return f(Int<3>());
    case 5:
      return f(Int<5>());
    case 7:
      return f(Int<7>());
    default:
      return f(Int<0>());
  }
}

// Keeps the compiler from loading early what would push sums out of the registers.
inline void in_order() { asm volatile("" ::: "memory"); }

}  // namespace

// Where by_pixel(), of float32. `backward`: the gradient of x, from the output's.
// from [B, H, W, C], weight [C, KH * KW], bias [C] or null -> to [B, H_out, W_out, C].
void depthwise_conv2d_pixels(const float* from, const float* weight, const float* bias, float* to, const Conv2dShape&,
                             bool backward);
// Whether all gradients are found together, with a scratch of gradients_scratch() numbers.
bool gradients_together(DType, const Conv2dShape&);
int64_t gradients_scratch(const Conv2dShape&);
// grad_out [B, H_out, W_out, C], x [B, H, W, C] -> grad_x as x, or null; grad_weight [C, KH * KW]; grad_bias [C].
void depthwise_conv2d_gradients(const void* grad_out, const void* x, const void* weight, void* grad_x,
                                void* grad_weight, void* grad_bias, void* scratch, const Conv2dShape&);
// grad_out, x: [B, C, ..] or channels last; scratch [conv2d_scratch()].
void depthwise_conv2d_weights(DType, const void* grad_out, const void* x, void* grad_weight, void* grad_bias,
                              void* scratch, const Conv2dShape&);

}  // namespace nerfkit
