// SPDX-License-Identifier: Apache-2.0
// Several rows of outputs are summed together, so that a pack that was loaded serves all of them. The gradient of x is
// the same with a flipped kernel over the output's gradient, spread by the stride.

#include "depthwise_conv2d_tiles.h"

namespace nerfkit {
namespace {

// Bytes of a picture and its outputs that a processor's last cache keeps. Below, fetching ahead costs more than it saves.
constexpr int64_t CACHED = 24 << 20;

template <class T>
struct Outputs {
  T* values;
  int64_t row, pack;  // distances
  int lanes;          // to write of each pack
  bool fetches;       // ahead
  const T* soon;      // inputs of the tile that comes next, fetched while this one is summed
  int64_t soon_row, soon_pack;

  HD Outputs moved(int64_t by) const { return {values + by, row, pack, lanes, fetches, soon + by, soon_row, soon_pack}; }
  HD Outputs below(int n) const {
    return {values + n * row, row, pack, lanes, fetches, soon + n * soon_row, soon_row, soon_pack};
  }
  // For P packs of R rows. A call, so that the sums share no registers with addresses.
  template <int R, int P>
  __attribute__((noinline)) void fetch(int64_t p) const {
    in_order();  // the compiler drops calls that do nothing but fetch
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) {
        __builtin_prefetch(soon + r * soon_row + (p + i) * soon_pack);
        __builtin_prefetch(values + r * row + (p + i + SOON) * pack, 1);
      }
  }
};

// What is summed in one call: groups of rows, and of each the packs begin .. end - 1. Its last packs may overlap those
// before by `back` numbers.
struct Span {
  int begin, end, groups = 1;
  int64_t back = 0;
};

// P packs of R rows: enough sums that none waits for itself. weight [kernel_y * kernel_x + 1, LANES]; the last row is
// the bias.
template <class T, int K, int R, int P>
HD void correlate_group(const Inputs<acc_t<T>>& in, const acc_t<T>* weight, const Outputs<T>& out, const Span& span) {
  using A = acc_t<T>;
  const int kernel_y = K ? K : in.kernel_y, kernel_x = in.kernel_x, first = in.first, last = in.last;
  const A* const* rows = in.rows;
  const int64_t in_pack = in.pack, *offset = in.offset;
  for (int p = span.begin; p + P <= span.end; p += P) {
    if (out.fetches) out.template fetch<R, P>(p);
    Pack<A> sum[R][P];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) sum[r][i] = load(weight + kernel_y * kernel_x * LANES);
    const int64_t back = p + P == span.end ? span.back : 0;
    for (int v = first; v < last; ++v) {
      const int64_t at = in.shift + p * in_pack - back + offset[v];
      Pack<A> w[K ? K : 1];
#pragma GCC unroll 7
      for (int u = 0; u < K; ++u) w[u] = load(weight + (u * kernel_x + v) * LANES);
#pragma GCC unroll 14
      for (int y = 0; y < kernel_y + R - 1; ++y) {
        in_order();
#pragma GCC unroll 4
        for (int i = 0; i < P; ++i) {
          const Pack<A> pack = load(rows[y] + at + i * in_pack);
          if (R == 8 || P > 1) in_order();  // wide registers hold it: loaded once, and not again for each row
          if (K == 0) sum[0][i] += load(weight + (y * kernel_x + v) * LANES) * pack;
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r)
            if (y >= r && y - r < K) sum[r][i] += w[y - r] * pack;
        }
      }
    }
    const Outputs<T> to = out.moved(-back);  // read here: no register keeps it while the sums need all of them
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) {  // a part of a pack takes a call, over which no register would keep its sum
        const int lanes = P > 1 ? LANES : to.lanes;
        store(to.values + r * to.row + (p + i) * to.pack, sum[r][i], lanes);
      }
  }
}

template <class T, int K, int R, int P>
CLONES void correlate(Inputs<acc_t<T>> in, const acc_t<T>* weight, Outputs<T> out, const Span& span) {
  for (int group = 0; group < span.groups; ++group) {
    correlate_group<T, K, R, P>(in, weight, out, span);
    in = in.below(R), out = out.below(R);
  }
}

