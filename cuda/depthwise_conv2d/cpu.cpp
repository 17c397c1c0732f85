// SPDX-License-Identifier: Apache-2.0
// Both passes are one loop: a row of results is the sum, over the taps that meet the image, of a row of sources times
// the tap's weight; for the weight's gradient, the row of outputs' gradients times the source's is added up instead.
// Lanes are neighbouring columns of a plane or, channels last, neighbouring channels. Planes are copied with zeros
// around their rows, half types as float32.

#include "depthwise_conv2d/args.h"

#include "common/simd_cpu.h"

namespace nerfkit {
namespace {

constexpr int BAND = 16;            // rows that a task takes
constexpr int64_t PARTIALS = 128;   // sums of the weight's gradient: their number must not depend on that of threads
constexpr int64_t GRAIN = 1 << 15;  // products that are worth a thread
constexpr int MOST_TAPS = 9;        // at once, in registers
template <bool LAST>
constexpr int64_t TILE = LAST ? 64 : 1024;  // columns whose sources stay in the nearest cache from tap to tap

// L numbers side by side; one is a plain number.
template <class A, int L>
struct WideOf {
  typedef A type __attribute__((vector_size(L * sizeof(A)), aligned(alignof(A)), may_alias));
};
template <class A>
struct WideOf<A, 1> {
  using type = A;
};
template <class A, int L>
using Wide = typename WideOf<A, L>::type;
template <int N>
using Int = std::integral_constant<int, N>;

// f(0), f(1) .. f(N - 1), without a loop, so that arrays of N stay in registers.
template <int N, class F>
HD void each(const F& f) {
  if constexpr (N > 1) each<N - 1>(f);
  f(N - 1);
}
#define INLINE __attribute__((always_inline))

template <int L, class A>
HD const Wide<A, L>& at(const A* from) {
  return *reinterpret_cast<const Wide<A, L>*>(from);
}
template <int L, class A>
HD Wide<A, L>& at(A* to) {
  return *reinterpret_cast<Wide<A, L>*>(to);
}

// Tasks of so many products that a thread takes at least.
int64_t grain_of(int64_t products) { return std::max<int64_t>(1, GRAIN / std::max<int64_t>(1, products)); }

int64_t ceil_div(int64_t a, int64_t b) { return b == 1 ? a : a < 0 ? -(-a / b) : (a + b - 1) / b; }

// What a tap does along an axis: result to + k * to_step gets source from + k * from_step, for k < n.
struct Run {
  int64_t to, from, n;
};

// Forward, results are outputs and sources inputs; backward the other way round. `padded`: sources have a margin of
// zeros at both ends, and all results meet all taps, unless there is a stride backward or more padding than is worth a
// copy.
struct Runs {
  static constexpr int64_t MOST_MARGIN = 64;
  std::vector<Run> taps;
  int64_t to_step = 1, from_step, to_size, from_size, margin = 0;
  int64_t low, high;  // results low .. high - 1 are those that all taps meet; both to_size if there are none

  Runs(const Axis& axis, bool backward, bool padded = false)
      : from_step(axis.stride), to_size(axis.out_size), from_size(axis.size) {
    const int64_t reach = int64_t(axis.kernel - 1) * axis.dilation,
                  wanted = backward ? reach - axis.padding : axis.padding;
    if (padded && wanted >= 0 && wanted <= MOST_MARGIN && (axis.stride == 1 || !backward)) margin = wanted;
    const int64_t outside_out = backward ? margin : 0, outside = margin - outside_out;
    for (int64_t u = 0; u < axis.kernel; ++u) {
      const int64_t shift = u * axis.dilation - axis.padding;  // from an output times the stride to its input
      const int64_t first = std::max(-outside_out, ceil_div(-outside - shift, axis.stride));
      const int64_t last = std::min(axis.out_size + outside_out, ceil_div(axis.size + outside - shift, axis.stride));
      taps.push_back({first + outside_out, first * axis.stride + shift + outside, std::max<int64_t>(0, last - first)});
    }
    if (backward) {
      std::swap(to_step, from_step), std::swap(to_size, from_size);
      for (Run& run : taps) std::swap(run.to, run.from);
    }
    low = 0, high = to_size;
    for (const Run& run : taps) low = std::max(low, run.to), high = std::min(high, run.to + run.n);
    if (low >= high || to_step != 1) low = high = to_size;
  }

