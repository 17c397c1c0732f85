// SPDX-License-Identifier: Apache-2.0
// All gradients in one pass, channels last, of 3 x 3 taps one apart with a border of one: the sums of the weights'
// gradients stay in registers, so that the output's gradient and x are read once, in the order in which they lie in
// memory. The products of a value of grad_x are added in the order of depthwise_conv2d_pixels_cpu.cpp. Rows of outputs
// that are not there are zeros: a value of x that is not finite makes the taps that would lead to them NaN.

#include "depthwise_conv2d/phases_cpu.h"

namespace nerfkit {
namespace {

constexpr int TAPS = 3, SUMS = TAPS * TAPS + 1;            // the last one is the bias
constexpr int STRETCH = 64;                                // pixels of x of which one pack follows the other
constexpr int64_t MOST_PARTIALS = 128, LEAST_PIXELS = 64;  // sums, and what is worth one: not a question of threads
constexpr int64_t TOGETHER = 8;                            // packs of a thread, so that few pixels have several

// A block of S x S pixels of x, S the stride, has all its outputs among those at FIRST .. FIRST + SIDE - 1 from its
// own.
template <int S>
struct Block {
  static constexpr int SIDE = S == 1 ? 3 : 2, FIRST = S == 1 ? -1 : 0;
  // Whether tap u of pixel a, along an axis, leads to an output, and to which of the SIDE.
  static constexpr bool meets(int a, int u) { return (a + 1 - u) % S == 0; }
  static constexpr int output(int a, int u) { return (a + 1 - u) / S - FIRST; }
};

// The rows of a row of blocks.
template <class T, int S>
struct BlockRows {
  const T* grad[Block<S>::SIDE];  // each [W_out, C]
  const T* x[S];                  // each [W, C]
  T* grad_x[S];                   // each [W, C], or null
};

// What is prefetched meanwhile: the rows below. A store waits longer for its line than a load.
template <class T, int S>
struct Below {
  const T* grad;  // [W_out, C]
  const T* x[S];  // each [W, C]
  T* grad_x[S];   // each [W, C], or null
};

// Of a stretch of x, past the caches; packs of the same pixels come a stretch later.
template <class T, int S>
struct PixelLines {
  StreamingLine<T> of[S][STRETCH];
  int which = 0;  // pack of them
};

// Of the blocks begin .. end - 1 of a row, one pack: grad_x, and what they add to sums [SUMS, LANES]. Of an edge only
// the taps V0 .. V1 - 1 lead to outputs, and there may be WIDE < S pixels.
template <class T, int S, int V0, int V1, int WIDE, bool TO_X>
void add_blocks(const BlockRows<T, S>& rows, const Below<T, S>& below, int64_t pixel, const T* weight, T* sums,
                int begin, int end, PixelLines<T, S>* lines) {
  using B = Block<S>;
  Pack<T> w[SUMS - 1], sum[SUMS];
#pragma GCC unroll 9
  for (int k = 0; k < SUMS - 1; ++k) w[k] = load(weight + k * LANES);
#pragma GCC unroll 10
  for (int k = 0; k < SUMS; ++k) sum[k] = load(sums + k * LANES);
  for (int j = begin; j < end; ++j) {
    const int64_t at = j * pixel;
    __builtin_prefetch(below.grad + at);
#pragma GCC unroll 2
    for (int a = 0; a < S; ++a)
#pragma GCC unroll 2
      for (int b = 0; b < WIDE; ++b) {
        const int64_t position = S * at + b * pixel;
        __builtin_prefetch(below.x[a] + position);
        const Pack<T> x = load(rows.x[a] + position);
        Pack<T> result = {};
#pragma GCC unroll 3
        for (int v = V1 - 1; v >= V0; --v)
#pragma GCC unroll 3
          for (int u = TAPS - 1; u >= 0; --u)
            if (B::meets(a, u) && B::meets(b, v)) {
              const int k = u * TAPS + v;
              const int64_t output = at + (B::FIRST + B::output(b, v)) * pixel;
              const Pack<T> grad = load(rows.grad[B::output(a, u)] + output);
              if constexpr (TO_X) result += w[k] * grad;
              sum[k] += x * grad;
              if (a == 0 && b == 0 && u == 1 && v == 1) sum[SUMS - 1] += grad;
            }
        if constexpr (TO_X) {
          T* const to = rows.grad_x[a] + position;
          if (lines) {
            lines->of[a][(S * j + b) % STRETCH].put(to, result, lines->which);
          } else {
            __builtin_prefetch(below.grad_x[a] + position, 1);
            store(to, result);
          }
        }
      }
  }
#pragma GCC unroll 10
  for (int k = 0; k < SUMS; ++k) store(sums + k * LANES, sum[k]);
}

template <class T, int S>
struct Gradients {
  using B = Block<S>;
  const T* grad_out;  // [B, H_out, W_out, C]
  const T* x;         // [B, H, W, C]
  T* grad_x;          // [B, H, W, C] or null
  const Conv2dProblem& s;
  const PhaseWeights<T>& weights;
  const int height = s.y.out_size, width = s.x.out_size;  // blocks, as many as outputs
  const int64_t line = int64_t(s.x.size) * s.channels, out_line = width * s.channels;
  const PackVector<T> zeros = PackVector<T>(std::max(line, out_line));
  const int64_t n_units = s.units();
  const int64_t n_bytes = s.bytes<T>() + s.batch * s.y.size * line * int64_t(sizeof(T));
  const bool past_caches = grad_x && rows_go_past_caches(grad_x, s.channels, PACKS_PER_LINE<T>, n_bytes);

