// SPDX-License-Identifier: Apache-2.0
// Channels last, outputs are summed in the order in which they lie in memory: two rows of some pixels, pack by pack of
// their channels, then the next pixels. Memory is then read and written line after line.

#include "depthwise_conv2d/phases_cpu.h"
#include "depthwise_conv2d/sums_cpu.h"

namespace nerfkit {
namespace {

constexpr int TOGETHER = 2;          // rows
constexpr int64_t NEAR = 256 << 10;  // bytes of inputs that stay in a core's own cache from two rows to the next

// Pixels of which R rows are summed at once: their sums and weights fit in the registers.
template <class T>
constexpr int MOST_PIXELS = MAX_PACKS<T> / 4;
// Of 3 x 3 taps, which wait for memory, fewer: lines then come nearly in the order that the processor predicts.
template <class T, int K, int S>
constexpr int PIXELS = K == 3 ? std::min(S == 1 ? 4 : 2, MOST_PIXELS<T>) : MOST_PIXELS<T>;

// P pixels at a time with all their channels; weight [units, kernel_y * kernel_x + 1, LANES].
template <class T, int K, int S, int R, int P>
void correlate_pixels(const Inputs<T>& in, const T* weight, const Outputs<T>& out, const Span& span, int64_t channels) {
  const int64_t n_weights = (int64_t(in.kernel_y) * in.kernel_x + 1) * LANES;
  for (int p = span.begin; p < span.end; p += P) {
    const T* w = weight;
    for (int64_t c = 0; c < channels; c += LANES, w += n_weights) {
      const int64_t first = std::min(c, channels - LANES);
      correlate_group<T, K, S, R, P>(in.moved(first), w, out.moved(first), {p, p + P});
    }
  }
}

// The same for 3 x 3 taps, of a row one apart or as far as the inputs of neighbouring outputs: the weights stay in
// registers beside the sums, as far as these hold them, and an input is loaded once for all taps. Products are added in
// the same order.
template <class T, int S, int R, int P>
void correlate_3x3(const Inputs<T>& in, const T* weight, const Outputs<T>& out, const Span& span, int64_t channels) {
  constexpr int K = 3, ROWS = K + (R - 1) * S, COLUMNS = K + (P - 1) * S;
  const int64_t pixel = in.offset[1];
  StreamingLine<T> lines[R][P];
  for (int p = span.begin; p < span.end; p += P) {
    const T* w = weight;
    for (int64_t c = 0; c < channels; c += LANES, w += (K * K + 1) * LANES) {
      const int64_t first = std::min(c, channels - LANES);
      if (out.prefetches) out.moved(first).template prefetch<R, P>(p);
      const T* from[ROWS];
#pragma GCC unroll 8
      for (int y = 0; y < ROWS; ++y) {
        const int r = std::min(y / S, R - 1);  // has a pointer to it
        from[y] = in.rows[S == 1 ? y : r * K + y - r * S] + in.shift + first + p * in.pack;
      }
      Pack<T> tap[K][K], sum[R][P];
#pragma GCC unroll 3
      for (int u = 0; u < K; ++u)
#pragma GCC unroll 3
        for (int v = 0; v < K; ++v) tap[u][v] = load(w + (u * K + v) * LANES);
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int i = 0; i < P; ++i) sum[r][i] = load(w + K * K * LANES);
      int64_t at = 0;
#pragma GCC unroll 24
      for (int j = 0; j < COLUMNS; ++j, at += pixel)
#pragma GCC unroll 8
        for (int y = 0; y < ROWS; ++y) {
          in_order();
          const Pack<T> pack = load(from[y] + at);
#pragma GCC unroll 3
          for (int v = 0; v < K; ++v)
#pragma GCC unroll 2
            for (int r = 0; r < R; ++r) {
              const int i = (j - v) / S, u = y - r * S;
              if (j >= v && (j - v) % S == 0 && i < P && u >= 0 && u < K) sum[r][i] += tap[u][v] * pack;
            }
        }
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int i = 0; i < P; ++i) {
          T* const to = out.values + first + r * out.row + (p + i) * out.pack;
          out.past_caches ? lines[r][i].put(to, sum[r][i], first / LANES % PACKS_PER_LINE<T>) : store(to, sum[r][i]);
        }
    }
  }
}

