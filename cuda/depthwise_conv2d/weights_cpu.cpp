// SPDX-License-Identifier: Apache-2.0
// The gradients of the weights.

#include "depthwise_conv2d/padded_tile_cpu.h"

namespace nerfkit {
namespace {

constexpr int64_t PARTIALS = 128;  // sums of the weight gradient: a number that does not depend on that of threads

// Adds taps v .. v + V - 1 to sums [kernel_y * kernel_x + 1, LANES], for the packs begin .. end - 1 of R rows of grad.
// Of another pack count only the first `lanes`, if any: what lies beyond may be infinite.
template <class A, int K, int R, int V>
void correlate_taps(const Inputs<A>& in, const Inputs<A>& grad, A* sums, int v, int begin, int end, int lanes) {
  constexpr int ROWS = K ? K : 1;
  constexpr int CHAINS = R < 4 || V > 1 ? 1 : K == 1 ? 4 : K == 3 ? 3 : K == 5 ? 2 : 1;  // sums that do not wait
  const Pack<A> lane = lane_iota<A>();
  const int64_t in_pack = in.pack, grad_pack = grad.pack, shift = in.shift;  // of both
  const bool prefetches = v == 0 && in_pack > LANES;
  for (int u0 = 0; u0 < in.kernel_y; u0 += ROWS) {
    const A *const *rows = in.rows + u0, *const *grads = grad.rows;
    Pack<A> sum[CHAINS][ROWS][V] = {};
    auto add = [&](int p, auto only) __attribute__((always_inline)) {
      if (prefetches)  // the next channels
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          __builtin_prefetch(grads[r] + p * grad_pack + LANES);
          __builtin_prefetch(rows[r + ROWS / 2] + in.offset[v] + p * in_pack + LANES);
        }
      Pack<A> g[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) g[r] = load(grads[r] + shift + p * grad_pack);
#pragma GCC unroll 16
      for (int y = 0; y < ROWS + R - 1; ++y) {
        in_order();
#pragma GCC unroll 5
        for (int i = 0; i < V; ++i) {
          const Pack<A> pack = only(load(rows[y] + shift + in.offset[v + i] + p * in_pack));
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r)
            if (y >= r && y - r < ROWS) sum[r % CHAINS][y - r][i] += g[r] * pack;
        }
      }
    };
    for (int p = begin; p < end; ++p) add(p, [](Pack<A> x) __attribute__((always_inline)) { return x; });
    if (lanes) add(end, [&](Pack<A> x) __attribute__((always_inline)) { return lane < A(lanes) ? x : Pack<A>{}; });
#pragma GCC unroll 9
    for (int u = 0; u < ROWS; ++u)
#pragma GCC unroll 5
      for (int i = 0; i < V; ++i) {
        A* to = sums + ((u0 + u) * in.kernel_x + v + i) * LANES;
        Pack<A> all = load(to);
#pragma GCC unroll 4
        for (int chain = 0; chain < CHAINS; ++chain) all += sum[chain][u][i];
        store(to, all);
      }
  }
}

// sums [rows, kernel_x + 1, LANES] of rows that each have a kernel of their own; the last of a row is the bias.
template <class A>
void correlate_rows(const Inputs<A>& in, const Inputs<A>& grad, A* sums, int rows, int columns) {
  const Pack<A> lane = lane_iota<A>();
  const int full = columns / LANES * LANES, taps = in.kernel_x;
  for (int r = 0; r < rows; ++r) {
    const A *from = in.rows[r], *g = grad.rows[r];
    for (int v = 0; v < taps; ++v, sums += LANES) {
      Pack<A> sum = load(sums);
      for (int at = 0; at < full; at += LANES) sum += load(g + at) * load(from + in.offset[v] + at);
      if (full < columns)
        sum += load(g + full) * (lane < A(columns - full) ? load(from + in.offset[v] + full) : Pack<A>{});
      store(sums, sum);
    }
    Pack<A> sum = load(sums);
    for (int at = 0; at < columns; at += LANES) sum += load(g + at);
    store(sums, sum);
    sums += LANES;
  }
}

// Adds the packs begin .. end - 1 of some rows to a sum.
template <class A>
void add_rows(const Inputs<A>& grad, A* sum, int rows, int begin, int end) {
  Pack<A> some[4] = {load(sum)};
  for (int r = 0; r < rows; ++r)
    for (int p = begin; p < end; ++p) some[p % 4] += load(grad.rows[r] + grad.shift + p * grad.pack);
  store(sum, (some[0] + some[1]) + (some[2] + some[3]));
}