// `columns` neighbours of rows that each have a kernel of their own, weight [rows, kernel_x + 1].
template <class T>
CLONES void correlate_rows(const Inputs<acc_t<T>>& in, const acc_t<T>* weight, const Outputs<T>& out, int rows,
                           int columns) {
  using A = acc_t<T>;
  constexpr int P = 4;
  const int taps = in.kernel_x;
  for (int r = 0; r < rows; ++r, weight += taps + 1) {
    const A* from = in.rows[r];
    T* to = out.values + r * out.row;
    int at = 0;
    for (; at + P * LANES <= columns; at += P * LANES) {
      Pack<A> sum[P];
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) sum[i] = repeated(weight[taps]);
      for (int v = 0; v < taps; ++v)
#pragma GCC unroll 4
        for (int i = 0; i < P; ++i) sum[i] += weight[v] * load(from + in.offset[v] + at + i * LANES);
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) store(to + at + i * LANES, sum[i]);
    }
    for (; at < columns; at += LANES) {  // the last pack overlaps the one before, if there is one
      const int begin = std::max(0, std::min(at, columns - LANES));
      Pack<A> sum = repeated(weight[taps]);
      for (int v = 0; v < taps; ++v) sum += weight[v] * load(from + in.offset[v] + begin);
      store(to + begin, sum, std::min(LANES, columns));
    }
  }
}

// weight and bias as [units, taps + 1, channels of a unit]; bias may be null, for zero.
template <class T>
std::vector<acc_t<T>> by_unit(const T* weight, const T* bias, const Pictures& s, bool flipped) {
  const int64_t n_taps = int64_t(s.y.kernel) * s.x.kernel, unit = unit_of(s);
  std::vector<acc_t<T>> units((s.kernels() + unit - 1) / unit * unit * (n_taps + 1));
  for (int64_t c = 0; c < s.kernels(); ++c) {
    acc_t<T>* to = units.data() + c / unit * unit * (n_taps + 1) + c % unit;
    const T* from = weight + c * n_taps;
    for (int64_t k = 0; k < n_taps; ++k) to[k * unit] = acc_t<T>(from[flipped ? n_taps - 1 - k : k]);
    to[n_taps * unit] = bias ? acc_t<T>(bias[c]) : 0;
  }
  return units;
}

// Numbers as packs, each LANES times.
template <class A>
CLONES const A* in_packs(const A* numbers, std::vector<A>& packs) {
  A* to = packs.data();
  for (const A* end = to + packs.size(); to < end; to += LANES) store(to, repeated(*numbers++));
  return packs.data();
}

template <class A, int R>
constexpr int MOST_PACKS = sizeof(A) > sizeof(float) ? 1 : R == 1 ? 4 : 2;
template <class A, int R>
int packs_at_once() {
  return has_wide_registers() ? MOST_PACKS<A, R> : 1;
}

// Channels last: packs begin .. end - 1 of R rows.
template <class T, int K, int R>
void correlate_packs(const Inputs<acc_t<T>>& in, const acc_t<T>* weight, const Outputs<T>& out, int begin, int end) {
  constexpr int P = MOST_PACKS<acc_t<T>, R>;
  if (packs_at_once<acc_t<T>, R>() == P && out.lanes == LANES) {
    correlate<T, K, R, P>(in, weight, out, {begin, end});
    begin = end - (end - begin) % P;
  }
  if (begin < end) correlate<T, K, R, 1>(in, weight, out, {begin, end});
}

// `columns` neighbours of groups of R rows. The last packs overlap those before, if there are any.
template <class T, int K, int R>
void correlate_columns(const Inputs<acc_t<T>>& in, const acc_t<T>* weight, Outputs<T> out, int columns, int groups) {
  constexpr int P = MOST_PACKS<acc_t<T>, R>;
  const int packs = (columns + LANES - 1) / LANES, over = packs * LANES - columns;
  int wide = 0;  // packs that are summed P at once
  if (packs_at_once<acc_t<T>, R>() == P && packs >= P && columns >= P * LANES)
    wide = packs % P == 1 ? packs - 1 : (packs + P - 1) / P * P;
  if (wide) correlate<T, K, R, P>(in, weight, out, {0, wide, groups, std::max(0, wide * LANES - columns)});
  if (wide >= packs) return;
  out.lanes = std::min(LANES, columns);
  correlate<T, K, R, 1>(in, weight, out, {wide, packs, groups, packs > 1 ? over : 0});
}

// Outputs of a tile, from its row i on.
template <class T>
Outputs<T> outputs_of(const Plane<T>& out, const Plane<const T>& source, const Tile& tile, int i, const Pictures& s) {
  const int64_t row = tile.row + i, pack = s.channels_last ? 1 : LANES;
  T* to = out.values + row * out.row + tile.column * out.column;
  const T* soon = source.values + source.unit + row * source.row + tile.column * source.column;
  const int64_t numbers = s.batch * s.channels * (int64_t(s.y.size) * s.x.size + int64_t(s.y.out_size) * s.x.out_size);
  const bool fetches = numbers * int64_t(sizeof(T)) > CACHED;
  return {to,   out.row,    out.column * pack,     s.channels_last ? out.channels : LANES, fetches,
          soon, source.row, source.column * pack};
}

