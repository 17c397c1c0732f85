// SPDX-License-Identifier: Apache-2.0

#include "cpu.h"
#include "lltm_cell.h"

namespace nerfkit {
namespace {

template <class T>
void forward(const T* gates, const T* c, T* h, T* c_new, T* activated, int64_t n_state, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  for (int64_t b = begin; b < end; ++b) {
    const T* a = gates + 3 * b * n_state;
    T* to = activated + 3 * b * n_state;
#pragma omp simd
    for (int64_t j = 0; j < n_state; ++j) {
      const Gates<A> gate = activate(A(a[j]), A(a[n_state + j]), A(a[2 * n_state + j]));
      const A value = A(c[b * n_state + j]) + gate.g * gate.i;
      to[j] = T(gate.i), to[n_state + j] = T(gate.o), to[2 * n_state + j] = T(gate.g);
      c_new[b * n_state + j] = T(value);
      h[b * n_state + j] = T(hyperbolic_tangent(value) * gate.o);
    }
  }
}

template <class T>
void backward(const T* grad_h, const T* grad_c_new, const T* activated, const T* c_new, T* grad_gates, T* grad_c,
              int64_t n_state, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  for (int64_t b = begin; b < end; ++b) {
    const T* a = activated + 3 * b * n_state;
    T* to = grad_gates + 3 * b * n_state;
#pragma omp simd
    for (int64_t j = 0; j < n_state; ++j) {
      const int64_t place = b * n_state + j;
      Gates<A> grad;
      const Gates<A> gate{A(a[j]), A(a[n_state + j]), A(a[2 * n_state + j])};
      grad_c[place] = T(activate_bwd(gate, A(c_new[place]), A(grad_h[place]), A(grad_c_new[place]), grad));
      to[j] = T(grad.i), to[n_state + j] = T(grad.o), to[2 * n_state + j] = T(grad.g);
    }
  }
}

}  // namespace

Status lltm_cell(DType dtype, const void* gates, const void* c, void* h, void* c_new, void* activated, CellSize size, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    parallel(size.batch, 64, [&](int64_t begin, int64_t end) {
      forward((const T*)gates, (const T*)c, (T*)h, (T*)c_new, (T*)activated, size.state, begin, end);
    });
  });
  return 0;
}

Status lltm_cell_bwd(DType dtype, const void* grad_h, const void* grad_c_new, const void* activated, const void* c_new,
                     void* grad_gates, void* grad_c, CellSize size, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    parallel(size.batch, 64, [&](int64_t begin, int64_t end) {
      backward((const T*)grad_h, (const T*)grad_c_new, (const T*)activated, (const T*)c_new, (T*)grad_gates, (T*)grad_c,
               size.state, begin, end);
    });
  });
  return 0;
}

}  // namespace nerfkit
