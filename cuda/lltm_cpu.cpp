// SPDX-License-Identifier: Apache-2.0
// GROUP rays of similar length walk together, so that a weight that was loaded serves all of them.

#include "lltm.h"

#include <numeric>
#include <vector>

#include "cpu.h"

namespace nerfkit {
namespace {

constexpr int GROUP = 8;
int padded(int n) { return (n + LANES - 1) / LANES * LANES; }

// out [rows, columns] = start [columns] + in [rows, depth] matrix [depth, columns], columns a multiple of LANES.
template <class A, int ROWS>
HD void product_of_rows(const A* in, const A* matrix, const A* start, A* out, int depth, int columns) {
  for (int j = 0; j < columns; j += LANES) {
    Pack<A> sum[ROWS];
    for (int r = 0; r < ROWS; ++r) sum[r] = start ? load(start + j) : Pack<A>{};
    for (int k = 0; k < depth; ++k) {
      const Pack<A> row = load(matrix + int64_t(k) * columns + j);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) sum[r] += in[r * depth + k] * row;
    }
    for (int r = 0; r < ROWS; ++r) *reinterpret_cast<Pack<A>*>(out + r * columns + j) = sum[r];
  }
}

template <class A>
CLONES void product(const A* in, const A* matrix, const A* start, A* out, int rows, int depth, int columns) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) product_of_rows<A, 4>(in + r * depth, matrix, start, out + r * columns, depth, columns);
  for (; r < rows; ++r) product_of_rows<A, 1>(in + r * depth, matrix, start, out + r * columns, depth, columns);
}

template <class A>
CLONES void cell(A* gates, A* c, A* h, int n_state) {  // gates [3H] are activated in place
#pragma omp simd
  for (int j = 0; j < n_state; ++j) {
    const Gates<A> gate = activate(gates[j], gates[n_state + j], gates[2 * n_state + j]);
    c[j] += gate.g * gate.i;
    h[j] = hyperbolic_tangent(c[j]) * gate.o;
    gates[j] = gate.i, gates[n_state + j] = gate.o, gates[2 * n_state + j] = gate.g;
  }
}

template <class A, class T>
CLONES void cell_bwd(const T* gates, const T* c, const A* grad_h, A* grad_c, A* grad_gates, int n_state) {
#pragma omp simd
  for (int j = 0; j < n_state; ++j) {
    Gates<A> grad;
    const Gates<A> gate{A(gates[j]), A(gates[n_state + j]), A(gates[2 * n_state + j])};
    grad_c[j] = activate_bwd(gate, A(c[j]), grad_h[j], grad_c[j], grad);
    grad_gates[j] = grad.i, grad_gates[n_state + j] = grad.o, grad_gates[2 * n_state + j] = grad.g;
  }
}

std::vector<int64_t> longest_first(const LltmShape& s) {
  std::vector<int64_t> rays(s.n_rays);
  std::iota(rays.begin(), rays.end(), 0);
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
    int n = 0;
    while (n < size && length(n) > step) ++n;
    return n;
  }
};

template <class F>
void for_groups(const std::vector<int64_t>& rays, const LltmShape& s, const F& f) {
  const int64_t groups = (s.n_rays + GROUP - 1) / GROUP;
  parallel(groups, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      f(RayGroup{rays.data() + i * GROUP, int(std::min<int64_t>(GROUP, s.n_rays - i * GROUP)), s});
  });
}

template <class T, class A>
void copy(const T* from, A* to, int n) {
  for (int i = 0; i < n; ++i) to[i] = A(from[i]);
}

template <class T>
struct Arrays {
  const T *input, *h0, *c0;
  T *h, *h_n, *c_n, *activated, *c;
};

template <class T>
void forward_group(const RayGroup& group, const Arrays<T>& a, const acc_t<T>* matrix, const acc_t<T>* bias, int columns) {
  using A = acc_t<T>;
  const int H = group.s.n_state, I = group.s.n_input, depth = H + I;
  std::vector<A> in(GROUP * depth), gates(GROUP * columns), c(GROUP * H);
  for (int r = 0; r < group.size; ++r) {
    copy(a.h0 + group.rays[r] * H, in.data() + r * depth, H);
    copy(a.c0 + group.rays[r] * H, c.data() + r * H, H);
  }
  for (int64_t step = 0; step < group.length(0); ++step) {
    const int n = group.active(step);
    for (int r = 0; r < n; ++r) copy(a.input + (group.first(r) + step) * I, in.data() + r * depth + H, I);
    product(in.data(), matrix, bias, gates.data(), n, depth, columns);
    for (int r = 0; r < n; ++r) {
      const int64_t place = group.first(r) + step;
      A* h = in.data() + r * depth;
      cell(gates.data() + r * columns, c.data() + r * H, h, H);
      copy(h, a.h + place * H, H);
      if (!a.activated) continue;
      copy(gates.data() + r * columns, a.activated + place * 3 * H, 3 * H);
      copy(c.data() + r * H, a.c + place * H, H);
    }
  }
  for (int r = 0; r < group.size; ++r) {
    copy(in.data() + r * depth, a.h_n + group.rays[r] * H, H);
    copy(c.data() + r * H, a.c_n + group.rays[r] * H, H);
  }
}

