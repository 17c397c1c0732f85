// SPDX-License-Identifier: Apache-2.0
// One unit of the LLTM: c' = c + g i, h' = tanh(c') o with i, o = sigmoid and g = ELU.

#pragma once

#include <cmath>

#include "common/launch.h"

namespace nerfkit {

template <class A>
struct Gates {
  A i, o, g;
};

#if defined(__CUDACC__)
HD float exponential(float x) { return expf(x); }
HD double exponential(double x) { return exp(x); }
HD float hyperbolic_tangent(float x) { return tanhf(x); }
HD double hyperbolic_tangent(double x) { return tanh(x); }
HD float exponential_minus_1(float x) { return expm1f(x); }
HD double exponential_minus_1(double x) { return expm1(x); }
#else  // of floats lltm_units_cpu.h has packs
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
template <class A>
HD A activate_bwd_at(const Gates<A>& gates, A t, A grad_h, A grad_c,
                     Gates<A>& grad) {  // t: the hyperbolic tangent of c'
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

struct CellSize {
  int64_t batch, state;
};

// gates [B, 3H] before activation -> h, c_new [B, H] and activated [B, 3H].
Status lltm_cell(DType, const void* gates, const void* c, void* h, void* c_new, void* activated, CellSize, Stream);
Status lltm_cell_bwd(DType, const void* grad_h, const void* grad_c_new, const void* activated, const void* c_new,
                     void* grad_gates, void* grad_c, CellSize, Stream);

// The whole cell in one kernel each way, products included; on a GPU only.
struct SmallCellSize {
  int batch, state, input;
};
Status lltm_cell_small(DType, const void* input, const void* h, const void* c, const void* weight, const void* bias,
                       void* h_new, void* c_new, void* activated, SmallCellSize, Stream);
Status lltm_cell_small_bwd(DType, const void* grad_h_new, const void* grad_c_new, const void* input, const void* h,
                           const void* weight, const void* activated, const void* c_new, void* grad_input, void* grad_h,
                           void* grad_c, void* grad_weight, void* grad_bias, SmallCellSize, Stream);

}  // namespace nerfkit
