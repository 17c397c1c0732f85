// SPDX-License-Identifier: Apache-2.0

#include "gpu.cuh"
#include "lltm_cell.h"

namespace nerfkit {
namespace {

template <class T>
__global__ void __launch_bounds__(THREADS) forward(const T* __restrict__ gates, const T* __restrict__ c, T* __restrict__ h,
                                                   T* __restrict__ c_new, T* __restrict__ activated, int64_t n, int n_state) {
  using A = acc_t<T>;
  const int64_t place = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (place >= n) return;
  const int64_t i = place / n_state * 3 * n_state + place % n_state, o = i + n_state, g = o + n_state;
  const Gates<A> gate = activate(A(gates[i]), A(gates[o]), A(gates[g]));
  const A value = A(c[place]) + gate.g * gate.i;
  activated[i] = T(gate.i), activated[o] = T(gate.o), activated[g] = T(gate.g);
  c_new[place] = T(value);
  h[place] = T(hyperbolic_tangent(value) * gate.o);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    backward(const T* __restrict__ grad_h, const T* __restrict__ grad_c_new, const T* __restrict__ activated,
             const T* __restrict__ c_new, T* __restrict__ grad_gates, T* __restrict__ grad_c, int64_t n, int n_state) {
  using A = acc_t<T>;
  const int64_t place = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (place >= n) return;
  const int64_t i = place / n_state * 3 * n_state + place % n_state, o = i + n_state, g = o + n_state;
  const Gates<A> gate{A(activated[i]), A(activated[o]), A(activated[g])};
  Gates<A> grad;
  grad_c[place] = T(activate_bwd(gate, A(c_new[place]), A(grad_h[place]), A(grad_c_new[place]), grad));
  grad_gates[i] = T(grad.i), grad_gates[o] = T(grad.o), grad_gates[g] = T(grad.g);
}

}  // namespace

Status lltm_cell(DType dtype, const void* gates, const void* c, void* h, void* c_new, void* activated, CellSize size,
                 Stream stream) {
  const int64_t n = size.batch * size.state;
  if (n == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    forward<<<blocks_for(n), THREADS, 0, (cudaStream_t)stream>>>((const T*)gates, (const T*)c, (T*)h, (T*)c_new,
                                                                 (T*)activated, n, int(size.state));
  });
  return launched();
}

Status lltm_cell_bwd(DType dtype, const void* grad_h, const void* grad_c_new, const void* activated, const void* c_new,
                     void* grad_gates, void* grad_c, CellSize size, Stream stream) {
  const int64_t n = size.batch * size.state;
  if (n == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    backward<<<blocks_for(n), THREADS, 0, (cudaStream_t)stream>>>((const T*)grad_h, (const T*)grad_c_new,
                                                                  (const T*)activated, (const T*)c_new, (T*)grad_gates,
                                                                  (T*)grad_c, n, int(size.state));
  });
  return launched();
}

}  // namespace nerfkit
