// SPDX-License-Identifier: Apache-2.0
// Additions to the gradient of the table: atomic in float, or in fixed point, whose sums do not depend on their order.

#pragma once

#include "common/gpu.cuh"

namespace nerfkit {
namespace {

#if __CUDA_ARCH__ >= 900
constexpr bool HAS_VECTOR_ATOMICS = true;
#else
constexpr bool HAS_VECTOR_ATOMICS = false;
#endif

// to[0 .. V - 1] += values, one vector instruction where the GPU has it (from compute capability 9.0 on).
template <class A, int V>
__device__ __forceinline__ void add(A* to, const A (&values)[V]) {
  constexpr bool VECTOR = HAS_VECTOR_ATOMICS && sizeof(A) == 4;
  if constexpr (VECTOR && V == 4)
    atomicAdd(reinterpret_cast<float4*>(to), make_float4(values[0], values[1], values[2], values[3]));
  else if constexpr (VECTOR && V == 2)
    atomicAdd(reinterpret_cast<float2*>(to), make_float2(values[0], values[1]));
  else
    for (int i = 0; i < V; ++i) atomicAdd(to + i, values[i]);
}

// Fixed-point sums: value * scale rounded to an integer, where scale is a power of two. Integers add exactly, so the
// bits of a sum are the same in any order.
struct FixedPoint {
  unsigned long long* sums;  // [rows of the level, F] two's complement
  double scale;
};

__device__ __forceinline__ double fixed_scale(const unsigned long long* largest, int64_t n_points) {
  const double bound = __longlong_as_double(*largest) * double(n_points);  // of |any sum|; scaled to below 2^61
  return bound > 0 ? exp2(double(60 - ilogb(bound))) : 1.0;
}

template <class A, int V>
__device__ __forceinline__ void add_fixed(const FixedPoint& to, int64_t offset, const A (&values)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i)
    atomicAdd(to.sums + offset + i, static_cast<unsigned long long>(__double2ll_rn(double(values[i]) * to.scale)));
}

// Where the sums of all levels go: to `fixed` where they must not depend on the order, else to `table`.
template <class A>
struct TableSums {
  A* table;                           // [T, F] grad_table
  unsigned long long* fixed;          // [T, F], or null
  const unsigned long long* largest;  // [1], or null
};

// The sums of one level, from value `offset` of [T, F] on.
template <class A, bool FIXED>
struct LevelSums {
  A* table;          // if not FIXED
  FixedPoint fixed;  // if FIXED

  __device__ __forceinline__ LevelSums(const TableSums<A>& to, int64_t offset, int64_t n_points) {
    if constexpr (FIXED)
      fixed = {to.fixed + offset, fixed_scale(to.largest, n_points)};
    else
      table = to.table + offset;
  }

  template <int V>
  __device__ __forceinline__ void add_at(int64_t index, const A (&values)[V]) const {
    if constexpr (FIXED)
      add_fixed(fixed, index, values);
    else
      add(table + index, values);
  }
};

// largest = max |values|, of all threads in a grid-stride loop.
template <class T>
__global__ void __launch_bounds__(THREADS) grid_encode_find_largest(const T* __restrict__ values,  // [n]
                                                                    unsigned long long* largest,   // [1]
                                                                    int64_t n) {
  // NaN wins: `largest` then is not finite, nor is any sum.
  const auto larger = [](double a, double b) { return a != a || a > b ? a : b; };
  double found = 0;
  for (int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x; i < n; i += int64_t(gridDim.x) * THREADS)
    found = larger(fabs(double(acc_t<T>(values[i]))), found);
  for (int offset = 16; offset; offset /= 2) found = larger(__shfl_xor_sync(FULL_MASK, found, offset), found);
  // The bits of positive numbers are in the order of the numbers.
  if (threadIdx.x % 32 == 0) atomicMax(largest, static_cast<unsigned long long>(__double_as_longlong(found)));
}

// out = sums / scale, one thread per value; NaN if a gradient was not finite.
template <class A>
__global__ void __launch_bounds__(THREADS)
    grid_encode_from_fixed(const unsigned long long* __restrict__ sums,     // [n]
                           A* __restrict__ out,                             // [n]
                           const unsigned long long* __restrict__ largest,  // [1]
                           int64_t n_points, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= n) return;
  const bool finite = isfinite(__longlong_as_double(*largest));
  out[i] = finite ? A(double(static_cast<long long>(sums[i])) / fixed_scale(largest, n_points)) : A(NAN);
}

}  // namespace
}  // namespace nerfkit