template <class T>
void correlate_tile(const Frame<acc_t<T>>& frame, const acc_t<T>* weight, const Plane<T>& out,
                    const Plane<const T>& source, const Tile& tile, const Pictures& s) {
  if (s.channels_last)
    row_by_row<true>(frame.y, tile, [&](auto k, auto r, int i) {
      correlate_packs<T, k, r>(frame.inputs().below(i), weight, outputs_of(out, source, tile, i, s), 0, tile.columns);
    });
  else
    rows_by_group<true>(frame.y, tile, [&](auto k, auto r, int i, int groups) {
      const auto to = outputs_of(out, source, tile, i, s);
      correlate_columns<T, k, r>(frame.inputs().below(i), weight, to, tile.columns, groups);
    });
}

template <class T>
void correlate_tile(const InPlace<T>& picture, const T* weight, const Plane<T>& out, const Plane<const T>& source,
                    const Tile& tile, const Pictures& s) {
  const Line& x = picture.x;
  const auto [first, last] = x.whole(tile.column, tile.columns);
  row_by_row<true>(picture.y, tile, [&, first = first, last = last](auto k, auto r, int i) {
    const auto in = picture.inputs().below(i);
    const auto to = outputs_of(out, source, tile, i, s);
    auto edge = [&](int j) {
      const int column = tile.column + j;
      correlate<T, k, r, 1>(in.only(x.first_tap(column), x.last_tap(column)), weight, to, {j, j + 1});
    };
    for (int j = 0; j < first; ++j) edge(j);
    correlate_packs<T, k, r>(in, weight, to, first, last);
    for (int j = last; j < tile.columns; ++j) edge(j);
  });
}

template <class T>
void correlate_all(const T* from, const T* weight, const T* bias, T* to, const Pictures& s, bool flipped) {
  const auto line = flipped ? backward_line : forward_line;
  const Line y = line(s.y), x = line(s.x);
  const Tiles tiles(y, x, s, in_place<T>(s));
  const auto units = by_unit(weight, bias, s, flipped);
  const int64_t n_weights = int64_t(s.y.kernel) * s.x.kernel + 1, unit = unit_of(s);
  parallel(tiles.length * tiles.series, 1, [&](int64_t begin, int64_t end) {
    Frame<acc_t<T>> frame(y, x, tiles, unit_of(s));
    InPlace<acc_t<T>> picture(y, x, tiles, s.channels);
    std::vector<acc_t<T>> packs(n_weights * LANES);
    for (int64_t i = begin; i < end; ++i) {
      const Tile tile = tiles.tile(i % tiles.series, i / tiles.series);
      const Plane<const T> source(from, s, y.source, x.source, tile);
      const Plane<T> out(to, s, y.out, x.out, tile);
      const acc_t<T>* w = units.data() + (s.rows ? tile.row : tile.unit * unit) * n_weights;
      if constexpr (std::is_same_v<T, acc_t<T>>)
        if (s.channels_last && source.channels == LANES && x.spread == 1) {
          picture.find(source, tile);
          correlate_tile(picture, w, out, source, tile, s);
          continue;
        }
      frame.fill(source, tile);
      if (s.rows)
        correlate_rows(frame.inputs(), w, outputs_of(out, source, tile, 0, s), tile.rows, tile.columns);
      else
        correlate_tile(frame, s.channels_last ? w : in_packs(w, packs), out, source, tile, s);
    }
  });
}

}  // namespace

Status depthwise_conv2d(DType dtype, const void* x, const void* weight, const void* bias, void* out, const Conv2dShape& s,
                        Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    correlate_all((const T*)x, (const T*)weight, (const T*)bias, (T*)out, Pictures(s), false);
  });
  return 0;
}

Status depthwise_conv2d_bwd(DType dtype, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* scratch, const Conv2dShape& s, Stream) {
  if (grad_weight) depthwise_conv2d_weights(dtype, grad_out, x, grad_weight, grad_bias, scratch, s);
  if (!grad_x) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    correlate_all((const T*)grad_out, (const T*)weight, (const T*)nullptr, (T*)grad_x, Pictures(s), true);
  });
  return 0;
}

}  // namespace nerfkit