  // The source of result `to` by a tap; -1 if there is none.
  int64_t source(int64_t tap, int64_t to) const {
    const Run& run = taps[tap];
    const int64_t number = step_of(to - run.to);
    const bool met = to >= run.to && run.to + number * to_step == to && number < run.n;
    return met ? run.from + number * from_step : -1;
  }
  HD int64_t step_of(int64_t distance) const { return to_step == 1 ? distance : distance / to_step; }  // quick, mostly
};

// Rows [width] of an image in the accumulation type.
template <class T>
class Rows {
 public:
  using A = acc_t<T>;

  // Where row r, of first .. last - 1, is at [r * (width + 2 * margin)], with zeros in the margins.
  const A* read(const T* image, int64_t first, int64_t last, int64_t width, int64_t margin = 0) {
    if constexpr (std::is_same_v<T, A>)
      if (!margin) return image;
    const int64_t pitch = width + 2 * margin;
    converted_.assign(std::max<int64_t>(0, last - first) * pitch, A(0));
    for (int64_t row = first; row < last; ++row) {
      A* to = converted_.data() + (row - first) * pitch + margin;
      for (int64_t i = 0; i < width; ++i) to[i] = A(image[row * width + i]);
    }
    return converted_.data() - first * pitch;
  }
  // Of a row of results: where to add them up, and then to their place.
  A* begin(T* row, int64_t width) {
    if constexpr (std::is_same_v<T, A>) return row;
    converted_.resize(width);
    return converted_.data();
  }
  void end(T* row) const {
    if constexpr (!std::is_same_v<T, A>)
      for (size_t i = 0; i < converted_.size(); ++i) row[i] = T(converted_[i]);
  }

 private:
  std::vector<A> converted_;
};

// A tap that meets a row of results.
template <class A>
struct Tap {
  const A* row;    // of sources
  const Run* run;  // along it
  int64_t index;   // in the kernel
};

// f(L, first, n): n times L lanes, from `first` on.
template <int L, class F>
HD void in_lanes(int64_t first, int64_t end, const F& f) {
  const int64_t n = (end - first) / L;
  if (n) f(Int<L>(), first, n);
  if constexpr (L > 1) in_lanes<std::max(1, L / 4)>(first + n * L, end, f);
}

// The taps of a row of results. LAST: channels last, `unit` channels; else 1.
template <bool LAST, class T>
class RowOfTaps {
 public:
  using A = acc_t<T>;

  RowOfTaps(const Runs& y, const Runs& x, int64_t unit) : y_(y), x_(x), unit_(unit) {}

  // The rows of sources that results first .. last - 1 meet.
  const A* read(const T* image, int64_t first, int64_t last) {
    int64_t low = y_.from_size, high = 0;
    for (int64_t to = first; to < last; ++to)
      for (size_t u = 0; u < y_.taps.size(); ++u)
        if (const int64_t from = y_.source(u, to); from >= 0)
          low = std::min(low, from), high = std::max(high, from + 1);
    return rows_.read(image, low, high, x_.from_size * unit_, x_.margin);
  }

  void find(const A* sources, int64_t to) {
    taps_.clear();
    const int64_t width = x_.taps.size();
    for (size_t u = 0; u < y_.taps.size(); ++u)
      if (const int64_t from = y_.source(u, to); from >= 0)
        for (int64_t v = 0; v < width; ++v)
          taps_.push_back(
              {sources + from * (x_.from_size * unit_ + 2 * x_.margin), &x_.taps[v], int64_t(u) * width + v});
  }