template <class T>
struct Gradients {
  const T *h, *h_n, *c_n, *activated, *c;
  T *gates, *h0, *c0;
};

template <class T>
void backward_group(const RayGroup& group, const Gradients<T>& a, const acc_t<T>* matrix, int columns) {
  using A = acc_t<T>;
  const int H = group.s.n_state;
  std::vector<A> grad_h(GROUP * columns), grad_c(GROUP * H), grad_gates(GROUP * 3 * H);
  for (int r = 0; r < group.size; ++r) {
    copy(a.h_n + group.rays[r] * H, grad_h.data() + r * columns, H);
    copy(a.c_n + group.rays[r] * H, grad_c.data() + r * H, H);
  }
  for (int64_t step = group.length(0) - 1; step >= 0; --step) {
    const int n = group.active(step);
    for (int r = 0; r < n; ++r) {
      const int64_t place = group.first(r) + step;
      A *dh = grad_h.data() + r * columns, *dg = grad_gates.data() + r * 3 * H;
      for (int j = 0; j < H; ++j) dh[j] += A(a.h[place * H + j]);
      cell_bwd(a.activated + place * 3 * H, a.c + place * H, dh, grad_c.data() + r * H, dg, H);
      copy(dg, a.gates + place * 3 * H, 3 * H);
    }
    product(grad_gates.data(), matrix, (const A*)nullptr, grad_h.data(), n, 3 * H, columns);
  }
  for (int r = 0; r < group.size; ++r) {
    copy(grad_h.data() + r * columns, a.h0 + group.rays[r] * H, H);
    copy(grad_c.data() + r * H, a.c0 + group.rays[r] * H, H);
  }
}

template <class T>
CLONES void add_rows(const T* rows, acc_t<T>* sum, int64_t n_rows, int columns) {
  for (int64_t n = 0; n < n_rows; ++n)
    for (int j = 0; j < columns; ++j) sum[j] += acc_t<T>(rows[n * columns + j]);
}

}  // namespace

Status lltm(DType dtype, const void* input, const void* weight, const void* bias, const void* h0, const void* c0, void* h,
            void* h_n, void* c_n, void* activated, void* c, const LltmShape& s, Stream) {
  const auto rays = longest_first(s);
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    using A = acc_t<T>;
    const int gates = 3 * s.n_state, depth = s.n_state + s.n_input, columns = padded(gates);
    std::vector<A> matrix(int64_t(depth) * columns), start(columns);  // the weight, transposed
    for (int j = 0; j < gates; ++j) {
      start[j] = A(((const T*)bias)[j]);
      for (int k = 0; k < depth; ++k) matrix[int64_t(k) * columns + j] = A(((const T*)weight)[int64_t(j) * depth + k]);
    }
    const Arrays<T> arrays{(const T*)input, (const T*)h0, (const T*)c0, (T*)h, (T*)h_n, (T*)c_n, (T*)activated, (T*)c};
    for_groups(rays, s, [&](const RayGroup& group) { forward_group(group, arrays, matrix.data(), start.data(), columns); });
  });
  return 0;
}

Status lltm_bwd(DType dtype, const void* grad_h, const void* grad_h_n, const void* grad_c_n, const void* weight,
                const void* activated, const void* c, void* grad_gates, void* grad_h0, void* grad_c0, void* grad_bias,
                const LltmShape& s, Stream) {
  const auto rays = longest_first(s);
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    using A = acc_t<T>;
    const int depth = s.n_state + s.n_input, columns = padded(s.n_state);
    std::vector<A> matrix(int64_t(3) * s.n_state * columns);  // the weight's columns of h
    for (int j = 0; j < 3 * s.n_state; ++j) copy((const T*)weight + int64_t(j) * depth, matrix.data() + int64_t(j) * columns, s.n_state);
    const Gradients<T> arrays{(const T*)grad_h, (const T*)grad_h_n, (const T*)grad_c_n, (const T*)activated, (const T*)c,
                              (T*)grad_gates,   (T*)grad_h0,        (T*)grad_c0};
    for_groups(rays, s, [&](const RayGroup& group) { backward_group(group, arrays, matrix.data(), columns); });
    add_rows((const T*)grad_gates, (A*)grad_bias, s.n_samples, 3 * s.n_state);
  });
  return 0;
}

}  // namespace nerfkit
