// SPDX-License-Identifier: Apache-2.0
// How the generic kernels divide the work, and which form takes which kernel.

#pragma once

#include "depthwise_conv2d/generic.cuh"

namespace nerfkit {

// most: taps of a chunk; multiple: of which a chunk begins at a multiple.
inline GenericAxis generic_axis(const Axis& axis, int most, int multiple) {
  GenericAxis a{axis};
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
  // Where nothing is padded twice, each output has its anchor in the image.
  a.anchor = std::min(a.kernel - 1, a.padding / a.dilation);
  const int first = a.anchor * a.dilation - a.padding, last = (a.out_size - 1) * a.stride + first;
  a.low = std::min(0, first), a.count = std::max(a.size - 1, last) + 1 - a.low;
  a.by_stride = FastDivide::of(a.stride), a.by_common = FastDivide::of(a.common);
  return a;
}

// Whether all indices are numbers that the kernels can take; `bytes` are those of an element.
inline bool fits_generic(const Conv2dShape& s, int bytes) {
  constexpr int MOST = 1 << 28, MOST_STRIDE = 1 << 12;
  for (const Axis& axis : {s.y, s.x}) {
    if (axis.size > MOST || axis.padding > MOST / 2 || axis.stride > MOST_STRIDE) return false;
    if (axis.kernel > 1 && axis.dilation > MOST_STRIDE) return false;
  }
  const int64_t across = s.channels_last ? s.channels : 1, width = std::max(s.x.size, s.x.out_size);
  const int64_t row =
      width * (s.y.size == 1 ? s.channels : across) * bytes;  // a whole image if that takes the place of a row
  return s.batch <= MOST && s.channels <= MOST && row <= INT32_MAX && row * s.y.dilation <= INT32_MAX;
}

// Tiles of `of_tile` positions along an axis, in interleaving classes; a class begins at a multiple of `step`.
inline int64_t divide_axis(GenericAxis& a, bool backward, int classes, int of_tile, int step) {
  const int positions = backward ? a.count : a.out_size,
            of_class = (positions + classes - 1) / classes + std::max(step - 1, 0);
  a.classes = classes, a.by_classes = FastDivide::of(classes);
  return int64_t(classes) * blocks_for(of_class, of_tile);
}

// Neighbouring channels that a block takes. Backward lanes of a channel add up their sums, so that they are a power of
// two; forward as many as leave the fewest threads without work, of equal ones the most.
inline int lanes_of_block(int channels, bool backward) {
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

// Sets all but the arrays; false if there is nothing to do, or too much. `bytes` are those of an element.
template <class Form, class T>
bool divide_work(GenericArgs<T>& a, const Conv2dShape& shape, int bytes, Pass pass) {
  const bool backward = pass == Pass::backward;
  if (shape.batch * shape.channels == 0 || !fits_generic(shape, bytes)) return false;
  Conv2dShape s = shape;
  a.to = s.strides(s.y.out_size, s.x.out_size), a.from = s.strides(s.y.size, s.x.size);
  if (s.y.kernel == 1 && s.y.size == 1 && s.y.padding == 0) {  // the batch takes the place of the rows
    s.y = {int(s.batch), int(s.batch), 1, 1, 0, 1}, s.batch = 1;
    a.to.row = a.to.batch, a.from.row = a.from.batch;
  }
  if (backward) std::swap(a.from, a.to);
  a.from_row = int(a.from.row * bytes), a.from_column = int(a.from.column * bytes);
  a.to_row = int(a.to.row * bytes), a.to_column = int(a.to.column * bytes);
  a.rows = generic_axis(s.y, Form::KH, std::max(1, Form::STEP)), a.columns = generic_axis(s.x, Form::KW, 1);
  a.channels = int(s.channels), a.lanes = s.channels_last ? lanes_of_block(a.channels, backward) : 1;
  a.across = int(blocks_for(s.channels, a.lanes)), a.by_across = FastDivide::of(a.across),
  a.by_lanes = FastDivide::of(a.lanes);
  const bool several = backward && Form::COLUMNS > 1;
  const int classes = !backward ? a.rows.apart : Form::STEP ? a.rows.dilation : 1;
  const int64_t height = divide_axis(a.rows, backward, classes, Form::rows(pass), backward ? Form::STEP : 1);
  const int64_t width = divide_axis(a.columns, backward, several ? a.columns.dilation : 1, backward ? Form::COLUMNS : 1,
                                    several ? Form::STEP : 1);
  const int64_t tiles = s.batch * height * width;
  if (height > INT32_MAX / 2 || width > INT32_MAX / 2 || tiles >= INT32_MAX / 2) return false;
  a.height = int(height), a.width = int(width), a.tiles = unsigned(tiles);
  a.shared = blocks_for(tiles, THREADS_2D / a.lanes);
  a.by_width = FastDivide::of(a.width), a.by_height = FastDivide::of(a.height);
  return int64_t(a.shared) * a.across < INT32_MAX;
}

// Calls f with the form of a thread's work, for elements of BYTES.
template <int BYTES, class F>
auto with_form(const Conv2dShape& s, const F& f) {
  if constexpr (BYTES == 8) {
    return f(GenericForm<5, 5, 0, false>());  // float64 is for gradcheck
  } else {
    const int step = s.y.stride / std::gcd(s.y.stride, s.y.dilation);
    const int step_x = s.x.stride / std::gcd(s.x.stride, s.x.dilation);
    if constexpr (BYTES == 4)  // dense depthwise_conv1d; half types have tensor cores for it
      if (s.y.kernel == 1 && s.y.stride == 1 && s.x.kernel == 3) return f(GenericForm<1, 3, 1, true>());
    if (s.y.kernel == 1) return f(GenericForm<1, 8, 0, false>());
    const int side = s.y.kernel == s.x.kernel && (step == 1 || step == step_x) ? s.x.kernel : 0;
    if (step == 1 && side == 3) return f(GenericForm<3, 3, 1, true>());
    if (step == 2 && side == 3) return f(GenericForm<3, 3, 2, true>());
    if (step == 2 && side == 5) return f(GenericForm<5, 5, 2, true>());
    if (step == 2 && side == 7) return f(GenericForm<7, 7, 2, true>());
    if (step == 1 && side == 7 && current_gpu().major >= 8)
      return f(GenericForm<7, 7, 1, true>());  // before, it spills
    if (step == 1) return f(GenericForm<5, 5, 1, false>());
    if (step == 2) return f(GenericForm<5, 5, 2, false>());
    return f(GenericForm<5, 5, 0, false>());
  }
}

}  // namespace nerfkit
