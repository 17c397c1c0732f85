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
  return rows_go_past_caches(to, std::gcd(below, numbers), packs_follow ? PACKS_AT_ONCE<acc_t<T>, 8> : 1, s.bytes<T>());
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

template <class T>
void correlate_tile(const Inputs<acc_t<T>>& in, const AxisGeometry& y, const acc_t<T>* weight,
                    const ChannelView<T>& out, const ChannelView<const T>& source, const Tile& tile, int step,
                    const Conv2dProblem& s) {
  const int unit = s.unit();
  rows_by_group(y, tile.rows, [&](auto k, auto stride, auto r, int i, int groups) {
    const auto to = outputs_of(out, source, tile, i, step, s);
    correlate_columns<T, k, stride, r>(in.below(i), weight, to, tile.columns * unit, groups, period_of(unit));
  });
}

// Without a stride: with one, depthwise_conv2d_pixels_cpu.cpp has them.
template <class T>
void correlate_tile(const TileInPlace<T>& image, const T* weight, const ChannelView<T>& out,
                    const ChannelView<const T>& source, const Tile& tile, const Conv2dProblem& s) {
  const AxisGeometry& x = image.x;
  const auto [first, last] = x.interior(tile.column, tile.columns);
  rows_by_group(
      image.y, tile.rows, [&, first = first, last = last](auto k, auto stride, auto r, int begin, int groups) {
        for (int i = begin; i < begin + groups * r; i += r) {
          const auto in = image.inputs().below(i);
          const auto to = outputs_of(out, source, tile, i, image.y.step(), s);
          auto edge = [&](int j) {
            const int column = tile.column + j;
            correlate<T, k, stride, r, 1>(in.only(x.first_tap(column), x.last_tap(column)), weight, to, {j, j + 1});
          };
          for (int j = 0; j < first; ++j) edge(j);
          correlate_packs<T, k, stride, r>(in, weight, to, {first, last});
          for (int j = last; j < tile.columns; ++j) edge(j);
        }
      });
}

// Packs of channels, to where planes have them.
template <class T>
void to_planes(const acc_t<T>* from, const ChannelView<T>& out, const Tile& tile, int step) {
  T* to = out.values + tile.row * out.row + tile.column;
  for (int r = 0; r < tile.rows; ++r, from += tile.columns * LANES, to += step * out.row)
    transpose_from_packs(from, to, out.channel, tile.columns);
}

// Where a tile's outputs go.
template <class T>
struct Target {
  ChannelView<T> out;
  ChannelView<const T> ahead;  // inputs to prefetch
  Tile tile;
  int step;  // rows

  // Of a buffer.
  Target(const ChannelView<T>& buffer, const Tile& from)
      : out(buffer), ahead(buffer.values, buffer.row), tile{0, 0, 0, from.rows, 0, from.columns}, step(1) {}
  Target(const ChannelView<T>& out, const ChannelView<const T>& ahead, const Tile& tile, int step)
      : out(out), ahead(ahead), tile(tile), step(step) {}
};

// The outputs of one phase of the columns.
template <class T>
struct Correlation {
  using A = acc_t<T>;
  const AxisGeometry &y, &x;
  const Tiles& tiles;
  const Conv2dProblem& s;
  TileInPlace<A> image{y, x, tiles, s.channels};
  std::vector<int64_t> offset = std::vector<int64_t>(x.kernel);
  PackVector<A> packs;

  // What one phase takes of a tile that is padded for several.
  Inputs<A> inputs_of(const PaddedTile<A>& padded) {
    Inputs<A> in = padded.inputs();
    if (&padded.x == &x) return in;
    for (int v = 0; v < x.kernel; ++v) offset[v] = (padded.x.lead - x.lead + int64_t(v) * x.dilation) * padded.unit;
    return {in.rows, in.step, in.shift, in.pack, offset.data(), in.kernel_y, x.kernel, 0, x.kernel};
  }

