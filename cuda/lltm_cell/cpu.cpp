// SPDX-License-Identifier: Apache-2.0

#include "lltm/units_cpu.h"

namespace nerfkit {
namespace {

// Rows begin .. end - 1 of the batch.
template <class T>
void forward(const CellForward<T>& a, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  const int n_state = int(a.n_state);
  for (int64_t b = begin; b < end; ++b) {
    const T* gates = a.gates + 3 * b * n_state;
    T* activated = a.activated + 3 * b * n_state;
    for_units(n_state, [&](int j, int n) {
      SimdGates<A> gate[1] = {{GATE_SCALE<A> * load(gates + j, n), GATE_SCALE<A> * load(gates + n_state + j, n),
                               load(gates + 2 * n_state + j, n)}};
      activate_all(gate);
      const auto& [i, o, g] = gate[0];
      const int64_t at = b * n_state + j;
      SimdVec<A> t[1] = {load(a.c + at, n) + g * i};
      store(a.c_new + at, t[0], n);
      hyperbolic_tangents(t);
      store(a.h_new + at, t[0] * o, n);
      store(activated + j, i, n), store(activated + n_state + j, o, n), store(activated + 2 * n_state + j, g, n);
    });
  }
}

template <class T>
void backward(const CellBackward<T>& a, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  const int n_state = int(a.n_state);
  for (int64_t b = begin; b < end; ++b) {
    const T* activated = a.activated + 3 * b * n_state;
    T* to = a.grad_gates + 3 * b * n_state;
    for_units(n_state, [&](int j, int n) {
      const int64_t at = b * n_state + j;
      const SimdGates<A> gate{load(activated + j, n), load(activated + n_state + j, n),
                              load(activated + 2 * n_state + j, n)};
      SimdVec<A> t[1] = {load(a.c_new + at, n)}, grad_of_c = load(a.grad_c_new + at, n);
      hyperbolic_tangents(t);
      const auto grad = activate_bwd_all<A>(gate, t[0], load(a.grad_h_new + at, n), grad_of_c);
      store(a.grad_c + at, grad_of_c, n);
      store(to + j, grad.i, n), store(to + n_state + j, grad.o, n), store(to + 2 * n_state + j, grad.g, n);
    });
  }
}

constexpr int MIN_ROWS = 64;  // of a thread

}  // namespace

Status lltm_cell(DType dtype, const CellForward<void>& arguments, Stream) {
  dispatch(dtype, [&](auto element) {
    const auto a = arguments.as<decltype(element)>();
    parallel(a.batch, MIN_ROWS, [&](int64_t begin, int64_t end) { forward(a, begin, end); });
  });
  return 0;
}

Status lltm_cell_bwd(DType dtype, const CellBackward<void>& arguments, Stream) {
  dispatch(dtype, [&](auto element) {
    const auto a = arguments.as<decltype(element)>();
    parallel(a.batch, MIN_ROWS, [&](int64_t begin, int64_t end) { backward(a, begin, end); });
  });
  return 0;
}

}  // namespace nerfkit
