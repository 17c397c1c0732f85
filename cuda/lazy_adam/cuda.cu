// SPDX-License-Identifier: Apache-2.0
// A thread loads ACCESSES vectors of the gradient; the parameter and the moments only where one is not zero, which is
// rare for a table of features.

#include "common/gpu.cuh"
#include "lazy_adam/args.h"

namespace nerfkit {
namespace {

constexpr int ACCESSES = 4;  // of 16 bytes per thread, on their way at once

template <class T, int V>
__global__ void __launch_bounds__(THREADS) lazy_adam_step(LazyAdamArguments a, AdamRates<T> rates) {
  if (a.found_inf && *a.found_inf != 0) return;
  T grad[ACCESSES][V];
  const int64_t first = (int64_t(blockIdx.x) * THREADS * ACCESSES + threadIdx.x) * V;
#pragma unroll
  for (int k = 0; k < ACCESSES; ++k) {
    const int64_t n = first + int64_t(k) * THREADS * V;
    if (n < a.n) load((const T*)a.grad + n, grad[k]);
  }
  const AdamStep<T> by = adam_step(a, rates);
#pragma unroll
  for (int k = 0; k < ACCESSES; ++k) {
    const int64_t n = first + int64_t(k) * THREADS * V;
    if (n >= a.n) return;
    bool all_zero = true;
#pragma unroll
    for (int v = 0; v < V; ++v) all_zero = all_zero && grad[k][v] == 0;
    if (all_zero) continue;
    T param[V], mean[V], square[V];
    load((const T*)a.param + n, param);
    load((const T*)a.exp_avg + n, mean);
    load((const T*)a.exp_avg_sq + n, square);
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (grad[k][v] != 0) update(by, param[v], grad[k][v], mean[v], square[v]);
    store((T*)a.param + n, param);
    store((T*)a.exp_avg + n, mean);
    store((T*)a.exp_avg_sq + n, square);
  }
}

template <class T>
void launch(const LazyAdamArguments& a, cudaStream_t stream) {
  constexpr int V = VECTOR_WIDTH<T>;
  const AdamRates<T> rates(a);
  const bool vectors = a.n % V == 0 && aligned(a.param, 16) && aligned(a.grad, 16) && aligned(a.exp_avg, 16) &&
                       aligned(a.exp_avg_sq, 16);
  if (vectors)
    lazy_adam_step<T, V><<<blocks_for(a.n, int64_t(THREADS) * ACCESSES * V), THREADS, 0, stream>>>(a, rates);
  else
    lazy_adam_step<T, 1><<<blocks_for(a.n, int64_t(THREADS) * ACCESSES), THREADS, 0, stream>>>(a, rates);
}

}  // namespace

Status lazy_adam(DType dtype, const LazyAdamArguments& arguments, Stream stream) {
  if (arguments.n == 0) return 0;
  if (dtype == DType::f64)
    launch<double>(arguments, (cudaStream_t)stream);
  else
    launch<float>(arguments, (cudaStream_t)stream);
  return launched();
}

}  // namespace nerfkit