  // Adds the rows of blocks first .. last - 1, of all images, to sums [units, SUMS, LANES] of some units.
  void add(int64_t first, int64_t last, int64_t unit, int64_t end_unit, T* sums) const {
    PixelLines<T, S> lines;
    PackVector<T> unused(grad_x && s.y.size % S ? line : 0);  // takes the gradient of a row that is not there
    for (int64_t i = first; i < last; ++i) {
      const int64_t image = i / height;
      const int row = int(i % height);
      BlockRows<T, S> rows;
      Below<T, S> below;
      for (int k = 0; k < B::SIDE; ++k) {
        const int at = row + B::FIRST + k;
        rows.grad[k] = at >= 0 && at < height ? grad_out + (image * height + at) * out_line : zeros.data();
      }
      below.grad = grad_out + (image * height + std::min(row + B::FIRST + B::SIDE, height - 1)) * out_line;
      for (int a = 0; a < S; ++a) {
        const int at = row * S + a;
        const int64_t position = (image * s.y.size + at) * line;
        rows.x[a] = at < s.y.size ? x + position : zeros.data();
        rows.grad_x[a] = !grad_x ? nullptr : at < s.y.size ? grad_x + position : unused.data();
        const int64_t next = (image * s.y.size + std::min(at + S, s.y.size - 1)) * line;
        below.x[a] = x + next, below.grad_x[a] = grad_x ? grad_x + next : nullptr;
      }
      add_row(rows, below, unit, end_unit, sums, lines);
    }
    if (past_caches) streaming_fence();
  }

  void add_row(const BlockRows<T, S>& rows, const Below<T, S>& below, int64_t first_unit, int64_t end_unit, T* sums,
               PixelLines<T, S>& lines) const {
    constexpr int BLOCKS = STRETCH / S;
    for (int begin = 0; begin < width; begin += BLOCKS) {
      const int end = std::min(width, begin + BLOCKS), first = std::max(begin, -B::FIRST);
      const int last = std::min(end, std::min(width - 1, s.x.size / S));
      for (int64_t unit = first_unit; unit < end_unit; ++unit) {
        const int64_t channel = s.first_channel(unit);
        const auto of = moved(rows, channel);
        const auto ahead = moved(below, channel);
        lines.which = int(unit % PACKS_PER_LINE<T>);
        const T* weight = weights.values.data() + unit * SUMS * LANES;
        T* to = sums + unit * SUMS * LANES;
        auto blocks = [&](auto v0, auto v1, auto wide, int begin, int end) {
          const auto add = grad_x ? add_blocks<T, S, v0, v1, wide, true> : add_blocks<T, S, v0, v1, wide, false>;
          add(of, ahead, s.channels, weight, to, begin, end, past_caches ? &lines : nullptr);
        };
        if constexpr (S == 1) {
          if (width == 1) {
            blocks(Int<1>(), Int<2>(), Int<1>(), 0, 1);
            continue;
          }
          if (begin == 0) blocks(Int<0>(), Int<2>(), Int<1>(), 0, 1);
          if (first < last) blocks(Int<0>(), Int<3>(), Int<1>(), first, last);
          if (end == width) blocks(Int<1>(), Int<3>(), Int<1>(), width - 1, width);
        } else {
          if (first < last) blocks(Int<0>(), Int<3>(), Int<S>(), first, last);
          if (end < width) continue;
          if (s.x.size % S == 0)
            blocks(Int<1>(), Int<3>(), Int<S>(), width - 1, width);
          else
            blocks(Int<1>(), Int<2>(), Int<1>(), width - 1, width);
        }
      }
    }
  }

