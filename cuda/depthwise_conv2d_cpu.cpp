// SPDX-License-Identifier: Apache-2.0
// Contiguous: each plane is copied into a frame of zeros, after which no tap needs a test; the gradient of x is the same
// with a flipped kernel over the output's gradient, spread by the stride. Channels last: a block of channels at a time.

#include "depthwise_conv2d.h"

#include <vector>

#include "cpu.h"

namespace nerfkit {
namespace {

// A plane in a frame of zeros: value (i, j) of the source is at (i * step_y + top, j * step_x + left) if that is inside.
// Every plane that is copied in covers the one before.
template <class A>
struct Frame {
  int height, width;
  std::vector<A> values;

  Frame(int height, int width) : height(height), width(width), values(int64_t(height) * width + LANES) {}

  template <class T>
  void fill(const T* source, int rows, int columns, int top, int left, int step_y, int step_x) {
    const int first = left < 0 ? (-left + step_x - 1) / step_x : 0;
    const int last = std::min(columns, width > left ? (width - left - 1) / step_x + 1 : 0);
    for (int i = 0; i < rows; ++i) {
      const int y = i * step_y + top;
      if (y < 0 || y >= height) continue;
      A* to = values.data() + int64_t(y) * width + left;
      const T* from = source + int64_t(i) * columns;
      if (step_x == 1)
        for (int j = first; j < last; ++j) to[j] = A(from[j]);
      else
        for (int j = first; j < last; ++j) to[j * step_x] = A(from[j]);
    }
  }
};

struct Taps {
  int kernel_y, kernel_x, stride_y, stride_x, dilation_y, dilation_x;
};

// K is the side of a square kernel with stride and dilation 1, or 0 for any other.
template <class T, int K>
CLONES void correlate(const acc_t<T>* frame, int frame_width, const acc_t<T>* weight, acc_t<T> bias, T* out, int rows,
                      int columns, const Taps& taps) {
  using A = acc_t<T>;
  const int kernel_y = K ? K : taps.kernel_y, kernel_x = K ? K : taps.kernel_x;
  const int dilation_y = K ? 1 : taps.dilation_y, dilation_x = K ? 1 : taps.dilation_x;
  for (int i = 0; i < rows; ++i) {
    T* to = out + int64_t(i) * columns;
    const A* from = frame + int64_t(i) * taps.stride_y * frame_width;
    for (int j = 0; taps.stride_x == 1 && j < columns; j += LANES) {
      Pack<A> sum = bias - Pack<A>{};
#pragma GCC unroll 7
      for (int u = 0; u < kernel_y; ++u)
#pragma GCC unroll 7
        for (int v = 0; v < kernel_x; ++v)
          sum += weight[u * kernel_x + v] * load(from + int64_t(u) * dilation_y * frame_width + j + v * dilation_x);
      store(to + j, sum, std::min(LANES, columns - j));
    }
    for (int j = 0; taps.stride_x != 1 && j < columns; ++j) {
      A sum = bias;
      for (int u = 0; u < kernel_y; ++u)
        for (int v = 0; v < kernel_x; ++v)
          sum += weight[u * kernel_x + v] * from[int64_t(u) * dilation_y * frame_width + j * taps.stride_x + v * dilation_x];
      to[j] = T(sum);
    }
  }
}

template <class T>
void correlate_any(const acc_t<T>* frame, int width, const acc_t<T>* weight, acc_t<T> bias, T* out, int rows, int columns,
                   const Taps& t) {
  const bool plain = t.stride_y * t.stride_x * t.dilation_y * t.dilation_x == 1 && t.kernel_y == t.kernel_x;
  auto kernel = plain && t.kernel_x == 3   ? correlate<T, 3>
                : plain && t.kernel_x == 5 ? correlate<T, 5>
                : plain && t.kernel_x == 7 ? correlate<T, 7>
                                           : correlate<T, 0>;
  kernel(frame, width, weight, bias, out, rows, columns, t);
}

// sums[v] += sum over the outputs of grad times the frame's value under tap v, for K neighbouring taps of one row.
template <class T, int K>
CLONES void correlate_weights(const acc_t<T>* frame, int frame_width, const T* grad, acc_t<T>* sums, int rows,
                              int columns, const Taps& taps) {
  using A = acc_t<T>;
  Pack<A> packs[K] = {};
  for (int i = 0; i < rows; ++i) {
    const A* from = frame + int64_t(i) * taps.stride_y * frame_width;
    const T* g = grad + int64_t(i) * columns;
    for (int j = 0; taps.stride_x == 1 && j < columns; j += LANES) {
      const Pack<A> pack = load(g + j, std::min(LANES, columns - j));
#pragma GCC unroll 7
      for (int v = 0; v < K; ++v) packs[v] += pack * load(from + j + v * taps.dilation_x);
    }
    for (int j = 0; taps.stride_x != 1 && j < columns; ++j)
      for (int v = 0; v < K; ++v) sums[v] += A(g[j]) * from[j * taps.stride_x + v * taps.dilation_x];
  }
  for (int v = 0; v < K; ++v)
    for (int lane = 0; lane < LANES; ++lane) sums[v] += packs[v][lane];
}

template <class T>
void correlate_all_weights(const acc_t<T>* frame, int frame_width, const T* grad, acc_t<T>* sums, int rows, int columns,
                           const Taps& t) {
  for (int u = 0; u < t.kernel_y; ++u)
    for (int v = 0; v < t.kernel_x;) {
      const int left = t.kernel_x - v;
      auto kernel = left >= 5 ? correlate_weights<T, 5> : left >= 3 ? correlate_weights<T, 3> : correlate_weights<T, 1>;
      kernel(frame + int64_t(u) * t.dilation_y * frame_width + v * t.dilation_x, frame_width, grad,
             sums + u * t.kernel_x + v, rows, columns, t);
      v += left >= 5 ? 5 : left >= 3 ? 3 : 1;
    }
}

template <class A>
struct Planes {  // scratch of one thread
  Frame<A> frame;
  std::vector<A> weight, sums;
};

template <class T>
Planes<acc_t<T>> padded_planes(const Conv2dShape& s) {
  using A = acc_t<T>;
  const int height = s.y.size + 2 * s.y.padding, width = s.x.size + 2 * s.x.padding;
  const size_t taps = size_t(s.y.kernel) * s.x.kernel;
  return {Frame<A>(height, width), std::vector<A>(taps), std::vector<A>(taps + 1)};
}

Taps taps_of(const Conv2dShape& s) {
  return {s.y.kernel, s.x.kernel, s.y.stride, s.x.stride, s.y.dilation, s.x.dilation};
}

template <class T>
void forward_planes(const T* x, const T* weight, const T* bias, T* out, const Conv2dShape& s) {
  using A = acc_t<T>;
  const int n_taps = s.y.kernel * s.x.kernel;
  parallel(s.batch * s.channels, 1, [&](int64_t begin, int64_t end) {
    auto [frame, w, sums] = padded_planes<T>(s);
    for (int64_t plane = begin; plane < end; ++plane) {
      const int64_t c = plane % s.channels;
      frame.fill(x + plane * s.y.size * s.x.size, s.y.size, s.x.size, s.y.padding, s.x.padding, 1, 1);
      for (int k = 0; k < n_taps; ++k) w[k] = A(weight[c * n_taps + k]);
      correlate_any<T>(frame.values.data(), frame.width, w.data(), bias ? A(bias[c]) : A(0),
                       out + plane * s.y.out_size * s.x.out_size, s.y.out_size, s.x.out_size, taps_of(s));
    }
  });
}

template <class T>
void to_x_planes(const T* grad_out, const T* weight, T* grad_x, const Conv2dShape& s) {
  using A = acc_t<T>;
  const int n_taps = s.y.kernel * s.x.kernel;
  const int reach_y = s.y.dilation * (s.y.kernel - 1), reach_x = s.x.dilation * (s.x.kernel - 1);
  const Taps taps{s.y.kernel, s.x.kernel, 1, 1, s.y.dilation, s.x.dilation};
  parallel(s.batch * s.channels, 1, [&](int64_t begin, int64_t end) {
    Frame<A> frame(s.y.size + reach_y, s.x.size + reach_x);
    std::vector<A> flipped(n_taps);
    for (int64_t plane = begin; plane < end; ++plane) {
      const int64_t c = plane % s.channels;
      frame.fill(grad_out + plane * s.y.out_size * s.x.out_size, s.y.out_size, s.x.out_size, reach_y - s.y.padding,
                 reach_x - s.x.padding, s.y.stride, s.x.stride);
      for (int k = 0; k < n_taps; ++k) flipped[k] = A(weight[c * n_taps + n_taps - 1 - k]);
      correlate_any<T>(frame.values.data(), frame.width, flipped.data(), A(0), grad_x + plane * s.y.size * s.x.size,
                       s.y.size, s.x.size, taps);
    }
  });
}

// A channel belongs to one thread, so that the order of additions does not depend on the number of threads.
template <class T>
void to_weight_planes(const T* grad_out, const T* x, T* grad_weight, T* grad_bias, const Conv2dShape& s) {
  using A = acc_t<T>;
  const int n_taps = s.y.kernel * s.x.kernel;
  const int64_t out_size = int64_t(s.y.out_size) * s.x.out_size;
  parallel(s.channels, 1, [&](int64_t begin, int64_t end) {
    auto [frame, w, sums] = padded_planes<T>(s);
    for (int64_t c = begin; c < end; ++c) {
      std::fill(sums.begin(), sums.end(), A(0));
      for (int64_t b = 0; b < s.batch; ++b) {
        const int64_t plane = b * s.channels + c;
        const T* grad = grad_out + plane * out_size;
        frame.fill(x + plane * s.y.size * s.x.size, s.y.size, s.x.size, s.y.padding, s.x.padding, 1, 1);
        correlate_all_weights(frame.values.data(), frame.width, grad, sums.data(), s.y.out_size, s.x.out_size, taps_of(s));
        for (int64_t i = 0; i < out_size; ++i) sums[n_taps] += A(grad[i]);
      }
      for (int k = 0; k < n_taps; ++k) grad_weight[c * n_taps + k] = T(sums[k]);
      grad_bias[c] = T(sums[n_taps]);
    }
  });
}

// weight [taps, C]: channels side by side, as in the picture.
template <class T>
std::vector<acc_t<T>> by_tap(const T* weight, const Conv2dShape& s) {
  const int64_t n_taps = int64_t(s.y.kernel) * s.x.kernel;
  std::vector<acc_t<T>> out(n_taps * s.channels);
  for (int64_t c = 0; c < s.channels; ++c)
    for (int64_t k = 0; k < n_taps; ++k) out[k * s.channels + c] = acc_t<T>(weight[c * n_taps + k]);
  return out;
}

// N neighbouring outputs of a row, for n channels from c0 on: a weight that was loaded serves all of them.
template <class T, int N>
HD void forward_some(const T* picture, const acc_t<T>* weight, const T* bias, T* to, const Conv2dShape& s, int i, int j,
                     int64_t c0, int n) {
  using A = acc_t<T>;
  const int64_t C = s.channels;
  int u0, u1, v0, v1;
  taps_inside(s.y, i, u0, u1);
  taps_inside(s.x, j, v0, v1);  // N > 1: the same for all of them
  Pack<A> sum[N];
  for (int p = 0; p < N; ++p) sum[p] = bias ? load(bias + c0, n) : Pack<A>{};
  for (int u = u0; u < u1; ++u)
    for (int v = v0; v < v1; ++v) {
      const int64_t y = i * s.y.stride - s.y.padding + u * s.y.dilation, x = j * s.x.stride - s.x.padding + v * s.x.dilation;
      const T* from = picture + (y * s.x.size + x) * C + c0;
      const Pack<A> w = load(weight + (int64_t(u) * s.x.kernel + v) * C + c0, n);
#pragma GCC unroll 4
      for (int p = 0; p < N; ++p) sum[p] += w * load(from + p * s.x.stride * C, n);
    }
  for (int p = 0; p < N; ++p) store(to + p * C + c0, sum[p], n);
}

template <class T>
CLONES void forward_pixels(const T* x, const acc_t<T>* weight, const T* bias, T* out, const Conv2dShape& s, int64_t begin,
                           int64_t end) {  // rows of the output
  constexpr int N = 4;
  for (int64_t row = begin; row < end; ++row) {
    const T* picture = x + row / s.y.out_size * s.y.size * s.x.size * s.channels;
    for (int j = 0; j < s.x.out_size;) {
      T* to = out + (row * s.x.out_size + j) * s.channels;
      int first, last, last_of_n;
      taps_inside(s.x, j, first, last);
      bool together = j + N <= s.x.out_size && first == 0;
      if (together) taps_inside(s.x, j + N - 1, first, last_of_n);
      together = together && last == s.x.kernel && last_of_n == s.x.kernel;
      for (int64_t c0 = 0; c0 < s.channels; c0 += LANES) {
        const int n = int(std::min<int64_t>(LANES, s.channels - c0)), i = int(row % s.y.out_size);
        if (together && n == LANES)
          forward_some<T, N>(picture, weight, bias, to, s, i, j, c0, LANES);
        else
          for (int p = 0; p < (together ? N : 1); ++p)
            forward_some<T, 1>(picture, weight, bias, to + p * s.channels, s, i, j + p, c0, n);
      }
      j += together ? N : 1;
    }
  }
}

template <class T>
CLONES void to_x_pixels(const T* grad_out, const acc_t<T>* weight, T* grad_x, const Conv2dShape& s, int64_t begin,
                        int64_t end) {  // rows of the input
  using A = acc_t<T>;
  const int64_t C = s.channels;
  for (int64_t row = begin; row < end; ++row) {
    const T* picture = grad_out + row / s.y.size * s.y.out_size * s.x.out_size * C;
    for (int q = 0; q < s.x.size; ++q)
      for (int64_t c0 = 0; c0 < C; c0 += LANES) {
        const int n = int(std::min<int64_t>(LANES, C - c0));
        Pack<A> sum{};
        for (int u = 0; u < s.y.kernel; ++u)
          for (int v = 0; v < s.x.kernel; ++v) {
            int i, j;
            if (!output_of(s.y, int(row % s.y.size), u, i) || !output_of(s.x, q, v, j)) continue;
            sum += load(weight + (int64_t(u) * s.x.kernel + v) * C + c0, n) *
                   load(picture + (int64_t(i) * s.x.out_size + j) * C + c0, n);
          }
        store(grad_x + (row * s.x.size + q) * C + c0, sum, n);
      }
  }
}

// Sums [taps + 1][LANES] of the channels c0 .. c0 + n - 1; the last row is the bias.
template <class T>
CLONES void weight_sums_of_block(const T* grad_out, const T* x, acc_t<T>* sums, int64_t c0, int n, const Conv2dShape& s) {
  using A = acc_t<T>;
  const int64_t C = s.channels, n_taps = int64_t(s.y.kernel) * s.x.kernel;
  auto add = [&](int64_t row, Pack<A> values) {
    auto* sum = reinterpret_cast<Pack<A>*>(sums + row * LANES);
    *sum += values;
  };
  for (int64_t b = 0; b < s.batch; ++b)
    for (int i = 0; i < s.y.out_size; ++i)
      for (int j = 0; j < s.x.out_size; ++j) {
        const Pack<A> grad = load(grad_out + ((b * s.y.out_size + i) * s.x.out_size + j) * C + c0, n);
        int u0, u1, v0, v1;
        taps_inside(s.y, i, u0, u1);
        taps_inside(s.x, j, v0, v1);
        for (int u = u0; u < u1; ++u)
          for (int v = v0; v < v1; ++v) {
            const int64_t y = i * s.y.stride - s.y.padding + u * s.y.dilation, p = j * s.x.stride - s.x.padding + v * s.x.dilation;
            add(int64_t(u) * s.x.kernel + v, grad * load(x + ((b * s.y.size + y) * s.x.size + p) * C + c0, n));
          }
        add(n_taps, grad);
      }
}

template <class T>
void to_weight_pixels(const T* grad_out, const T* x, T* grad_weight, T* grad_bias, const Conv2dShape& s) {
  const int64_t n_taps = int64_t(s.y.kernel) * s.x.kernel;
  parallel((s.channels + LANES - 1) / LANES, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c0 = begin * LANES; c0 < std::min(end * LANES, s.channels); c0 += LANES) {
      const int n = int(std::min<int64_t>(LANES, s.channels - c0));
      std::vector<acc_t<T>> sums((n_taps + 1) * LANES);
      weight_sums_of_block<T>(grad_out, x, sums.data(), c0, n, s);
      for (int c = 0; c < n; ++c) {
        for (int64_t k = 0; k < n_taps; ++k) grad_weight[(c0 + c) * n_taps + k] = T(sums[k * LANES + c]);
        grad_bias[c0 + c] = T(sums[n_taps * LANES + c]);
      }
    }
  });
}

}  // namespace

