// SPDX-License-Identifier: Apache-2.0
// Outputs of depthwise_conv2d_pairs.h: the odd numbers of a row serve two taps. Products are added in the order of
// depthwise_conv2d_sums.h.

#include "depthwise_conv2d/pairs.h"

namespace nerfkit {
namespace {

constexpr int TOGETHER = 2;  // rows

// R rows of outputs.
template <int R>
struct Rows {
  static constexpr int INPUTS = 2 * R + 1;
  const float* x[INPUTS];
  float* out[R];

  // LANES of each row; taps [INPUTS, TAPS], weight [TAPS * TAPS + 1], of which the last one is the bias.
  HD void sum(int at, const Pack<float> (&tap)[INPUTS][TAPS], const Pack<float>* weight) const {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      Pack<float> total = weight[TAPS * TAPS];
#pragma GCC unroll 3
      for (int v = 0; v < TAPS; ++v)
#pragma GCC unroll 3
        for (int u = 0; u < TAPS; ++u) total += weight[u * TAPS + v] * tap[2 * r + u][v];
      store(out[r] + at, total);
    }
  }

  // The last outputs may overlap those before.
  void correlate(int size, int out_size, const Pack<float>* weight) const {
    Pack<float> tap[INPUTS][TAPS], odd[INPUTS] = {};  // of the outputs before
    int at = 0;
    for (; at <= size / 2 - LANES; at += LANES) {
#pragma GCC unroll 9
      for (int y = 0; y < INPUTS; ++y) {
        const Pairs pairs(x[y] + 2 * at);
        tap[y][0] = shuffled<Before, float>(odd[y], pairs.odd), tap[y][1] = pairs.even, tap[y][2] = pairs.odd;
        odd[y] = pairs.odd;
      }
      sum(at, tap, weight);
    }
    if (at == out_size) return;
    at = out_size - LANES;
#pragma GCC unroll 9
    for (int y = 0; y < INPUTS; ++y) {
      const Pairs pairs = Pairs::last(x[y] + 2 * at, size % 2);
      const Pack<float> first = shuffled<Before, float>(Pack<float>{}, pairs.odd);
      tap[y][0] = at ? Pairs(x[y] + 2 * at - 1).even : first, tap[y][1] = pairs.even, tap[y][2] = pairs.odd;
    }
    sum(at, tap, weight);
  }
};

struct Planes {
  const float *x, *weight, *bias;
  float* out;
  const Conv2dShape& s;
  const PackVector<float> zeros = PackVector<float>(s.x.size);

  template <int R>
  void rows(int64_t plane, int row, const Pack<float>* taps) const {
    Rows<R> some;
    for (int y = 0; y < some.INPUTS; ++y) {
      const int at = 2 * row - 1 + y;
      some.x[y] = at >= 0 && at < s.y.size ? x + (plane * s.y.size + at) * s.x.size : zeros.data();
    }
    for (int r = 0; r < R; ++r) some.out[r] = out + (plane * s.y.out_size + row + r) * s.x.out_size;
    some.correlate(s.x.size, s.x.out_size, taps);
  }

  // The rows begin .. end - 1 of a plane of outputs.
  void some(int64_t plane, int begin, int end) const {
    const int64_t channel = plane % s.channels;
    Pack<float> taps[TAPS * TAPS + 1];
    for (int k = 0; k < TAPS * TAPS; ++k) taps[k] = broadcast(weight[channel * TAPS * TAPS + k]);
    taps[TAPS * TAPS] = broadcast(bias ? bias[channel] : 0.0f);
    int row = begin;
    for (; row + TOGETHER <= end; row += TOGETHER) rows<TOGETHER>(plane, row, taps);
    for (; row < end; ++row) rows<1>(plane, row, taps);
  }

  void run() const {
    const int height = s.y.out_size, parts = (height + DOWN - 1) / DOWN;
    parallel(s.batch * s.channels * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int row = int(i % parts) * DOWN;
        some(i / parts, row, std::min(height, row + DOWN));
      }
    });
  }
};

}  // namespace

void depthwise_conv2d_pairs(const float* x, const float* weight, const float* bias, float* out, const Conv2dShape& s) {
  Planes{x, weight, bias, out, s}.run();
}

}  // namespace nerfkit