  // f(L, N, taps, result, channel, n): N taps meet n times L results.
  template <class F>
  void visit(const F& f) const {
    for (int64_t first = x_.low; first < x_.high; first += TILE<LAST>)
      lanes(first, std::min(TILE<LAST>, x_.high - first), [&](auto L, int64_t to, int64_t c, int64_t n) {
        size_t i = 0;
        for (; i + MOST_TAPS <= taps_.size(); i += MOST_TAPS) f(L, Int<MOST_TAPS>(), &taps_[i], to, c, n);
        for (; i + 3 <= taps_.size(); i += 3) f(L, Int<3>(), &taps_[i], to, c, n);
        for (; i < taps_.size(); ++i) f(L, Int<1>(), &taps_[i], to, c, n);
      });
    if (x_.low == 0 && x_.high == x_.to_size) return;
    for (const Tap<A>& tap : taps_) {  // results that not all taps meet, left and right
      const Run& run = *tap.run;
      const auto until = [&](int64_t to) { return std::clamp<int64_t>(ceil_div(to - run.to, x_.to_step), 0, run.n); };
      const auto one = [&](auto L, int64_t to, int64_t c, int64_t n) { f(L, Int<1>(), &tap, to, c, n); };
      const int64_t left = until(x_.low), right = until(x_.high);
      if (left) lanes(run.to, left, one);
      if (right < run.n) lanes(run.to + right * x_.to_step, run.n - right, one);
    }
  }

  // f(L, result, channel, n): n times L of `n_results` results, x_.to_step apart.
  template <class F>
  HD void lanes(int64_t to, int64_t n_results, const F& f) const {
    if constexpr (LAST)
      in_lanes<LANES>(0, unit_, [&](auto L, int64_t c, int64_t n) {
        for (; n; --n, c += L) f(L, to, c, n_results);
      });
    else if (x_.to_step == 1 && x_.from_step == 1)
      in_lanes<LANES>(to, to + n_results, [&](auto L, int64_t first, int64_t n) { f(L, first, 0, n); });
    else
      f(Int<1>(), to, 0, n_results);
  }

  // Where N taps' sources of result `to` are, and the distance to the next.
  template <int N>
  HD void sources(const Tap<A>* taps, int64_t to, int64_t c, const A* (&from)[N]) const {
    for (int k = 0; k < N; ++k) {
      const Run& run = *taps[k].run;
      from[k] = taps[k].row + (run.from + x_.step_of(to - run.to) * x_.from_step) * unit_ + c;
    }
  }
  HD int64_t from_step(int L) const { return LAST ? x_.from_step * unit_ : L == 1 ? x_.from_step : L; }
  HD int64_t to_step(int L) const { return LAST ? x_.to_step * unit_ : L == 1 ? x_.to_step : L; }