template <class A, int K, int R>
void correlate_weights(const Inputs<A>& in, const Inputs<A>& grad, A* sums, int begin, int end, int lanes) {
  constexpr int V = R == 4 && K == 5 ? 5 : (R == 8 && (K == 3 || K == 7)) || (R == 1 && K < 9) ? 3 : 1;
  int v = in.first;
  if constexpr (MAX_PACKS<A> >= 32 && V > 1)
    for (; v + V <= in.last; v += V) correlate_taps<A, K, R, V>(in, grad, sums, v, begin, end, lanes);
  for (; v < in.last; ++v) correlate_taps<A, K, R, 1>(in, grad, sums, v, begin, end, lanes);
}

// Calls f(K, R, i) for R rows from row i on; K is the kernel's height, or 0 for any with R = 1.
template <class A, class F>
void row_by_row(const AxisGeometry& y, int rows, const F& f) {
  with_height<A>(y.kernel, [&](auto k) {
    int i = 0;
    if constexpr (REGISTERS >= 32 && k != 0 && k != 5)
      for (; y.shares_rows() && i + 8 <= rows; i += 8) f(k, Int<8>(), i);
    if constexpr (k != 0)
      for (; y.shares_rows() && i + 4 <= rows; i += 4) f(k, Int<4>(), i);
    for (; i < rows; ++i) f(k, Int<1>(), i);
  });
}

// sums [period, taps + 1, LANES]
template <class A>
void correlate_tile(const PaddedTile<A>& in, const PaddedTile<A>& grad, A* sums, const Tile& tile) {
  const int numbers = tile.columns * in.unit, full = numbers / LANES, period = period_of(in.unit);
  const int64_t taps = int64_t(in.y.kernel) * in.x.kernel;
  for (int p = 0; p < period; ++p, sums += (taps + 1) * LANES) {
    const int packs = std::max(0, (full - p + period - 1) / period), lanes = full % period == p ? numbers % LANES : 0;
    const auto from = in.inputs().every(period, p), to = grad.inputs().every(period, p);
    row_by_row<A>(in.y, tile.rows, [&](auto k, auto r, int i) {
      correlate_weights<A, k, r>(from.below(i), to.below(i), sums, 0, packs, lanes);
    });
    add_rows(to, sums + taps * LANES, tile.rows, 0, packs + (lanes > 0));
  }
}

template <class A>
void correlate_tile(const TileInPlace<A>& in, const TileInPlace<A>& grad, A* sums, const Tile& tile) {
  const AxisGeometry& x = in.x;
  const auto [first, last] = x.interior(tile.column, tile.columns);
  row_by_row<A>(in.y, tile.rows, [&, first = first, last = last](auto k, auto r, int i) {
    const auto from = in.inputs().below(i), to = grad.inputs().below(i);
    auto edge = [&](int j) {
      const int column = tile.column + j;
      correlate_weights<A, k, r>(from.only(x.first_tap(column), x.last_tap(column)), to, sums, j, j + 1, 0);
    };
    for (int j = 0; j < first; ++j) edge(j);
    correlate_weights<A, k, r>(from, to, sums, first, last, 0);
    for (int j = last; j < tile.columns; ++j) edge(j);
  });
  add_rows(grad.inputs(), sums + in.y.kernel * x.kernel * LANES, tile.rows, 0, tile.columns);
}

int64_t partials_of(const Tiles& tiles) { return std::min(PARTIALS, tiles.length); }

// Sums [period, taps + 1, LANES] of a unit, or [rows, taps + 1, LANES], to those of its channels, [C, taps + 1].
template <class A>
void by_channel(const PackVector<A>& sums, A* to, const Tile& tile, int64_t n_sums, const Conv2dProblem& s) {
  const int unit = s.unit(), packs = s.rows ? tile.rows : period_of(unit);
  const int64_t first = s.rows ? tile.row : s.first_channel(tile.unit), n = s.rows ? tile.rows : unit;
  const int64_t taken = s.rows ? 0 : tile.unit * unit - first;  // channels that the unit before has, on another thread
  to += first * n_sums;
  std::fill(to + taken * n_sums, to + n * n_sums, A(0));
  for (int p = 0; p < packs; ++p)
    for (int c = 0; c < unit; ++c) {
      const A* from = sums.data() + p * n_sums * LANES;
      const int64_t at = s.rows ? p : (p * LANES + c) % unit;
      if (at < taken) continue;
      A* channel = to + at * n_sums;
      for (int64_t k = 0; k < n_sums; ++k, from += LANES) {
        A sum = 0;
        for (int lane = c; lane < LANES; lane += unit) sum += from[lane];
        channel[k] += sum;
      }
    }
}