// Whether taps and outputs are as far apart as correlate_3x3 has them.
template <class T, int S>
bool takes_3x3(const Inputs<T>& in) {
  return in.kernel_x == 3 && in.first == 0 && in.last == 3 && in.offset[2] == 2 * in.offset[1] &&
         in.pack == S * in.offset[1];
}

// A span, P pixels at a time as far as there are so many; the last ones may overlap those before.
template <class T, int K, int S, int R, int P = PIXELS<T, K, S>>
void correlate_span(const Inputs<T>& in, const T* weight, const Outputs<T>& out, Span span, int64_t channels) {
  const int n = span.end - span.begin, full = n / P * P;
  const auto correlate_some = [&](const Span& some) {
    if constexpr (K == 3 && R == TOGETHER && P > 1)
      if (takes_3x3<T, S>(in)) return correlate_3x3<T, S, R, P>(in, weight, out, some, channels);
    correlate_pixels<T, K, S, R, P>(in, weight, out, some, channels);
  };
  if (full) correlate_some({span.begin, span.begin + full});
  if constexpr (P > 1) {
    if (full && n - full > P / 2)
      correlate_some({span.end - P, span.end});
    else if (full < n)
      correlate_span<T, K, S, R, P / 2>(in, weight, out, {span.begin + full, span.end}, channels);
  }
}

// A tile of all channels.
template <class T, int K, int S, int R>
void correlate_tile(const TileInPlace<T>& image, const T* weight, const Outputs<T>& out, const Tile& tile,
                    int64_t channels) {
  const AxisGeometry& x = image.x;
  const auto [first, last] = x.interior(tile.column, tile.columns);
  const auto in = image.inputs();
  auto edge = [&](int j) {
    const int column = tile.column + j;
    const auto some = in.only(x.first_tap(column), x.last_tap(column));
    correlate_pixels<T, K, S, R, 1>(some, weight, out, {j, j + 1}, channels);
  };
  for (int j = 0; j < first; ++j) edge(j);
  correlate_span<T, K, S, R>(in, weight, out, {first, last}, channels);
  for (int j = last; j < tile.columns; ++j) edge(j);
}

// Calls f(K, S, R) for the kernel's height if it is 3, the stride and the rows that are summed at once.
template <class F>
void with_rows(const AxisGeometry& y, int rows, const F& f) {
  if (rows < TOGETHER) return f(Int<0>(), Int<1>(), Int<1>());
  const bool shares_2 = y.stride == 2 && y.dilation == 1;
  if (y.kernel == 3 && y.shares_rows()) return f(Int<3>(), Int<1>(), Int<TOGETHER>());
  if (y.kernel == 3 && shares_2) return f(Int<3>(), Int<2>(), Int<TOGETHER>());
  f(Int<0>(), Int<1>(), Int<TOGETHER>());
}

template <class T>
struct InMemoryOrder {
  const T* from;  // [B, H, W, C]: x, or grad_out for the gradient of x
  T* to;          // [B, H, W, C]
  const Conv2dProblem& s;
  const std::vector<Phase> ys, xs;
  const PhaseWeights<T>& weights;
  const int height, width;  // of the outputs
  // With a stride rows come faster than they are asked for; the processor does better by itself.
  const bool prefetches = s.y.stride == 1 && s.x.stride == 1 && s.bytes<T>() > CACHED;
  const bool past_caches =
      rows_go_past_caches(to, s.channels, holds_cache_lines() ? PACKS_PER_LINE<T> : 1, s.bytes<T>());

