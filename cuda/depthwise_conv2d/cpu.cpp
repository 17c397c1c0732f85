// SPDX-License-Identifier: Apache-2.0
// The gradient of x is the same as the outputs, with a flipped kernel over the output's gradient, one phase of the
// stride after another.

#include "depthwise_conv2d/phases_cpu.h"
#include "depthwise_conv2d/sums_cpu.h"

namespace nerfkit {
namespace {

// Weights of a unit, [n, unit], as packs [period, n, LANES].
template <class A>
const A* in_packs(const A* weight, int64_t n, int unit, PackVector<A>& packs) {
  A* to = packs.data();
  for (int p = 0; p < period_of(unit); ++p)
    for (int64_t k = 0; k < n; ++k, to += LANES)
      if (unit == 1)
        store(to, broadcast(weight[k]));
      else
        for (int i = 0; i < LANES; ++i) to[i] = weight[k * unit + (p * LANES + i) % unit];
  return packs.data();
}

// Whether outputs of a tile, whose rows begin at `to` and are so far apart, are written past the caches.
template <class T>
bool tile_goes_past_caches(const T* to, int64_t below, const ChannelView<T>& out, const Tile& tile,
                           const Conv2dProblem& s) {
  const bool packs_follow = !s.lanes_are_channels() && period_of(s.unit()) == 1;
  const int64_t numbers = s.lanes_are_channels() ? out.column : int64_t(tile.columns) * s.unit();
  return rows_go_past_caches(to, std::gcd(below, numbers), packs_follow ? PACKS_AT_ONCE<T, 8> : 1, s.bytes<T>());
}

// Outputs of a tile, from its row i on; its rows are `step` apart.
template <class T>
Outputs<T> outputs_of(const ChannelView<T>& out, const ChannelView<const T>& source, const Tile& tile, int i, int step,
                      const Conv2dProblem& s) {
  const int64_t row = tile.row + i * step, below = step * out.row, soon_below = step * source.row;
  T* to = out.values + row * out.row + tile.column * out.column;
  const T* ahead = source.values + source.unit + row * source.row + tile.column * source.column;
  const bool prefetches = source.unit && s.bytes<T>() > (s.channels_last ? CACHED : CACHED_PLANES);
  const bool past_caches = source.unit && tile_goes_past_caches(to, below, out, tile, s);
  if (!s.lanes_are_channels()) return {to, below, LANES, LANES, prefetches, ahead, soon_below, LANES, past_caches};
  return {to, below, out.column, LANES, prefetches, ahead, soon_below, source.column, past_caches};
}

// `weight` as packs [period, taps + 1, LANES].
template <class A>
void correlate_tile(const Inputs<A>& in, const AxisGeometry& y, const A* weight, const ChannelView<A>& out,
                    const ChannelView<const A>& source, const Tile& tile, int step, const Conv2dProblem& s) {
  const int unit = s.unit();
  rows_by_group<A>(y, tile.rows, [&](auto k, auto stride, auto r, int i, int groups) {
    const auto to = outputs_of(out, source, tile, i, step, s);
    correlate_columns<A, k, stride, r>(in.below(i), weight, to, tile.columns * unit, groups, period_of(unit));
  });
}

// Without a stride: with one, pixels_cpu.cpp has them.
inline void correlate_tile(const TileInPlace<float>& image, const float* weight, const ChannelView<float>& out,
                           const ChannelView<const float>& source, const Tile& tile, const Conv2dProblem& s) {
  const AxisGeometry& x = image.x;
  const auto [first, last] = x.interior(tile.column, tile.columns);
  rows_by_group<float>(
      image.y, tile.rows, [&, first = first, last = last](auto k, auto stride, auto r, int begin, int groups) {
        for (int i = begin; i < begin + groups * r; i += r) {
          const auto in = image.inputs().below(i);
          const auto to = outputs_of(out, source, tile, i, image.y.step(), s);
          auto edge = [&](int j) {
            const int column = tile.column + j;
            correlate<float, k, stride, r, 1>(in.only(x.first_tap(column), x.last_tap(column)), weight, to, {j, j + 1});
          };
          for (int j = 0; j < first; ++j) edge(j);
          correlate_packs<float, k, stride, r>(in, weight, to, {first, last});
          for (int j = last; j < tile.columns; ++j) edge(j);
        }
      });
}

// Packs of channels, to where an image has them.
template <class T>
void from_packs(const acc_t<T>* from, const ChannelView<T>& out, const Tile& tile, int step) {
  T* to = out.values + tile.row * out.row + tile.column * out.column;
  for (int r = 0; r < tile.rows; ++r, from += tile.columns * LANES, to += step * out.row)
    if (out.channel == 1)
      for (int j = 0; j < tile.columns; ++j) store(to + j * out.column, load(from + j * LANES));
    else
      transpose_from_packs(from, to, out.channel, tile.columns);
}

// Where a tile's outputs go.
template <class A>
struct Target {
  ChannelView<A> out;
  ChannelView<const A> ahead;  // inputs to prefetch
  Tile tile;
  int step;  // rows

