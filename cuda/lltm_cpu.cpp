// SPDX-License-Identifier: Apache-2.0
// GROUP rays of similar length walk together: a step is one product for all of them, with the weight in panels of LANES
// columns, and then the arithmetic of the units, LANES at a time.

#include "lltm.h"

#include <numeric>
#include <vector>

#include "cpu.h"

namespace nerfkit {
namespace {

constexpr int GROUP = 8;

int padded(int n) { return (n + LANES - 1) / LANES * LANES; }

// A matrix [depth, columns] as panels [depth, LANES]; columns is a multiple of LANES.
template <class A, class F>
std::vector<A> in_panels(int depth, int columns, const F& at) {
  std::vector<A> panels(int64_t(depth) * columns);
  for (int j = 0; j < columns; ++j)
    for (int k = 0; k < depth; ++k) panels[(int64_t(j / LANES) * depth + k) * LANES + j % LANES] = at(k, j);
  return panels;
}

// Panels of a matrix that are multiplied together, and what their columns start from.
template <class A>
struct Panels {
  const A *values, *start;  // start may be null, for zero
  int depth;
  int64_t stride, start_stride;  // from one panel to the next
};

// out [ROWS, out_stride] = start + in [ROWS, depth] times PACKS panels; only the first n rows are written.
template <class A, int ROWS, int PACKS>
HD void product_of_rows(const A* in, const Panels<A>& panels, A* out, int out_stride, int n) {
  Pack<A> sum[ROWS][PACKS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 3
    for (int p = 0; p < PACKS; ++p) sum[r][p] = panels.start ? load(panels.start + p * panels.start_stride) : Pack<A>{};
  for (int k = 0; k < panels.depth; ++k) {
    Pack<A> row[PACKS];
#pragma GCC unroll 3
    for (int p = 0; p < PACKS; ++p) row[p] = load(panels.values + p * panels.stride + k * LANES);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 3
      for (int p = 0; p < PACKS; ++p) sum[r][p] += in[r * panels.depth + k] * row[p];
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 3
    for (int p = 0; p < PACKS; ++p)
      if (r < n) store(out + r * out_stride + p * LANES, sum[r][p]);
}

// The same for n rows; `in` has GROUP of them. ROWS is what the registers hold, or less where that is too much.
template <class A, int ROWS, int PACKS>
HD void product(const A* in, const Panels<A>& panels, A* out, int out_stride, int n) {
  constexpr int FEW = 2;
  if (n > FEW)
    for (int r = 0; r < n; r += ROWS)
      product_of_rows<A, ROWS, PACKS>(in + r * panels.depth, panels, out + r * out_stride, out_stride, n - r);
  else
    product_of_rows<A, FEW, PACKS>(in, panels, out, out_stride, n);
}

// f(j, n) for the units j .. j + n - 1; where n is LANES it is a constant, for loads and stores without a test.
template <class F>
HD void for_units(int n_state, const F& f) {
  int j = 0;
  for (; j + LANES <= n_state; j += LANES) f(j, LANES);
  if (j < n_state) f(j, n_state - j);
}

template <class A>
HD void cell(A* gates, A* c, A* h) {  // of LANES units; gates [3, LANES] are activated in place
#pragma omp simd
  for (int j = 0; j < LANES; ++j) {
    const Gates<A> gate = activate(gates[j], gates[LANES + j], gates[2 * LANES + j]);
    c[j] += gate.g * gate.i;
    h[j] = hyperbolic_tangent(c[j]) * gate.o;
    gates[j] = gate.i, gates[LANES + j] = gate.o, gates[2 * LANES + j] = gate.g;
  }
}

template <class A>
HD void cell_bwd(const A* gates, const A* c, const A* grad_h, A* grad_c, A* grad_gates) {
#pragma omp simd
  for (int j = 0; j < LANES; ++j) {
    Gates<A> grad;
    const Gates<A> gate{gates[j], gates[LANES + j], gates[2 * LANES + j]};
    grad_c[j] = activate_bwd(gate, c[j], grad_h[j], grad_c[j], grad);
    grad_gates[j] = grad.i, grad_gates[LANES + j] = grad.o, grad_gates[2 * LANES + j] = grad.g;
  }
}

// The rays begin .. end - 1.
std::vector<int64_t> longest_first(const LltmShape& s, int64_t begin, int64_t end) {
  std::vector<int64_t> rays(end - begin);
  std::iota(rays.begin(), rays.end(), begin);
  auto length = [&](int64_t ray) { return s.ray_offsets[ray + 1] - s.ray_offsets[ray]; };
  std::stable_sort(rays.begin(), rays.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });
  return rays;
}

// The rays of a group, longest first: at every step the active ones are the first few.
struct RayGroup {
  const int64_t* rays;
  int size;
  const LltmShape& s;

  int64_t first(int r) const { return s.ray_offsets[rays[r]]; }
  int64_t length(int r) const { return s.ray_offsets[rays[r] + 1] - first(r); }
  int active(int64_t step) const {
    int n = size;
    while (n > 0 && length(n - 1) <= step) --n;
    return n;
  }
};

// Neighbouring rays that are sorted into groups and walked by one thread: many, that those of a group are of one length,
// and few, that they lie close together in memory. The number does not depend on that of threads, nor do then any sums.
int64_t rays_of_part(const LltmShape& s) { return std::clamp<int64_t>(s.n_rays / 128, GROUP, 512); }
int64_t parts_of(const LltmShape& s) { return (s.n_rays + rays_of_part(s) - 1) / rays_of_part(s); }

// make(part) gives a function that is called with the groups of that part, one after the other.
template <class F>
void for_groups(const LltmShape& s, const F& make) {
  parallel_each(parts_of(s), [&](int64_t part) {
    const int64_t begin = part * rays_of_part(s), end = std::min(begin + rays_of_part(s), s.n_rays);
    const auto rays = longest_first(s, begin, end);
    auto walk = make(part);
    for (int64_t i = 0; i < end - begin; i += GROUP)
      walk(RayGroup{rays.data() + i, int(std::min<int64_t>(GROUP, end - begin - i)), s});
  });
}

template <class T, class A>
HD void copy(const T* from, A* to, int n) {
  for (int i = 0; i < n; ++i) to[i] = A(from[i]);
}

// The processor does not foresee where the next sample of each of GROUP rays lies.
template <class T, int WRITE = 0>
HD void prefetch(const T* from, int n) {
  for (int i = 0; i < n; i += int(64 / sizeof(T))) __builtin_prefetch(from + i, WRITE);
}

template <class T>
struct Arrays {
  const T *input, *h0, *c0;
  T *h, *h_n, *c_n, *activated, *c, *before;
  const acc_t<T>*panels, *bias;  // [3, padded H] columns
};

template <class A>
struct Walk {  // scratch of a group
  std::vector<A> in, gates, c;

  explicit Walk(const LltmShape& s)
      : in(GROUP * (s.n_state + s.n_input)), gates(GROUP * 3 * padded(s.n_state)), c(GROUP * padded(s.n_state)) {}
};

// The units j .. j + n - 1 of a ray's sample, from their gates before activation.
template <class T>
HD void forward_units(const Arrays<T>& a, acc_t<T>* gates, acc_t<T>* c, acc_t<T>* h, int64_t place, int j, int n, int H) {
  using A = acc_t<T>;
  A h_new[LANES];
  cell(gates, c, h_new);
  store(h + j, load(h_new), n);
  store(a.h + place * H + j, load(h_new), n);
  if (!a.activated) return;
  for (int gate = 0; gate < 3; ++gate) store(a.activated + (3 * place + gate) * H + j, load(gates + gate * LANES), n);
  store(a.c + place * H + j, load(c), n);
}

template <class T, int ROWS>
CLONES void forward_group(const RayGroup& group, const Arrays<T>& a, Walk<acc_t<T>>& walk) {
  using A = acc_t<T>;
  const int H = group.s.n_state, I = group.s.n_input, depth = H + I, columns = padded(H);
  A *in = walk.in.data(), *gates = walk.gates.data(), *c = walk.c.data();
  for (int r = 0; r < group.size; ++r) {
    copy(a.h0 + group.rays[r] * H, in + r * depth, H);
    copy(a.c0 + group.rays[r] * H, c + r * columns, H);
  }
  for (int64_t step = 0; step < group.length(0); ++step) {
    const int n = group.active(step);
    for (int r = 0; r < n; ++r) {
      const int64_t place = group.first(r) + step, next = std::min(place + 1, group.s.n_samples - 1);
      copy(a.input + place * I, in + r * depth + H, I);
      prefetch(a.input + next * I, I);
      prefetch<T, 1>(a.h + next * H, H);
      if (!a.activated) continue;
      copy(in + r * depth, a.before + place * H, H);
      prefetch<T, 1>(a.activated + next * 3 * H, 3 * H);
      prefetch<T, 1>(a.c + next * H, H);
    }
    for (int j = 0; j < columns; j += LANES)
      product<A, ROWS, 3>(in, {a.panels + int64_t(j) * depth, a.bias + j, depth, int64_t(columns) * depth, columns},
                          gates + 3 * j, 3 * columns, n);
    for (int r = 0; r < n; ++r)
      for_units(H, [&](int j, int n_units) __attribute__((always_inline)) {
        forward_units(a, gates + 3 * (r * columns + j), c + r * columns + j, in + r * depth, group.first(r) + step, j,
                      n_units, H);
      });
  }
  for (int r = 0; r < group.size; ++r) {
    copy(in + r * depth, a.h_n + group.rays[r] * H, H);
    copy(c + r * columns, a.c_n + group.rays[r] * H, H);
  }
}

template <class T>
struct Gradients {
  const T *h, *h_n, *c_n, *activated, *c;
  T *gates, *h0, *c0;
  const acc_t<T>* panels;  // [padded H] columns
};

template <class A>
struct WalkBack {  // scratch of a group
  std::vector<A> grad_h, grad_c, grad_gates;
  A* grad_bias;  // [3H]

  WalkBack(const LltmShape& s, A* grad_bias)
      : grad_h(GROUP * padded(s.n_state)),
        grad_c(GROUP * padded(s.n_state)),
        grad_gates(GROUP * 3 * s.n_state),
        grad_bias(grad_bias) {}
};

// The units j .. j + n - 1 of a ray's sample: gradients of their gates before activation.
template <class T>
HD void backward_units(const Gradients<T>& a, acc_t<T>* grad_h, acc_t<T>* grad_c, acc_t<T>* grad_gates,
                       acc_t<T>* grad_bias, int64_t place, int j, int n, int H) {
  using A = acc_t<T>;
  A gates[3 * LANES], c[LANES], grads[3 * LANES];
  for (int gate = 0; gate < 3; ++gate) store(gates + gate * LANES, load(a.activated + (3 * place + gate) * H + j, n));
  store(c, load(a.c + place * H + j, n));
  store(grad_h, load(grad_h) + load(a.h + place * H + j, n));
  cell_bwd(gates, c, grad_h, grad_c, grads);
  for (int gate = 0; gate < 3; ++gate) {
    const Pack<A> grad = load(grads + gate * LANES);
    store(grad_gates + gate * H + j, grad, n);
    store(a.gates + (3 * place + gate) * H + j, grad, n);
    store(grad_bias + gate * H + j, load(grad_bias + gate * H + j, n) + grad, n);
  }
}

template <class T, int ROWS>
CLONES void backward_group(const RayGroup& group, const Gradients<T>& a, WalkBack<acc_t<T>>& walk) {
  using A = acc_t<T>;
  const int H = group.s.n_state, columns = padded(H), depth = 3 * H;
  A *grad_h = walk.grad_h.data(), *grad_c = walk.grad_c.data(), *grad_gates = walk.grad_gates.data();
  for (int r = 0; r < group.size; ++r) {
    copy(a.h_n + group.rays[r] * H, grad_h + r * columns, H);
    copy(a.c_n + group.rays[r] * H, grad_c + r * columns, H);
  }
  for (int64_t step = group.length(0) - 1; step >= 0; --step) {
    const int n = group.active(step);
    for (int r = 0; r < n; ++r) {
      const int64_t place = group.first(r) + step, before = std::max<int64_t>(place - 1, 0);
      prefetch(a.h + before * H, H);
      prefetch(a.activated + before * depth, depth);
      prefetch(a.c + before * H, H);
      prefetch<T, 1>(a.gates + before * depth, depth);
      for_units(H, [&](int j, int n_units) __attribute__((always_inline)) {
        backward_units(a, grad_h + r * columns + j, grad_c + r * columns + j, grad_gates + r * depth, walk.grad_bias, place,
                       j, n_units, H);
      });
    }
    for (int j = 0; j < columns; j += 2 * LANES) {
      const Panels<A> panels{a.panels + int64_t(j) * depth, nullptr, depth, int64_t(LANES) * depth, 0};
      if (j + LANES < columns)
        product<A, ROWS, 2>(grad_gates, panels, grad_h + j, columns, n);
      else
        product<A, ROWS, 1>(grad_gates, panels, grad_h + j, columns, n);
    }
  }
  for (int r = 0; r < group.size; ++r) {
    copy(grad_h + r * columns, a.h0 + group.rays[r] * H, H);
    copy(grad_c + r * columns, a.c0 + group.rays[r] * H, H);
  }
}

constexpr int TALL = 8, LOW = 2;  // rows that wide and other registers hold

}  // namespace

Status lltm(DType dtype, const void* input, const void* weight, const void* bias, const void* h0, const void* c0, void* h,
            void* h_n, void* c_n, void* activated, void* c, void* before, const LltmShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    using A = acc_t<T>;
    const int H = s.n_state, depth = H + s.n_input, columns = padded(H);
    // Column `unit` of a gate is the weight's row gate * H + unit.
    auto at = [&](const void* from, int64_t width, int k, int column) {
      const int gate = column / columns, unit = column % columns;
      return unit < H ? A(((const T*)from)[(int64_t(gate) * H + unit) * width + k]) : A(0);
    };
    const auto panels = in_panels<A>(depth, 3 * columns, [&](int k, int j) { return at(weight, depth, k, j); });
    const auto start = in_panels<A>(1, 3 * columns, [&](int k, int j) { return at(bias, 1, k, j); });
    const Arrays<T> arrays{(const T*)input, (const T*)h0,   (const T*)c0, (T*)h,      (T*)h_n,
                           (T*)c_n,         (T*)activated, (T*)c,        (T*)before, panels.data(), start.data()};
    const auto walk_group = has_wide_registers() ? forward_group<T, TALL> : forward_group<T, LOW>;
    for_groups(s, [&](int64_t) {
      return [&, walk = Walk<A>(s)](const RayGroup& group) mutable { walk_group(group, arrays, walk); };
    });
  });
  return 0;
}