  // For a tile and its unit's weights, [taps + 1, unit]. `padded` is null where the inputs are read in place.
  template <class To>
  void correlate(const ChannelView<const T>& source, const PaddedTile<A>* padded, const A* weight, const Tile& tile,
                 const Target<To>& to) {
    if constexpr (std::is_same_v<T, A>)
      if (in_place<T>(s, x)) {
        image.find(source, tile);
        return correlate_tile(image, weight, to.out, source, tile, s);
      }
    const auto in = inputs_of(*padded);
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

inline bool interleaved(const Conv2dProblem& s, const std::vector<Phase>& xs) {
  return xs.size() > 1 && !s.lanes_are_channels();
}

template <class T>
Tiles tiles_of(const AxisGeometry& y, const std::vector<Phase>& xs, const Conv2dProblem& s) {
  const AxisGeometry& x = xs[0].axis;  // none is longer
  Tiles tiles(y, x, s, in_place<T>(s, x) || (interleaved(s, xs) && x.out > 8 * LANES));
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
  std::vector<PaddedTile<A>> padded_tiles;  // one for all phases, or one for each
  std::vector<Correlation<T>> columns;      // of the phases
  PackVector<A> channels;                   // [rows, columns, LANES]
  PackVector<T> apart;                      // [phases, rows, columns]

  Rows(const AxisGeometry& y, const std::vector<Phase>& xs, const Tiles& tiles, const Conv2dProblem& s)
      : y(y), xs(xs), tiles(tiles), s(s) {
    for (const AxisGeometry& x : shared) padded_tiles.emplace_back(y, x, tiles, s.unit());
    for (const Phase& x : xs) {
      if (!reads && shared.empty()) padded_tiles.emplace_back(y, x.axis, tiles, s.unit());
      columns.push_back({y, x.axis, tiles, s});
    }
  }

  // For a tile of the first phase, and where the weights of each phase begin, [units, taps + 1, unit].
  void correlate(const ChannelView<const T>& source, const A* weights, const int64_t* begins, const ChannelView<T>& out,
                 const Tile& tile, int width) {
    const int n = int(xs.size()), pixels = std::min(tile.columns * n, width - tile.column * n);
    const Tile all{0, 0, tile.row, tile.rows, tile.column * n, pixels};
    const int64_t most = int64_t(std::min(tiles.width, xs[0].axis.out)) * s.unit();
    const int64_t row = most < LANES ? most : (most + LANES - 1) / LANES * LANES, phase = tiles.height * row;
    channels.resize(transposed(s) ? int64_t(tiles.height) * pixels * LANES : 0);
    apart.resize(interleaved(s, xs) ? n * phase : 0);
    for (int i = 0; i < n; ++i) {
      const AxisGeometry& x = xs[i].axis;
      Tile some = tile;
      some.columns = std::min(tile.columns, x.out - tile.column);
      if (some.columns <= 0) continue;
      const int64_t n_weights = int64_t(y.kernel) * x.kernel + 1;
      PaddedTile<A>* padded = reads ? nullptr : &padded_tiles[shared.empty() ? i : 0];
      if (padded && (shared.empty() || i == 0)) padded->fill(source, some);
      const A* weight = weights + begins[i] + (s.rows ? tile.row : tile.unit * s.unit()) * n_weights;
      const ChannelView<A> packed(channels.data(), pixels * LANES);
      auto to = [&](const auto& target) { columns[i].correlate(source, padded, weight, some, target); };
      if (transposed(s))
        to(Target<A>(packed.columns(i, n), some));
      else if (interleaved(s, xs))
        to(Target<T>(ChannelView<T>(apart.data() + i * phase, row), some));
      else
        to(Target<T>(out.columns(i, n), source, some, y.step()));
    }
    if (transposed(s)) to_planes(channels.data(), out, all, y.step());
    if (!interleaved(s, xs)) return;
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
    if (by_pixel<T>(p)) return depthwise_conv2d_pixels(dtype, x, weight, bias, out, s, false);
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
    if (by_pixel<T>(p)) return depthwise_conv2d_pixels(dtype, grad_out, weight, nullptr, grad_x, s, true);
    Correlations<T>{(const T*)grad_out,   (const T*)weight,     (const T*)nullptr, (T*)grad_x, p,
                    backward_phases(p.y), backward_phases(p.x), p.y.size,          p.x.size}
        .run();
  });
  return 0;
}

}  // namespace nerfkit
