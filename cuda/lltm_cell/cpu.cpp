// SPDX-License-Identifier: Apache-2.0

#include "lltm/units_cpu.h"

namespace nerfkit {
namespace {

template <class T>
void forward(const T* gates, const T* c, T* h, T* c_new, T* activated, int n_state, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  for (int64_t b = begin; b < end; ++b) {
    const T* a = gates + 3 * b * n_state;
    T* to = activated + 3 * b * n_state;
    for_units(n_state, [&](int j, int n) {
      PackGates<A> gate[1] = {
          {GATE_SCALE<A> * load(a + j, n), GATE_SCALE<A> * load(a + n_state + j, n), load(a + 2 * n_state + j, n)}};
      activate_all(gate);
      const auto& [i, o, g] = gate[0];
      const int64_t place = b * n_state + j;
      Pack<A> t[1] = {load(c + place, n) + g * i};
      store(c_new + place, t[0], n);
      hyperbolic_tangents(t);
      store(h + place, t[0] * o, n);
      store(to + j, i, n), store(to + n_state + j, o, n), store(to + 2 * n_state + j, g, n);
    });
  }
}

template <class T>
void backward(const T* grad_h, const T* grad_c_new, const T* activated, const T* c_new, T* grad_gates, T* grad_c,
              int n_state, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  for (int64_t b = begin; b < end; ++b) {
    const T* a = activated + 3 * b * n_state;
    T* to = grad_gates + 3 * b * n_state;
    for_units(n_state, [&](int j, int n) {
      const int64_t place = b * n_state + j;
      const PackGates<A> gate{load(a + j, n), load(a + n_state + j, n), load(a + 2 * n_state + j, n)};
      Pack<A> t[1] = {load(c_new + place, n)}, grad_of_c = load(grad_c_new + place, n);
      hyperbolic_tangents(t);
      const auto grad = activate_bwd_all<A>(gate, t[0], load(grad_h + place, n), grad_of_c);
      store(grad_c + place, grad_of_c, n);
      store(to + j, grad.i, n), store(to + n_state + j, grad.o, n), store(to + 2 * n_state + j, grad.g, n);
    });
  }
}

}  // namespace

Status lltm_cell(DType dtype, const void* gates, const void* c, void* h, void* c_new, void* activated, CellSize size,
                 Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    parallel(size.batch, 64, [&](int64_t begin, int64_t end) {
      forward((const T*)gates, (const T*)c, (T*)h, (T*)c_new, (T*)activated, int(size.state), begin, end);
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
               int(size.state), begin, end);
    });
  });
  return 0;
}

}  // namespace nerfkit
