// SPDX-License-Identifier: Apache-2.0
// Contiguous: each plane is copied into a frame of zeros, after which no tap needs a test; the gradient of x is the same
// with a flipped kernel over the output's gradient, spread by the stride. Channels last: a block of channels at a time.

#include "depthwise_conv2d.h"

#include <vector>

#include "cpu.h"

namespace nerfkit {
namespace {

constexpr int BLOCK = 16;  // channels of a pixel that are summed together

// A plane in a frame: value (i, j) of the source is at (i * step_y + top, j * step_x + left) if that is inside.
template <class A>
struct Frame {
  int height, width;
  std::vector<A> values;

  template <class T>
  void fill(const T* source, int rows, int columns, int top, int left, int step_y, int step_x) {
    std::fill(values.begin(), values.end(), A(0));
    for (int i = 0; i < rows; ++i) {
      const int y = i * step_y + top;
      if (y < 0 || y >= height) continue;
      for (int j = 0; j < columns; ++j) {
        const int x = j * step_x + left;
        if (x >= 0 && x < width) values[int64_t(y) * width + x] = A(source[int64_t(i) * columns + j]);
      }
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
  for (int i = 0; i < rows; ++i) {
    T* to = out + int64_t(i) * columns;
    const A* from = frame + int64_t(i) * (K ? 1 : taps.stride_y) * frame_width;
    if (K) {
#pragma omp simd
      for (int j = 0; j < columns; ++j) {
        A sum = bias;
        for (int u = 0; u < K; ++u)
          for (int v = 0; v < K; ++v) sum += weight[u * K + v] * from[u * frame_width + j + v];
        to[j] = T(sum);
      }
      continue;
    }
    for (int j = 0; j < columns; ++j) {
      A sum = bias;
      for (int u = 0; u < taps.kernel_y; ++u)
        for (int v = 0; v < taps.kernel_x; ++v)
          sum += weight[u * taps.kernel_x + v] *
                 from[int64_t(u) * taps.dilation_y * frame_width + j * taps.stride_x + v * taps.dilation_x];
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

// sums[u, v] += sum over the outputs of grad times the frame's value under tap (u, v).
template <class T>
CLONES void correlate_weights(const acc_t<T>* frame, int frame_width, const T* grad, acc_t<T>* sums, int rows,
                              int columns, const Taps& taps) {
  using A = acc_t<T>;
  for (int i = 0; i < rows; ++i)
    for (int u = 0; u < taps.kernel_y; ++u)
      for (int v = 0; v < taps.kernel_x; ++v) {
        const A* from = frame + (int64_t(i) * taps.stride_y + u * taps.dilation_y) * frame_width + v * taps.dilation_x;
        const T* g = grad + int64_t(i) * columns;
        A sum = 0;
        if (taps.stride_x == 1) {
#pragma omp simd reduction(+ : sum)
          for (int j = 0; j < columns; ++j) sum += A(g[j]) * from[j];
        } else {
          for (int j = 0; j < columns; ++j) sum += A(g[j]) * from[j * taps.stride_x];
        }
        sums[u * taps.kernel_x + v] += sum;
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
  return {{height, width, std::vector<A>(int64_t(height) * width)}, std::vector<A>(taps), std::vector<A>(taps + 1)};
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
    Frame<A> frame{s.y.size + reach_y, s.x.size + reach_x, {}};
    frame.values.resize(int64_t(frame.height) * frame.width);
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
        correlate_weights<T>(frame.values.data(), frame.width, grad, sums.data(), s.y.out_size, s.x.out_size, taps_of(s));
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

template <class T>
CLONES void forward_pixels(const T* x, const acc_t<T>* weight, const T* bias, T* out, const Conv2dShape& s, int64_t begin,
                           int64_t end) {  // rows of the output
  using A = acc_t<T>;
  const int64_t C = s.channels;
  for (int64_t row = begin; row < end; ++row) {
    const int i = int(row % s.y.out_size);
    const T* picture = x + row / s.y.out_size * s.y.size * s.x.size * C;
    int u0, u1, v0, v1;
    taps_inside(s.y, i, u0, u1);
    for (int j = 0; j < s.x.out_size; ++j) {
      taps_inside(s.x, j, v0, v1);
      T* to = out + (row * s.x.out_size + j) * C;
      for (int64_t c0 = 0; c0 < C; c0 += BLOCK) {
        const int n = int(std::min<int64_t>(BLOCK, C - c0));
        A sum[BLOCK] = {};
        for (int c = 0; bias && c < n; ++c) sum[c] = A(bias[c0 + c]);
        for (int u = u0; u < u1; ++u)
          for (int v = v0; v < v1; ++v) {
            const int64_t y = i * s.y.stride - s.y.padding + u * s.y.dilation, p = j * s.x.stride - s.x.padding + v * s.x.dilation;
            const T* from = picture + (y * s.x.size + p) * C + c0;
            const A* w = weight + (int64_t(u) * s.x.kernel + v) * C + c0;
            if (n == BLOCK)
              for (int c = 0; c < BLOCK; ++c) sum[c] += w[c] * A(from[c]);
            else
              for (int c = 0; c < n; ++c) sum[c] += w[c] * A(from[c]);
          }
        for (int c = 0; c < n; ++c) to[c0 + c] = T(sum[c]);
      }
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
    for (int q = 0; q < s.x.size; ++q) {
      T* to = grad_x + (row * s.x.size + q) * C;
      for (int64_t c0 = 0; c0 < C; c0 += BLOCK) {
        const int n = int(std::min<int64_t>(BLOCK, C - c0));
        A sum[BLOCK] = {};
        for (int u = 0; u < s.y.kernel; ++u)
          for (int v = 0; v < s.x.kernel; ++v) {
            int i, j;
            if (!output_of(s.y, int(row % s.y.size), u, i) || !output_of(s.x, q, v, j)) continue;
            const T* from = picture + (int64_t(i) * s.x.out_size + j) * C + c0;
            const A* w = weight + (int64_t(u) * s.x.kernel + v) * C + c0;
            for (int c = 0; c < n; ++c) sum[c] += w[c] * A(from[c]);
          }
        for (int c = 0; c < n; ++c) to[c0 + c] = T(sum[c]);
      }
    }
  }
}

// Sums [taps + 1][BLOCK] of the channels c0 .. c0 + n - 1; the last row is the bias.
template <class T>
CLONES void weight_sums_of_block(const T* grad_out, const T* x, acc_t<T>* sums, int64_t c0, int n, const Conv2dShape& s) {
  using A = acc_t<T>;
  const int64_t C = s.channels, n_taps = int64_t(s.y.kernel) * s.x.kernel;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int i = 0; i < s.y.out_size; ++i)
      for (int j = 0; j < s.x.out_size; ++j) {
        const T* grad = grad_out + ((b * s.y.out_size + i) * s.x.out_size + j) * C + c0;
        int u0, u1, v0, v1;
        taps_inside(s.y, i, u0, u1);
        taps_inside(s.x, j, v0, v1);
        for (int u = u0; u < u1; ++u)
          for (int v = v0; v < v1; ++v) {
            const int64_t y = i * s.y.stride - s.y.padding + u * s.y.dilation, p = j * s.x.stride - s.x.padding + v * s.x.dilation;
            const T* from = x + ((b * s.y.size + y) * s.x.size + p) * C + c0;
            A* sum = sums + (int64_t(u) * s.x.kernel + v) * BLOCK;
            for (int c = 0; c < n; ++c) sum[c] += A(grad[c]) * A(from[c]);
          }
        for (int c = 0; c < n; ++c) sums[n_taps * BLOCK + c] += A(grad[c]);
      }
}

template <class T>
void to_weight_pixels(const T* grad_out, const T* x, T* grad_weight, T* grad_bias, const Conv2dShape& s) {
  const int64_t n_taps = int64_t(s.y.kernel) * s.x.kernel;
  parallel((s.channels + BLOCK - 1) / BLOCK, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c0 = begin * BLOCK; c0 < std::min(end * BLOCK, s.channels); c0 += BLOCK) {
      const int n = int(std::min<int64_t>(BLOCK, s.channels - c0));
      std::vector<acc_t<T>> sums((n_taps + 1) * BLOCK);
      weight_sums_of_block<T>(grad_out, x, sums.data(), c0, n, s);
      for (int c = 0; c < n; ++c) {
        for (int64_t k = 0; k < n_taps; ++k) grad_weight[(c0 + c) * n_taps + k] = T(sums[k * BLOCK + c]);
        grad_bias[c0 + c] = T(sums[n_taps * BLOCK + c]);
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

int64_t conv2d_scratch(const Conv2dShape&) { return 0; }

}  // namespace nerfkit