Status depthwise_conv2d(DType dtype, const void* x, const void* weight, const void* bias, void* out, const Conv2dShape& s,
                        Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    if (!s.channels_last) return forward_planes((const T*)x, (const T*)weight, (const T*)bias, (T*)out, s);
    const auto w = by_tap((const T*)weight, s);
    parallel(s.batch * s.y.out_size, 1, [&](int64_t begin, int64_t end) {
      forward_pixels((const T*)x, w.data(), (const T*)bias, (T*)out, s, begin, end);
    });
  });
  return 0;
}

Status depthwise_conv2d_bwd(DType dtype, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void*, const Conv2dShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const T *grad = (const T*)grad_out, *values = (const T*)x, *w = (const T*)weight;
    if (grad_weight && s.channels_last) to_weight_pixels(grad, values, (T*)grad_weight, (T*)grad_bias, s);
    if (grad_weight && !s.channels_last) to_weight_planes(grad, values, (T*)grad_weight, (T*)grad_bias, s);
    if (grad_x && !s.channels_last) to_x_planes(grad, w, (T*)grad_x, s);
    if (!grad_x || !s.channels_last) return;
    const auto tapwise = by_tap(w, s);
    parallel(s.batch * s.y.size, 1, [&](int64_t begin, int64_t end) {
      to_x_pixels(grad, tapwise.data(), (T*)grad_x, s, begin, end);
    });
  });
  return 0;
}

int64_t conv2d_scratch(DType, const Conv2dShape&) { return 0; }

}  // namespace nerfkit