  // Of a buffer.
  Target(const ChannelView<A>& buffer, const Tile& from)
      : out(buffer), ahead(buffer.values, buffer.row), tile{0, 0, 0, from.rows, 0, from.columns}, step(1) {}
  Target(const ChannelView<A>& out, const ChannelView<const A>& ahead, const Tile& tile, int step)
      : out(out), ahead(ahead), tile(tile), step(step) {}
};

// The outputs of one phase of the columns, from inputs of a PaddedTile.
template <class A>
struct Correlation {
  const AxisGeometry &y, &x;
  const Conv2dProblem& s;
  std::vector<int64_t> offset = std::vector<int64_t>(x.kernel);
  PackVector<A> packs;

  // What one phase takes of a tile that is padded for several.
  Inputs<A> inputs_of(const PaddedTile<A>& padded) {
    Inputs<A> in = padded.inputs();
    if (&padded.x == &x) return in;
    for (int v = 0; v < x.kernel; ++v) offset[v] = (padded.x.lead - x.lead + int64_t(v) * x.dilation) * padded.unit;
    return {in.rows, in.step, in.shift, in.pack, offset.data(), in.kernel_y, x.kernel, 0, x.kernel};
  }

  // For a tile and its unit's weights, [taps + 1, unit].
  void correlate(const PaddedTile<A>& padded, const A* weight, const Tile& tile, const Target<A>& to) {
    const auto in = inputs_of(padded);
    if (s.rows) {
      const auto out = outputs_of(to.out, to.ahead, to.tile, 0, 1, s);
      return correlate_rows(in, weight, out, tile.rows, tile.columns);
    }
    const int64_t n = int64_t(y.kernel) * x.kernel + 1;
    packs.resize(s.lanes_are_channels() ? 0 : n * period_of(s.unit()) * LANES);
    const A* w = packs.empty() ? weight : in_packs(weight, n, s.unit(), packs);
    correlate_tile(in, y, w, to.out, to.ahead, to.tile, to.step, s);
  }
};

// Outputs go to a buffer first if they are of a half type, which is summed in float32, or lie otherwise in the image:
// as packs of channels, or else phase by phase.
template <class T>
bool to_packs(const Conv2dProblem& s) {
  return s.lanes_are_channels() && (!s.channels_last || !std::is_same_v<T, acc_t<T>>);
}
template <class T>
bool to_phases(const Conv2dProblem& s, const std::vector<Phase>& xs) {
  return !s.lanes_are_channels() && (xs.size() > 1 || !std::is_same_v<T, acc_t<T>>);
}

template <class T>
Tiles tiles_of(const AxisGeometry& y, const std::vector<Phase>& xs, const Conv2dProblem& s) {
  const AxisGeometry& x = xs[0].axis;  // none is longer
  Tiles tiles(y, x, s, in_place<T>(s, x) || (to_phases<T>(s, xs) && x.out > 8 * LANES));
  tiles.down_first = in_place<T>(s, x);
  return tiles;
}

// All columns of one phase of the rows.
template <class T>
struct Rows {
  using A = acc_t<T>;
  const AxisGeometry& y;
  const std::vector<Phase>& xs;
  const Tiles& tiles;
  const Conv2dProblem& s;
  const bool reads = in_place<T>(s, xs[0].axis);
  const std::vector<AxisGeometry> shared = reads ? std::vector<AxisGeometry>() : shared_geometry(xs);
  std::vector<TileInPlace<A>> images;       // of the phases, if their inputs are read in place
  std::vector<PaddedTile<A>> padded_tiles;  // else one for all phases, or one for each
  std::vector<Correlation<A>> columns;      // of the phases
  PackVector<A> packs;                      // [rows, columns, LANES], if to_packs()
  PackVector<A> apart;                      // [phases, rows, columns], if to_phases()

  Rows(const AxisGeometry& y, const std::vector<Phase>& xs, const Tiles& tiles, const Conv2dProblem& s)
      : y(y), xs(xs), tiles(tiles), s(s) {
    for (const AxisGeometry& x : shared) padded_tiles.emplace_back(y, x, tiles, s.unit());
    for (const Phase& x : xs) {
      if (reads) images.emplace_back(y, x.axis, tiles, s.channels);
      if (!reads && shared.empty()) padded_tiles.emplace_back(y, x.axis, tiles, s.unit());
      columns.push_back({y, x.axis, s});
    }
  }

