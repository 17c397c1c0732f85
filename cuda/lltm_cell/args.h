// SPDX-License-Identifier: Apache-2.0
// One unit of the LLTM: c' = c + g i, h' = tanh(c') o with i, o = sigmoid and g = ELU.

#pragma once

#include <cmath>

#include "common/launch.h"

namespace nerfkit {

template <class A>
struct Gates {
  A i, o, g;  // input gate, output gate, candidate
};

#if defined(__CUDACC__)
HD float exponential(float x) { return expf(x); }
HD double exponential(double x) { return exp(x); }
HD float hyperbolic_tangent(float x) { return tanhf(x); }
HD double hyperbolic_tangent(double x) { return tanh(x); }
HD float exponential_minus_1(float x) { return expm1f(x); }
HD double exponential_minus_1(double x) { return expm1(x); }
#else  // for float32, lltm/units_cpu.h has packs
HD double exponential(double x) { return std::exp(x); }
HD double hyperbolic_tangent(double x) { return std::tanh(x); }
HD double exponential_minus_1(double x) { return std::expm1(x); }
#endif

template <class A>
HD A sigmoid(A x) {
  return A(1) / (A(1) + exponential(-x));
}

template <class A>
HD Gates<A> activate(A a_i, A a_o, A a_g) {
  return {sigmoid(a_i), sigmoid(a_o), a_g > 0 ? a_g : exponential_minus_1(a_g > 0 ? A(0) : a_g)};
}

// Gradients before activation from those of h' and c', which grad_c already carries; gives the gradient of c back.
// t: the hyperbolic tangent of c'.
template <class A>
HD A activate_bwd_at(const Gates<A>& gates, A t, A grad_h, A grad_c, Gates<A>& grad) {
  grad_c += grad_h * gates.o * (A(1) - t * t);
  grad.i = grad_c * gates.g * gates.i * (A(1) - gates.i);
  grad.o = grad_h * t * gates.o * (A(1) - gates.o);
  grad.g = grad_c * gates.i * (gates.g > 0 ? A(1) : gates.g + A(1));
  return grad_c;
}
template <class A>
HD A activate_bwd(const Gates<A>& gates, A c_new, A grad_h, A grad_c, Gates<A>& grad) {
  return activate_bwd_at(gates, hyperbolic_tangent(c_new), grad_h, grad_c, grad);
}

// Arguments of the launchers; they hold void pointers there and typed ones, as<T>(), in the kernels. B rows of a batch,
// I inputs, H units. Gates are in the order input gate, output gate, candidate.

// The units' arithmetic alone: the gates are a product of the library's.
template <class T>
struct CellForward {
  const T* gates;  // [B, 3H], before activation
  const T* c;      // [B, H]
  T* h_new;        // [B, H]
  T* c_new;        // [B, H]
  T* activated;    // [B, 3H], gates after activation
  int64_t batch, n_state;

  template <class U>
  CellForward<U> as() const {
    return {(const U*)gates, (const U*)c, (U*)h_new, (U*)c_new, (U*)activated, batch, n_state};
  }
};

template <class T>
struct CellBackward {
  const T* grad_h_new;  // [B, H]
  const T* grad_c_new;  // [B, H]
  const T* activated;   // [B, 3H]
  const T* c_new;       // [B, H]
  T* grad_gates;        // [B, 3H], before activation
  T* grad_c;            // [B, H]
  int64_t batch, n_state;

  template <class U>
  CellBackward<U> as() const {
    return {(const U*)grad_h_new,
            (const U*)grad_c_new,
            (const U*)activated,
            (const U*)c_new,
            (U*)grad_gates,
            (U*)grad_c,
            batch,
            n_state};
  }
};

Status lltm_cell(DType, const CellForward<void>&, Stream);
Status lltm_cell_bwd(DType, const CellBackward<void>&, Stream);

// ---- on a GPU only: a small batch in one kernel each way, products included ----

template <class T>
struct CellSmallForward {
  const T* input;   // [B, I]
  const T* h;       // [B, H]
  const T* c;       // [B, H]
  const T* weight;  // [3H, H + I]
  const T* bias;    // [3H]
  T* h_new;         // [B, H]
  T* c_new;         // [B, H]
  T* activated;     // [B, 3H]
  int batch, n_state, n_input;

  template <class U>
  CellSmallForward<U> as() const {
    return {(const U*)input, (const U*)h,   (const U*)c, (const U*)weight, (const U*)bias, (U*)h_new,
            (U*)c_new,       (U*)activated, batch,       n_state,          n_input};
  }
};

template <class T>
struct CellSmallBackward {
  const T* grad_h_new;  // [B, H]
  const T* grad_c_new;  // [B, H]
  const T* input;       // [B, I]
  const T* h;           // [B, H]
  const T* weight;      // [3H, H + I]
  const T* activated;   // [B, 3H]
  const T* c_new;       // [B, H]
  T* grad_input;        // [B, I]
  T* grad_h;            // [B, H]
  T* grad_c;            // [B, H]
  T* grad_weight;       // [3H, H + I]
  T* grad_bias;         // [3H]
  int batch, n_state, n_input;

  template <class U>
  CellSmallBackward<U> as() const {
    return {(const U*)grad_h_new, (const U*)grad_c_new, (const U*)input, (const U*)h, (const U*)weight,
            (const U*)activated,  (const U*)c_new,      (U*)grad_input,  (U*)grad_h,  (U*)grad_c,
            (U*)grad_weight,      (U*)grad_bias,        batch,           n_state,     n_input};
  }
};

Status lltm_cell_small(DType, const CellSmallForward<void>&, Stream);
Status lltm_cell_small_bwd(DType, const CellSmallBackward<void>&, Stream);

}  // namespace nerfkit
