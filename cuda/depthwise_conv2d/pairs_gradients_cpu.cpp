// SPDX-License-Identifier: Apache-2.0
// All gradients of depthwise_conv2d_pairs.h in one walk. Each output has a block of 2 x 2 of x, whose gradients come
// from that output, the one to the right and the two below. Rows and columns that are not there are zeros: a value of x
// or of the output's gradient that is not finite makes NaN of taps that lead past an edge.

#include "depthwise_conv2d/pairs.h"

namespace nerfkit {
namespace {

constexpr int SUMS = TAPS * TAPS + 1;  // the last one is the bias
constexpr int HEIGHT = 64;             // rows of blocks that are summed by one thread

// A row of blocks.
struct Blocks {
  const float *grad[2], *x[2];  // the row itself, and the one below
  float* grad_x[2];
};

// Gradients that LANES blocks meet: of the row itself and the one below, each the block's own and the one to the right.
struct Met {
  Pack<float> grad[2][2];
};

// The pixel (A, B) of LANES blocks: its gradient, and what it adds to the sums.
template <int A, int B, bool TO_X, bool TO_WEIGHT>
HD Pack<float> pixel(const Met& met, const Met& counted, Pack<float> x, const Pack<float>* weight, Pack<float>* sums) {
  Pack<float> result = {};
#pragma GCC unroll 3
  for (int v = TAPS - 1; v >= 0; --v)
#pragma GCC unroll 3
    for (int u = TAPS - 1; u >= 0; --u)
      if ((A + 1 - u) % 2 == 0 && (B + 1 - v) % 2 == 0) {
        const int k = u * TAPS + v, below = (A + 1 - u) / 2, right = (B + 1 - v) / 2;
        if constexpr (TO_X) result += weight[k] * met.grad[below][right];
        if constexpr (TO_WEIGHT) sums[k] += x * counted.grad[below][right];
      }
  return result;
}

template <bool TO_X, bool TO_WEIGHT>
struct Walk {
  const float *grad_out, *x, *weight;
  float* grad_x;
  const Conv2dShape& s;
  const int height = s.y.out_size, width = s.x.out_size;  // blocks
  const bool missing = s.x.size % 2;
  const PackVector<float> zeros = PackVector<float>(s.x.size);

  // Adds the blocks begin .. end - 1 of a plane to sums [SUMS].
  void add(int64_t plane, int begin, int end, const Pack<float>* taps, Pack<float>* to) const {
    PackVector<float> unused(s.y.size % 2 ? s.x.size : 0);  // takes the gradient of a row that is not there
    Pack<float> w[TAPS * TAPS], sums[SUMS] = {};
#pragma GCC unroll 9
    for (int k = 0; k < TAPS * TAPS; ++k) w[k] = taps[k];
    for (int row = begin; row < end; ++row) {
      const Blocks blocks = blocks_of(plane, row, unused.data());
      int at = 0;
      for (; at + LANES < width; at += LANES) {
        Met met;
#pragma GCC unroll 2
        for (int a = 0; a < 2; ++a)
#pragma GCC unroll 2
          for (int b = 0; b < 2; ++b) met.grad[a][b] = load(blocks.grad[a] + at + b);
        if constexpr (TO_WEIGHT) sums[SUMS - 1] += met.grad[0][0];
        line<0>(blocks, at, met, w, sums);
        line<1>(blocks, at, met, w, sums);
      }
      last(blocks, at, w, sums);
    }
#pragma GCC unroll 10
    for (int k = 0; k < SUMS; ++k) to[k] = sums[k];
  }

  Blocks blocks_of(int64_t plane, int row, float* unused) const {
    Blocks blocks;
    for (int a = 0; a < 2; ++a) {
      const int at = 2 * row + a;
      const bool there = at < s.y.size;
      const int64_t place = (plane * s.y.size + at) * s.x.size;
      blocks.grad[a] = row + a < height ? grad_out + (plane * height + row + a) * width : zeros.data();
      blocks.x[a] = there ? x + place : zeros.data();
      blocks.grad_x[a] = !TO_X ? nullptr : there ? grad_x + place : unused;
    }
    return blocks;
  }

  // Row A of LANES blocks.
  template <int A>
  HD void line(const Blocks& blocks, int at, const Met& met, const Pack<float>* w, Pack<float>* sums) const {
    const Pack<float> none = {};
    const Pairs pairs = TO_WEIGHT ? Pairs(blocks.x[A] + 2 * at) : Pairs(none, none);
    const auto even = pixel<A, 0, TO_X, TO_WEIGHT>(met, met, pairs.even, w, sums);
    const auto odd = pixel<A, 1, TO_X, TO_WEIGHT>(met, met, pairs.odd, w, sums);
    if constexpr (TO_X) {
      store(blocks.grad_x[A] + 2 * at, shuffled<First, float>(even, odd));
      store(blocks.grad_x[A] + 2 * at + LANES, shuffled<Second, float>(even, odd));
    }
  }