  // For a tile of the first phase, and where the weights of each phase begin, [units, taps + 1, unit].
  void correlate(const ChannelView<const T>& source, const A* weights, const int64_t* begins, const ChannelView<T>& out,
                 const Tile& tile, int width) {
    const int n = int(xs.size()), pixels = std::min(tile.columns * n, width - tile.column * n);
    const Tile all{0, 0, tile.row, tile.rows, tile.column * n, pixels};
    const int64_t most = int64_t(std::min(tiles.width, xs[0].axis.out)) * s.unit();
    const int64_t row = most < LANES ? most : (most + LANES - 1) / LANES * LANES, phase = tiles.height * row;
    packs.resize(to_packs<T>(s) ? int64_t(tiles.height) * pixels * LANES : 0);
    apart.resize(to_phases<T>(s, xs) ? n * phase : 0);
    for (int i = 0; i < n; ++i) {
      const AxisGeometry& x = xs[i].axis;
      Tile some = tile;
      some.columns = std::min(tile.columns, x.out - tile.column);
      if (some.columns <= 0) continue;
      const A* weight =
          weights + begins[i] + (s.rows ? tile.row : tile.unit * s.unit()) * (int64_t(y.kernel) * x.kernel + 1);
      if constexpr (std::is_same_v<T, float>)
        if (reads) {
          images[i].find(source, some);
          correlate_tile(images[i], weight, out.columns(i, n), source, some, s);
          continue;
        }
      PaddedTile<A>& padded = padded_tiles[shared.empty() ? i : 0];
      if (shared.empty() || i == 0) padded.fill(source, some);
      if (to_packs<T>(s))
        columns[i].correlate(padded, weight, some, {ChannelView<A>(packs.data(), pixels * LANES).columns(i, n), some});
      else if (to_phases<T>(s, xs))
        columns[i].correlate(padded, weight, some, {ChannelView<A>(apart.data() + i * phase, row), some});
      else if constexpr (std::is_same_v<T, A>)
        columns[i].correlate(padded, weight, some, {out.columns(i, n), source, some, y.step()});
    }
    if (to_packs<T>(s)) from_packs(packs.data(), out, all, y.step());
    if (!to_phases<T>(s, xs)) return;
    T* to = out.values + all.row * out.row + all.column * out.column;
    interleave(apart.data(), phase, row, to, y.step() * out.row, all.rows, pixels, n, s.unit());
  }
};

template <class T>
struct Correlations {
  const T* from;    // [B, C, H, W] or channels last: x, or grad_out for the gradient of x
  const T* weight;  // [C, KH * KW]
  const T* bias;    // [C] or null
  T* to;            // [B, C, H, W] or channels last
  const Conv2dProblem& s;
  const std::vector<Phase> ys, xs;
  const int height, width;  // of the outputs
  const PhaseWeights<acc_t<T>> weights{weight, bias, s, ys, xs};

  void run() const {
    if (xs.empty()) return;
    for (size_t phase = 0; phase < ys.size();
         ++phase) {  // one by one: threads then rarely write to one cache line together
      const Tiles tiles = tiles_of<T>(ys[phase].axis, xs, s);
      parallel(tiles.length * tiles.series, 1,
               [&](int64_t begin, int64_t end) { some(int(phase), tiles, begin, end); });
    }
  }

  // The tiles begin .. end - 1 of a phase of the rows.
  void some(int phase, const Tiles& tiles, int64_t begin, int64_t end) const {
    const AxisGeometry &y = ys[phase].axis, &x = xs[0].axis;
    Rows<T> rows{y, xs, tiles, s};
    for (int64_t i = begin; i < end; ++i) {
      const Tile tile = tiles.tile(i % tiles.series, i / tiles.series);
      if (tile.rows <= 0) continue;
      const ChannelView<T> out(to, s, height, width, tile);
      rows.correlate({from, s, y.source, x.source, tile}, weights.values.data(),
                     weights.begins.data() + phase * xs.size(), out.rows(ys[phase].first, int(ys.size())), tile, width);
    }
    streaming_fence();
  }
};

}  // namespace

Status depthwise_conv2d(DType dtype, const void* x, const void* weight, const void* bias, void* out,
                        const Conv2dShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const Conv2dProblem p(s);
    if (by_pixel<T>(p))
      return depthwise_conv2d_pixels((const float*)x, (const float*)weight, (const float*)bias, (float*)out, s, false);
    Correlations<T>{(const T*)x,         (const T*)weight,    (const T*)bias, (T*)out,     p,
                    forward_phases(p.y), forward_phases(p.x), p.y.out_size,   p.x.out_size}
        .run();
  });
  return 0;
}

Status depthwise_conv2d_bwd(DType dtype, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* scratch, const Conv2dShape& s, Stream) {
  if (grad_weight && gradients_together(dtype, s)) {
    depthwise_conv2d_gradients(grad_out, x, weight, grad_x, grad_weight, grad_bias, scratch, s);
    return 0;
  }
  if (grad_weight) depthwise_conv2d_weights(dtype, grad_out, x, grad_weight, grad_bias, scratch, s);
  if (!grad_x) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const Conv2dProblem p(s);
    if (by_pixel<T>(p))
      return depthwise_conv2d_pixels((const float*)grad_out, (const float*)weight, nullptr, (float*)grad_x, s, true);
    Correlations<T>{(const T*)grad_out,   (const T*)weight,     (const T*)nullptr, (T*)grad_x, p,
                    backward_phases(p.y), backward_phases(p.x), p.y.size,          p.x.size}
        .run();
  });
  return 0;
}

}  // namespace nerfkit