  // Whether correlate_3x3, which holds the packs of a cache line until it is full, takes all but the edges.
  bool holds_cache_lines() const {
    const AxisGeometry &y = ys[0].axis, &x = xs[0].axis;
    const bool one_part = ys.size() == 1 && xs.size() == 1, taps = y.kernel == 3 && x.kernel == 3;
    const bool near = y.stride == x.stride && y.stride <= 2 && y.dilation == 1 && x.dilation == 1;
    return one_part && taps && near && y.out >= TOGETHER;
  }

  void run() const {
    for (size_t phase = 0; phase < ys.size(); ++phase) {
      const AxisGeometry &y = ys[phase].axis, &x = xs[0].axis;  // none is longer
      const int64_t rows = int64_t(TOGETHER - 1) * y.stride + int64_t(std::max(0, y.kernel - 1)) * y.dilation + 1;
      const int64_t pixels = NEAR / (rows * x.stride * s.channels * int64_t(sizeof(T)));
      const Tiles tiles(y, x, s.batch, TOGETHER, int(std::min<int64_t>(x.out, std::max<int64_t>(pixels, 2 * LANES))));
      parallel(tiles.length, 1, [&](int64_t begin, int64_t end) { some(phase, tiles, begin, end); });
    }
  }

  void some(size_t phase, const Tiles& tiles, int64_t begin, int64_t end) const {
    const AxisGeometry& y = ys[phase].axis;
    std::vector<TileInPlace<T>> images;
    for (const Phase& x : xs) images.emplace_back(y, x.axis, tiles, s.channels);
    for (int64_t i = begin; i < end; ++i) {
      Tile tile = tiles.tile(0, i);
      if (tile.rows <= 0) continue;
      // One row again, perhaps beside another thread: what both write is the same.
      if (tile.rows < TOGETHER && tile.row >= tiles.apart) tile.row -= tiles.apart, ++tile.rows;
      const ChannelView<T> all = ChannelView<T>(to, s, height, width, tile).rows(ys[phase].first, int(ys.size()));
      const ChannelView<const T> source(from, s, y.source, xs[0].axis.source, tile);
      for (size_t k = 0; k < xs.size(); ++k) {
        const AxisGeometry& x = xs[k].axis;
        tile.columns = std::min(tiles.width, x.out - tile.column);
        if (tile.columns <= 0) continue;
        images[k].find(source, tile);
        const T* weight = weights.values.data() + weights.begins[phase * xs.size() + k];
        const auto out = outputs(all.columns(xs[k].first, int(xs.size())), source, y, tile);
        with_rows(y, tile.rows, [&](auto kernel, auto stride, auto rows) {
          correlate_tile<T, kernel, stride, rows>(images[k], weight, out, tile, s.channels);
        });
      }
    }
    if (past_caches) streaming_fence();
  }

  Outputs<T> outputs(const ChannelView<T>& out, const ChannelView<const T>& source, const AxisGeometry& y,
                     const Tile& tile) const {
    const int next = y.start(tile.row) + (tile.rows - 1) * y.stride + (y.kernel - 1) * y.dilation + 1;  // not read yet
    const int row = std::max(0, std::min(next, y.source - 1));
    return {out.values + tile.row * out.row + tile.column * out.column,
            y.step() * out.row,
            out.column,
            LANES,
            prefetches,
            source.values + row * source.row + tile.column * source.column,
            row + 1 < y.source ? source.row : 0,
            source.column,
            past_caches};
  }
};

}  // namespace

void depthwise_conv2d_pixels(const float* from, const float* weight, const float* bias, float* to,
                             const Conv2dShape& shape, bool backward) {
  const Conv2dProblem s(shape);
  const auto ys = backward ? backward_phases(s.y) : forward_phases(s.y);
  const auto xs = backward ? backward_phases(s.x) : forward_phases(s.x);
  if (ys.empty() || xs.empty()) return;
  const PhaseWeights<float> weights(weight, bias, s, ys, xs);
  const int height = backward ? s.y.size : s.y.out_size, width = backward ? s.x.size : s.x.out_size;
  InMemoryOrder<float>{from, to, s, ys, xs, weights, height, width}.run();
}

}  // namespace nerfkit