  // The last LANES blocks of a row, of which those before `from` were counted already.
  void last(const Blocks& blocks, int from, const Pack<float>* w, Pack<float>* sums) const {
    const int at = width - LANES;
    const Pack<float> none = {}, lane = lane_iota<float>();
    const auto counts = lane >= float(from - at);
    Met met, counted;
#pragma GCC unroll 2
    for (int a = 0; a < 2; ++a) {
      const Pack<float> grad = load(blocks.grad[a] + at);
      met.grad[a][0] = grad, met.grad[a][1] = shuffled<After, float>(grad, none);
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b) counted.grad[a][b] = counts ? met.grad[a][b] : none;
    }
    if constexpr (TO_WEIGHT) sums[SUMS - 1] += counted.grad[0][0];
    const auto last_of = [&](auto a) __attribute__((always_inline)) {
      Pairs pairs = TO_WEIGHT ? Pairs::last(blocks.x[a] + 2 * at, missing) : Pairs(none, none);
      pairs.even = counts ? pairs.even : none, pairs.odd = counts ? pairs.odd : none;
      const auto even = pixel<a, 0, TO_X, TO_WEIGHT>(met, counted, pairs.even, w, sums);
      const auto odd = pixel<a, 1, TO_X, TO_WEIGHT>(met, counted, pairs.odd, w, sums);
      if constexpr (TO_X) {
        const auto low = shuffled<First, float>(even, odd), high = shuffled<Second, float>(even, odd);
        float* const to = blocks.grad_x[a] + 2 * at;
        store(to, low);
        missing ? store(to + LANES - 1, shuffled<Before, float>(low, high)) : store(to + LANES, high);
      }
    };
    last_of(Int<0>());
    last_of(Int<1>());
  }

  // scratch [batch, parts, channels, SUMS]
  void run(float* scratch) const {
    const int64_t parts = (height + HEIGHT - 1) / HEIGHT;
    parallel(s.batch * parts * s.channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t channel = i % s.channels, picture = i / s.channels / parts;
        const int row = int(i / s.channels % parts) * HEIGHT;
        Pack<float> taps[TAPS * TAPS], sums[SUMS];
        for (int k = 0; k < TAPS * TAPS; ++k) taps[k] = broadcast(weight[channel * TAPS * TAPS + k]);
        add(picture * s.channels + channel, row, std::min(height, row + HEIGHT), taps, sums);
        for (int k = 0; TO_WEIGHT && k < SUMS; ++k) {
          float sum = 0;
          for (int lane = 0; lane < LANES; ++lane) sum += sums[k][lane];
          scratch[i * SUMS + k] = sum;
        }
      }
    });
  }
};

int64_t parts_of(const Conv2dShape& s) { return s.batch * ((s.y.out_size + HEIGHT - 1) / HEIGHT); }

void add_parts(const float* scratch, float* grad_weight, float* grad_bias, const Conv2dShape& s) {
  const int64_t parts = parts_of(s);
  for (int64_t c = 0; c < s.channels; ++c)
    for (int k = 0; k < SUMS; ++k) {
      float sum = 0;
      for (int64_t part = 0; part < parts; ++part) sum += scratch[(part * s.channels + c) * SUMS + k];
      (k < SUMS - 1 ? grad_weight[c * (SUMS - 1) + k] : grad_bias[c]) = sum;
    }
}

}  // namespace

void depthwise_conv2d_pairs_gradients(const float* grad_out, const float* x, const float* weight, float* grad_x,
                                      float* grad_weight, float* grad_bias, float* scratch, const Conv2dShape& s) {
  if (!grad_weight) {
    if (grad_x) Walk<true, false>{grad_out, x, weight, grad_x, s}.run(nullptr);
    return;
  }
  grad_x ? Walk<true, true>{grad_out, x, weight, grad_x, s}.run(scratch)
         : Walk<false, true>{grad_out, x, weight, nullptr, s}.run(scratch);
  add_parts(scratch, grad_weight, grad_bias, s);
}

int64_t depthwise_conv2d_pairs_scratch(const Conv2dShape& s) { return parts_of(s) * s.channels * SUMS; }

}  // namespace nerfkit
