// SPDX-License-Identifier: Apache-2.0
// The gradient of x is the same as the outputs, with a flipped kernel over the output's gradient, in parts.

#include "depthwise_conv2d/parts.h"
#include "depthwise_conv2d/sums.h"

namespace nerfkit {
namespace {

// Weights of a unit, [n, unit], as packs [period, n, LANES].
template <class A>
const A* in_packs(const A* weight, int64_t n, int unit, PackVector<A>& packs) {
  A* to = packs.data();
  for (int p = 0; p < period_of(unit); ++p)
    for (int64_t k = 0; k < n; ++k, to += LANES)
      if (unit == 1)
        store(to, repeated(weight[k]));
      else
        for (int i = 0; i < LANES; ++i) to[i] = weight[k * unit + (p * LANES + i) % unit];
  return packs.data();
}

// Whether outputs of a tile, whose rows begin at `to` and are so far apart, are written past the caches.
template <class T>
bool tile_goes_past_caches(const T* to, int64_t below, const Plane<T>& out, const Tile& tile, const Pictures& s) {
  const bool packs_follow = !s.lanes_are_channels() && period_of(s.unit()) == 1;
  const int64_t numbers = s.lanes_are_channels() ? out.column : int64_t(tile.columns) * s.unit();
  return rows_go_past_caches(to, std::gcd(below, numbers), packs_follow ? PACKS_AT_ONCE<acc_t<T>, 8> : 1, s.bytes<T>());
}

// Outputs of a tile, from its row i on; its rows are `step` apart.
template <class T>
Outputs<T> outputs_of(const Plane<T>& out, const Plane<const T>& source, const Tile& tile, int i, int step,
                      const Pictures& s) {
  const int64_t row = tile.row + i * step, below = step * out.row, soon_below = step * source.row;
  T* to = out.values + row * out.row + tile.column * out.column;
  const T* soon = source.values + source.unit + row * source.row + tile.column * source.column;
  const bool fetches = source.unit && s.bytes<T>() > (s.channels_last ? CACHED : CACHED_PLANES);
  const bool past_caches = source.unit && tile_goes_past_caches(to, below, out, tile, s);
  if (!s.lanes_are_channels()) return {to, below, LANES, LANES, fetches, soon, soon_below, LANES, past_caches};
  return {to, below, out.column, LANES, fetches, soon, soon_below, source.column, past_caches};
}

template <class T>
void correlate_tile(const Inputs<acc_t<T>>& in, const Line& y, const acc_t<T>* weight, const Plane<T>& out,
                    const Plane<const T>& source, const Tile& tile, int step, const Pictures& s) {
  const int unit = s.unit();
  rows_by_group(y, tile.rows, [&](auto k, auto stride, auto r, int i, int groups) {
    const auto to = outputs_of(out, source, tile, i, step, s);
    correlate_columns<T, k, stride, r>(in.below(i), weight, to, tile.columns * unit, groups, period_of(unit));
  });
}

// Without a stride: with one, depthwise_conv2d_pixels_cpu.cpp has them.
template <class T>
void correlate_tile(const InPlace<T>& picture, const T* weight, const Plane<T>& out, const Plane<const T>& source,
                    const Tile& tile, const Pictures& s) {
  const Line& x = picture.x;
  const auto [first, last] = x.whole(tile.column, tile.columns);
  rows_by_group(
      picture.y, tile.rows, [&, first = first, last = last](auto k, auto stride, auto r, int begin, int groups) {
        for (int i = begin; i < begin + groups * r; i += r) {
          const auto in = picture.inputs().below(i);
          const auto to = outputs_of(out, source, tile, i, picture.y.step(), s);
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
void to_planes(const acc_t<T>* from, const Plane<T>& out, const Tile& tile, int step) {
  T* to = out.values + tile.row * out.row + tile.column;
  for (int r = 0; r < tile.rows; ++r, from += tile.columns * LANES, to += step * out.row)
    transpose_out(from, to, out.channel, tile.columns);
}

// Where a tile's outputs go.
template <class T>
struct Target {
  Plane<T> out;
  Plane<const T> soon;  // inputs to fetch
  Tile tile;
  int step;  // rows

  // Of a buffer.
  Target(const Plane<T>& buffer, const Tile& from)
      : out(buffer), soon(buffer.values, buffer.row), tile{0, 0, 0, from.rows, 0, from.columns}, step(1) {}
  Target(const Plane<T>& out, const Plane<const T>& soon, const Tile& tile, int step)
      : out(out), soon(soon), tile(tile), step(step) {}
};

// The outputs of a part of the columns.
template <class T>
struct Correlation {
  using A = acc_t<T>;
  const Line &y, &x;
  const Tiles& tiles;
  const Pictures& s;
  InPlace<A> picture{y, x, tiles, s.channels};
  std::vector<int64_t> offset = std::vector<int64_t>(x.kernel);
  PackVector<A> packs;

  // What a part takes of a frame for several.
  Inputs<A> inputs_of(const Frame<A>& frame) {
    Inputs<A> in = frame.inputs();
    if (&frame.x == &x) return in;
    for (int v = 0; v < x.kernel; ++v) offset[v] = (frame.x.lead - x.lead + int64_t(v) * x.dilation) * frame.unit;
    return {in.rows, in.step, in.shift, in.pack, offset.data(), in.kernel_y, x.kernel, 0, x.kernel};
  }

  // For a tile and its unit's weights, [taps + 1, unit]. No frame where the inputs are read where they are.
  template <class To>
  void correlate(const Plane<const T>& source, const Frame<A>* frame, const A* weight, const Tile& tile,
                 const Target<To>& to) {
    if constexpr (std::is_same_v<T, A>)
      if (in_place<T>(s, x)) {
        picture.find(source, tile);
        return correlate_tile(picture, weight, to.out, source, tile, s);
      }
    const auto in = inputs_of(*frame);
    if (s.rows) {
      const auto out = outputs_of(to.out, to.soon, to.tile, 0, 1, s);
      return correlate_rows(in, weight, out, tile.rows, tile.columns);
    }
    const int64_t n = int64_t(y.kernel) * x.kernel + 1;
    packs.resize(s.lanes_are_channels() ? 0 : n * period_of(s.unit()) * LANES);
    const A* w = packs.empty() ? weight : in_packs(weight, n, s.unit(), packs);
    correlate_tile(in, y, w, to.out, to.soon, to.tile, to.step, s);
  }
};

inline bool woven(const Pictures& s, const std::vector<Part>& xs) { return xs.size() > 1 && !s.lanes_are_channels(); }

template <class T>
Tiles tiles_of(const Line& y, const std::vector<Part>& xs, const Pictures& s) {
  const Line& x = xs[0].line;  // none is longer
  Tiles tiles(y, x, s, in_place<T>(s, x) || (woven(s, xs) && x.out > 8 * LANES));
  tiles.down_first = in_place<T>(s, x);
  return tiles;
}

// All columns of a part of the rows.
template <class T>
struct Rows {
  using A = acc_t<T>;
  const Line& y;
  const std::vector<Part>& xs;
  const Tiles& tiles;
  const Pictures& s;
  const bool reads = in_place<T>(s, xs[0].line);
  const std::vector<Line> shared = reads ? std::vector<Line>() : shared_line(xs);
  std::vector<Frame<A>> frames;         // one for all parts, or one for each
  std::vector<Correlation<T>> columns;  // of the parts
  PackVector<A> channels;               // [rows, columns, LANES]
  PackVector<T> apart;                  // [parts, rows, columns]

  Rows(const Line& y, const std::vector<Part>& xs, const Tiles& tiles, const Pictures& s)
      : y(y), xs(xs), tiles(tiles), s(s) {
    for (const Line& x : shared) frames.emplace_back(y, x, tiles, s.unit());
    for (const Part& x : xs) {
      if (!reads && shared.empty()) frames.emplace_back(y, x.line, tiles, s.unit());
      columns.push_back({y, x.line, tiles, s});
    }
  }

  // For a tile of the first part, and where the weights of each part begin, [units, taps + 1, unit].
  void correlate(const Plane<const T>& source, const A* weights, const int64_t* begins, const Plane<T>& out,
                 const Tile& tile, int width) {
    const int n = int(xs.size()), pixels = std::min(tile.columns * n, width - tile.column * n);
    const Tile all{0, 0, tile.row, tile.rows, tile.column * n, pixels};
    const int64_t most = int64_t(std::min(tiles.width, xs[0].line.out)) * s.unit();
    const int64_t row = most < LANES ? most : (most + LANES - 1) / LANES * LANES, part = tiles.height * row;
    channels.resize(transposed(s) ? int64_t(tiles.height) * pixels * LANES : 0);
    apart.resize(woven(s, xs) ? n * part : 0);
    for (int i = 0; i < n; ++i) {
      const Line& x = xs[i].line;
      Tile some = tile;
      some.columns = std::min(tile.columns, x.out - tile.column);
      if (some.columns <= 0) continue;
      const int64_t n_weights = int64_t(y.kernel) * x.kernel + 1;
      Frame<A>* frame = reads ? nullptr : &frames[shared.empty() ? i : 0];
      if (frame && (shared.empty() || i == 0)) frame->fill(source, some);
      const A* weight = weights + begins[i] + (s.rows ? tile.row : tile.unit * s.unit()) * n_weights;
      const Plane<A> packed(channels.data(), pixels * LANES);
      auto to = [&](const auto& target) { columns[i].correlate(source, frame, weight, some, target); };
      if (transposed(s))
        to(Target<A>(packed.columns(i, n), some));
      else if (woven(s, xs))
        to(Target<T>(Plane<T>(apart.data() + i * part, row), some));
      else
        to(Target<T>(out.columns(i, n), source, some, y.step()));
    }
    if (transposed(s)) to_planes(channels.data(), out, all, y.step());
    if (!woven(s, xs)) return;
    T* to = out.values + all.row * out.row + all.column * out.column;
    weave(apart.data(), part, row, to, y.step() * out.row, all.rows, pixels, n, s.unit());
  }
};

template <class T>
struct Correlations {
  const T *from, *weight, *bias;
  T* to;
  const Pictures& s;
  const std::vector<Part> ys, xs;
  const int height, width;  // of the outputs
  const PartWeights<acc_t<T>> weights{weight, bias, s, ys, xs};

  void run() const {
    if (xs.empty()) return;
    for (size_t part = 0; part < ys.size();
         ++part) {  // one by one: threads then rarely write to a line of the cache together
      const Tiles tiles = tiles_of<T>(ys[part].line, xs, s);
      parallel(tiles.length * tiles.series, 1, [&](int64_t begin, int64_t end) { some(int(part), tiles, begin, end); });
    }
  }

  // The tiles begin .. end - 1 of a part of the rows.
  void some(int part, const Tiles& tiles, int64_t begin, int64_t end) const {
    const Line &y = ys[part].line, &x = xs[0].line;
    Rows<T> rows{y, xs, tiles, s};
    for (int64_t i = begin; i < end; ++i) {
      const Tile tile = tiles.tile(i % tiles.series, i / tiles.series);
      if (tile.rows <= 0) continue;
      const Plane<T> out(to, s, height, width, tile);
      rows.correlate({from, s, y.source, x.source, tile}, weights.values.data(),
                     weights.begins.data() + part * xs.size(), out.rows(ys[part].first, int(ys.size())), tile, width);
    }
    end_streams();
  }
};

}  // namespace

Status depthwise_conv2d(DType dtype, const void* x, const void* weight, const void* bias, void* out,
                        const Conv2dShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const Pictures p(s);
    if (by_pixel<T>(p)) return depthwise_conv2d_pixels(dtype, x, weight, bias, out, s, false);
    Correlations<T>{(const T*)x,        (const T*)weight,   (const T*)bias, (T*)out,     p,
                    forward_parts(p.y), forward_parts(p.x), p.y.out_size,   p.x.out_size}
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
    const Pictures p(s);
    if (by_pixel<T>(p)) return depthwise_conv2d_pixels(dtype, grad_out, weight, nullptr, grad_x, s, true);
    Correlations<T>{(const T*)grad_out,  (const T*)weight,    (const T*)nullptr, (T*)grad_x, p,
                    backward_parts(p.y), backward_parts(p.x), p.y.size,          p.x.size}
        .run();
  });
  return 0;
}

}  // namespace nerfkit