 private:
  const Runs &y_, &x_;
  const int64_t unit_;
  std::vector<Tap<A>> taps_;
  Rows<T> rows_;
};

// out, or grad_x from grad_out; bias [C] or null.
template <bool LAST, class T>
void convolve(const T* from, const T* weight, const T* bias, T* to, const Conv2dShape& s, bool backward) {
  using A = acc_t<T>;
  const int64_t unit = LAST ? s.channels : 1, planes = LAST ? 1 : s.channels;
  const int64_t n_taps = int64_t(s.y.kernel) * s.x.kernel;
  const Runs y(s.y, backward), x(s.x, backward, !LAST);
  const int64_t width = x.to_size * unit, bands = (y.to_size + BAND - 1) / BAND;
  std::vector<A> weights(s.channels * n_taps), start(s.channels);  // weights [taps, C] or, of planes, [C, taps]
  for (int64_t c = 0; c < s.channels && bias; ++c) start[c] = A(bias[c]);
  for (int64_t c = 0; c < s.channels; ++c)
    for (int64_t k = 0; k < n_taps; ++k)
      weights[LAST ? k * s.channels + c : c * n_taps + k] = A(weight[c * n_taps + k]);
  const int64_t products = std::min<int64_t>(BAND, y.to_size) * width * n_taps;
  parallel(s.batch * planes * bands, grain_of(products), [&](int64_t begin, int64_t end) {
    RowOfTaps<LAST, T> taps(y, x, unit);
    Rows<T> results;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / bands, channel = image % planes;
      const int64_t first = i % bands * BAND, last = std::min(y.to_size, first + BAND);
      const A* sources = taps.read(from + image * y.from_size * x.from_size * unit, first, last);
      const A* own = weights.data() + channel * n_taps;
      for (int64_t row = first; row < last; ++row) {
        T* place = to + (image * y.to_size + row) * width;
        A* sums = results.begin(place, width);
        for (int64_t j = 0; j < width; j += unit)
          for (int64_t c = 0; c < unit; ++c) sums[j + c] = start[channel + c];
        taps.find(sources, row);
        taps.visit([&](auto L, auto N, const Tap<A>* some, int64_t t, int64_t c, int64_t n) {
          const A* from[N];
          Wide<A, L> w[N];
          taps.template sources<N>(some, t, c, from);
          each<N>([&](int k) INLINE {
            if constexpr (LAST)
              w[k] = at<L>(own + some[k].index * unit + c);
            else
              w[k] = Wide<A, L>{} + own[some[k].index];
          });
          A* add_to = sums + t * unit + c;
          const int64_t to_step = taps.to_step(L), from_step = taps.from_step(L);
          for (int64_t j = 0; j < n; ++j) {
            Wide<A, L> sum = at<L>(add_to + j * to_step);
            each<N>([&](int k) INLINE { sum += w[k] * at<L>(from[k] + j * from_step); });
            at<L>(add_to + j * to_step) = sum;
          }
        });
        results.end(place);
      }
    }
  });
}

int64_t parts_of(const Conv2dShape& s) {
  const int64_t planes = s.channels_last ? 1 : std::max<int64_t>(1, s.channels);
  return std::max<int64_t>(1, std::min(s.batch * s.y.out_size, PARTIALS / planes));
}

// scratch [parts, C, taps + 1]; the last sum is the bias's.
template <bool LAST, class T>
void correlate(const T* grad_out, const T* image, T* grad_weight, T* grad_bias, acc_t<T>* scratch,
               const Conv2dShape& s) {
  using A = acc_t<T>;
  const int64_t unit = LAST ? s.channels : 1, planes = LAST ? 1 : s.channels;
  const int64_t n_taps = int64_t(s.y.kernel) * s.x.kernel, parts = parts_of(s);
  const Runs y(s.y, false), x(s.x, false, !LAST);
  const int64_t lines = s.batch * y.to_size, width = x.to_size * unit, lanes = LAST ? unit : LANES;
  const int64_t products = lines / parts * width * n_taps;
  parallel(parts * planes, grain_of(products), [&](int64_t begin, int64_t end) {
    RowOfTaps<LAST, T> taps(y, x, unit);
    Rows<T> grads;
    std::vector<A> sums;  // [taps + 1, lanes]
    for (int64_t i = begin; i < end; ++i) {
      const int64_t part = i / planes, plane = i % planes, end_line = lines * (part + 1) / parts;
      sums.assign((n_taps + 1) * lanes, A(0));
      for (int64_t line = lines * part / parts, n_rows; line < end_line; line += n_rows) {
        const int64_t first = line % y.to_size, of = line / y.to_size * planes + plane;
        n_rows = std::min({y.to_size - first, int64_t(BAND), end_line - line});  // of one image
        const A* sources = taps.read(image + of * y.from_size * x.from_size * unit, first, first + n_rows);
        const A* rows = grads.read(grad_out + of * y.to_size * width, first, first + n_rows, width);
        for (int64_t row = first; row < first + n_rows; ++row) {
          const A* grad = rows + row * width;
          taps.find(sources, row);
          taps.visit([&](auto L, auto N, const Tap<A>* some, int64_t t, int64_t c, int64_t n) {
            const A* from[N];
            Wide<A, L> sum[N] = {};
            taps.template sources<N>(some, t, c, from);
            const A* own = grad + t * unit + c;
            const int64_t step = taps.to_step(L), from_step = taps.from_step(L);
            for (int64_t j = 0; j < n; ++j) {
              const Wide<A, L> g = at<L>(own + j * step);
              each<N>([&](int k) INLINE { sum[k] += g * at<L>(from[k] + j * from_step); });
            }
            each<N>([&](int k) INLINE { at<L>(sums.data() + some[k].index * lanes + c) += sum[k]; });
          });
          taps.lanes(0, x.to_size, [&](auto L, int64_t t, int64_t c, int64_t n) {
            const int64_t step = taps.to_step(L);
            const A* own = grad + t * unit + c;
            Wide<A, L> sum[4] = {};  // that do not wait for one another
            int64_t j = 0;
            for (; j + 4 <= n; j += 4) each<4>([&](int k) INLINE { sum[k] += at<L>(own + (j + k) * step); });
            for (; j < n; ++j) sum[0] += at<L>(own + j * step);
            at<L>(sums.data() + n_taps * lanes + c) += (sum[0] + sum[1]) + (sum[2] + sum[3]);
          });
        }
      }
      for (int64_t c = 0; c < unit; ++c)
        for (int64_t k = 0; k <= n_taps; ++k) {
          A sum = 0;
          for (int64_t lane = 0; lane < (LAST ? 1 : lanes); ++lane) sum += sums[k * lanes + (LAST ? c : lane)];
          scratch[(part * s.channels + plane + c) * (n_taps + 1) + k] = sum;
        }
    }
  });
  for (int64_t c = 0; c < s.channels; ++c)
    for (int64_t k = 0; k <= n_taps; ++k) {
      A sum = 0;
      for (int64_t part = 0; part < parts; ++part) sum += scratch[(part * s.channels + c) * (n_taps + 1) + k];
      (k < n_taps ? grad_weight[c * n_taps + k] : grad_bias[c]) = T(sum);
    }
}

// f(element, channels last)
template <class F>
void dispatch_layout(DType dtype, const Conv2dShape& s, const F& f) {
  dispatch(dtype,
           [&](auto element) { s.channels_last ? f(element, std::true_type()) : f(element, std::false_type()); });
}

}  // namespace

Status depthwise_conv2d(DType dtype, const void* x, const void* weight, const void* bias, void* out,
                        const Conv2dShape& s, Stream) {
  dispatch_layout(dtype, s, [&](auto element, auto last) {
    using T = decltype(element);
    convolve<last>((const T*)x, (const T*)weight, (const T*)bias, (T*)out, s, false);
  });
  return 0;
}

Status depthwise_conv2d_bwd(DType dtype, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* scratch, const Conv2dShape& s, Stream) {
  dispatch_layout(dtype, s, [&](auto element, auto last) {
    using T = decltype(element);
    if (grad_weight)
      correlate<last>((const T*)grad_out, (const T*)x, (T*)grad_weight, (T*)grad_bias, (acc_t<T>*)scratch, s);
    if (grad_x) convolve<last>((const T*)grad_out, (const T*)weight, (const T*)nullptr, (T*)grad_x, s, true);
  });
  return 0;
}

int64_t conv2d_scratch(DType, const Conv2dShape& s) {
  return parts_of(s) * s.channels * (int64_t(s.y.kernel) * s.x.kernel + 1);
}

}  // namespace nerfkit