Status lltm_bwd(DType dtype, const void* grad_h, const void* grad_h_n, const void* grad_c_n, const void* weight,
                const void* activated, const void* c, void* grad_gates, void* grad_h0, void* grad_c0, void* grad_bias,
                const LltmShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    using A = acc_t<T>;
    const int H = s.n_state, width = H + s.n_input;
    const auto panels = in_panels<A>(3 * H, padded(H), [&](int k, int unit) {
      return unit < H ? A(((const T*)weight)[int64_t(k) * width + unit]) : A(0);
    });
    const Gradients<T> arrays{(const T*)grad_h, (const T*)grad_h_n, (const T*)grad_c_n, (const T*)activated, (const T*)c,
                              (T*)grad_gates,   (T*)grad_h0,        (T*)grad_c0,        panels.data()};
    const auto walk_group = has_wide_registers() ? backward_group<T, TALL> : backward_group<T, LOW>;
    std::vector<A> sums(parts_of(s) * 3 * H);
    for_groups(s, [&](int64_t part) {
      return [&, walk = WalkBack<A>(s, sums.data() + part * 3 * H)](const RayGroup& group) mutable {
        walk_group(group, arrays, walk);
      };
    });
    for (size_t i = 0; i < sums.size(); ++i) ((A*)grad_bias)[i % (3 * H)] += sums[i];
  });
  return 0;
}

}  // namespace nerfkit