template <class T>
struct WeightSums {
  using A = acc_t<T>;
  const T* grad_out;  // [B, C, H_out, W_out] or channels last
  const T* from;      // x [B, C, H, W] or channels last
  const Conv2dProblem& s;
  const AxisGeometry y = forward_geometry(s.y), x = forward_geometry(s.x), grad_y = output_geometry(s.y),
                     grad_x = output_geometry(s.x);
  const Tiles tiles{y, x, s, in_place<T>(s, x)};
  const int64_t n_sums = int64_t(s.y.kernel) * s.x.kernel + 1;

  // Adds the tiles begin .. end - 1 of a series, for `partial` of scratch.
  struct Worker {
    const WeightSums& all;
    PaddedTile<A> in{all.y, all.x, all.tiles, all.s.unit()}, grad{all.grad_y, all.grad_x, all.tiles, all.s.unit()};
    TileInPlace<A> image{all.y, all.x, all.tiles, all.s.channels};
    TileInPlace<A> grad_image{all.grad_y, all.grad_x, all.tiles, all.s.channels};
    PackVector<A> sums;

    void add(const Tile& tile) {
      if (tile.rows <= 0) return;
      const ChannelView<const T> source(all.from, all.s, all.y.source, all.x.source, tile);
      const ChannelView<const T> grads(all.grad_out, all.s, all.y.out, all.x.out, tile);
      if constexpr (std::is_same_v<T, float>)
        if (in_place<T>(all.s, all.x)) {
          image.find(source, tile);
          grad_image.find(grads, tile);
          return correlate_tile(image, grad_image, sums.data(), tile);
        }
      in.fill(source, tile);
      grad.fill(grads, tile);
      if (all.s.rows)
        correlate_rows(in.inputs(), grad.inputs(), sums.data(), tile.rows, tile.columns);
      else
        correlate_tile(in, grad, sums.data(), tile);
    }
  };

  void sum(A* scratch) const {
    const int64_t partials = partials_of(tiles), length = tiles.length;
    parallel(partials * tiles.series, 1, [&](int64_t begin, int64_t end) {
      Worker worker{*this};
      for (int64_t i = begin; i < end; ++i) {
        const int64_t partial = i / tiles.series, which = i % tiles.series;
        worker.sums.assign(n_sums * LANES * (s.rows ? DOWN : period_of(s.unit())), A(0));
        for (int64_t index = length * partial / partials; index < length * (partial + 1) / partials; ++index)
          worker.add(tiles.tile(which, index));
        by_channel(worker.sums, scratch + partial * s.kernels() * n_sums, tiles.tile(which, 0), n_sums, s);
      }
    });
  }
};

template <class T>
void to_weight(const T* grad_out, const T* from, T* grad_weight, T* grad_bias, acc_t<T>* scratch,
               const Conv2dProblem& s) {
  const WeightSums<T> sums{grad_out, from, s};
  const int64_t partials = partials_of(sums.tiles), n = sums.n_sums;
  sums.sum(scratch);
  for (int64_t c = 0; c < s.kernels(); ++c)
    for (int64_t k = 0; k < n; ++k) {
      acc_t<T> sum = 0;
      for (int64_t partial = 0; partial < partials; ++partial) sum += scratch[(partial * s.kernels() + c) * n + k];
      (k + 1 < n ? grad_weight[c * (n - 1) + k] : grad_bias[c]) = T(sum);
    }
}

}  // namespace

void depthwise_conv2d_weights(DType dtype, const void* grad_out, const void* x, void* grad_weight, void* grad_bias,
                              void* scratch, const Conv2dShape& s) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    to_weight((const T*)grad_out, (const T*)x, (T*)grad_weight, (T*)grad_bias, (acc_t<T>*)scratch, Conv2dProblem(s));
  });
}

int64_t conv2d_scratch(DType dtype, const Conv2dShape& shape) {
  if (gradients_together(dtype, shape)) return gradients_scratch(shape);
  const Conv2dProblem s(shape);
  const AxisGeometry y = forward_geometry(s.y), x = forward_geometry(s.x);
  int64_t partials = 0;
  dispatch(dtype, [&](auto element) { partials = partials_of(Tiles(y, x, s, in_place<decltype(element)>(s, x))); });
  return partials * s.kernels() * (int64_t(s.y.kernel) * s.x.kernel + 1);
}

}  // namespace nerfkit