  static BlockRows<T, S> moved(BlockRows<T, S> rows, int64_t by) {
    for (auto& row : rows.grad) row += by;
    for (int a = 0; a < S; ++a) rows.x[a] += by, rows.grad_x[a] += rows.grad_x[a] ? by : 0;
    return rows;
  }
  static Below<T, S> moved(Below<T, S> below, int64_t by) {
    below.grad += by;
    for (int a = 0; a < S; ++a) below.x[a] += by, below.grad_x[a] += below.grad_x[a] ? by : 0;
    return below;
  }

  // scratch [partials, units, SUMS, LANES]
  void run(T* scratch, T* grad_weight, T* grad_bias) const {
    const int64_t rows = s.batch * height, partials = partials_of(s), n = n_units * SUMS * LANES;
    const int64_t groups = (n_units + TOGETHER - 1) / TOGETHER;
    parallel(partials * groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t partial = i / groups, unit = i % groups * TOGETHER, last = std::min(n_units, unit + TOGETHER);
        T* const sums = scratch + partial * n;
        std::fill(sums + unit * SUMS * LANES, sums + last * SUMS * LANES, T(0));
        add(rows * partial / partials, rows * (partial + 1) / partials, unit, last, sums);
      }
    });
    parallel(n_units, TOGETHER, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) add_partials(scratch, partials, unit, grad_weight, grad_bias);
    });
  }

  // Channels that two units have in common are written by both, with the same sums.
  void add_partials(const T* scratch, int64_t partials, int64_t unit, T* grad_weight, T* grad_bias) const {
    const int64_t first = s.first_channel(unit);
    for (int k = 0; k < SUMS; ++k) {
      T* const to = k < SUMS - 1 ? grad_weight + first * (SUMS - 1) + k : grad_bias + first;
      const int64_t apart = k < SUMS - 1 ? SUMS - 1 : 1;
      Pack<T> sum = {};
      for (int64_t partial = 0; partial < partials; ++partial)
        sum += load(scratch + ((partial * n_units + unit) * SUMS + k) * LANES);
      for (int lane = 0; lane < LANES; ++lane) to[lane * apart] = sum[lane];
    }
  }

  static int64_t partials_of(const Conv2dProblem& s) {
    const int64_t rows = s.batch * s.y.out_size, most = std::min(MOST_PARTIALS, rows);
    return std::max<int64_t>(1, std::min(most, rows * s.x.size / LEAST_PIXELS));
  }
};

}  // namespace

bool gradients_together(DType dtype, const Conv2dShape& shape) {
  const Conv2dProblem s(shape);
  const auto fits = [&](const Axis& a) {
    return a.kernel == TAPS && a.dilation == 1 && a.padding == 1 && a.stride <= 2 && a.stride == s.x.stride;
  };
  return dtype == DType::f32 && by_pixel<float>(s) && fits(s.y) && fits(s.x);
}

int64_t gradients_scratch(const Conv2dShape& shape) {
  const Conv2dProblem s(shape);
  return Gradients<float, 1>::partials_of(s) * s.units() * SUMS * LANES;
}

void depthwise_conv2d_gradients(const void* grad_out, const void* x, const void* weight, void* grad_x,
                                void* grad_weight, void* grad_bias, void* scratch, const Conv2dShape& shape) {
  const Conv2dProblem s(shape);
  const PhaseWeights<float> weights((const float*)weight, (const float*)nullptr, s, forward_phases(s.y),
                                    forward_phases(s.x));
  const auto run = [&](auto stride) {
    Gradients<float, stride>{(const float*)grad_out, (const float*)x, (float*)grad_x, s, weights}.run(
        (float*)scratch, (float*)grad_weight, (float*)grad_bias);
  };
  s.x.stride == 1 ? run(Int<1>()) : run(Int<2>());
}

}  // namespace nerfkit
