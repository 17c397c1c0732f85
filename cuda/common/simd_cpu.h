// SPDX-License-Identifier: Apache-2.0
// For cpu.cpp: element types, packs (SIMD vectors), streaming stores, threads.

#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "common/launch.h"

namespace nerfkit {

// setup.py compiles all CPU sources for several instruction sets, each into a library of its own. A pack has LANES
// elements: float32 of one register, for wider vectors the compiler spills to memory.
#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif

template <class A>
struct PackOf {
  typedef A type __attribute__((vector_size(LANES * sizeof(A)), aligned(alignof(A)), may_alias));
};
template <class A>
using SimdVec = typename PackOf<A>::type;

// A pack of from [n], n <= LANES; the other lanes are zero.
template <class T>
HD SimdVec<acc_t<T>> load(const T* from, int n = LANES) {
  using A = acc_t<T>;
  if constexpr (std::is_same_v<T, A>)
    if (n == LANES) return *reinterpret_cast<const SimdVec<A>*>(from);
  A values[LANES] = {};
  if (n == LANES)
    for (int i = 0; i < LANES; ++i) values[i] = A(from[i]);
  else
    for (int i = 0; i < n; ++i) values[i] = A(from[i]);
  return *reinterpret_cast<const SimdVec<A>*>(values);
}

// The first n lanes of a pack to `to` [n].
template <class T>
HD void store(T* to, SimdVec<acc_t<T>> pack, int n = LANES) {
  if constexpr (std::is_same_v<T, acc_t<T>>)
    if (n == LANES) {
      *reinterpret_cast<SimdVec<T>*>(to) = pack;
      return;
    }
  for (int i = 0; i < n; ++i) to[i] = T(pack[i]);
}

// Streaming (non-temporal) stores bypass the caches, which would else read each line before it is written. Worth it for
// a call that moves so many bytes that the caches keep little of the results until they are read; measured.
constexpr int64_t STREAMING_BYTES = 32 << 20;

inline bool use_streaming_stores(const void* results, int64_t moved) {
#if defined(__x86_64__)
  return moved >= STREAMING_BYTES && uintptr_t(results) % 64 == 0;
#else
  return false;
#endif
}

#if defined(__AVX512F__)
using Register = __m512;
HD void stream_register(float* to, Register numbers) { _mm512_stream_ps(to, numbers); }
#elif defined(__AVX2__)
using Register = __m256;
HD void stream_register(float* to, Register numbers) { _mm256_stream_ps(to, numbers); }
#elif defined(__x86_64__)
using Register = __m128;
HD void stream_register(float* to, Register numbers) { _mm_stream_ps(to, numbers); }
#endif

// As store(), by streaming stores, to an address aligned to a register. Write full cache lines: a part of a line takes
// as long as all of it. A thread that did it ends with streaming_fence().
template <class A>
HD void store_streaming(A* to, SimdVec<A> pack) {
#if defined(__x86_64__)
  constexpr int COUNT = sizeof(pack) / sizeof(Register);
  Register registers[COUNT];
  __builtin_memcpy(registers, &pack, sizeof(pack));
#pragma GCC unroll 2
  for (int i = 0; i < COUNT; ++i) stream_register(reinterpret_cast<float*>(to) + i * LANES, registers[i]);
#else
  store(to, pack);
#endif
}

inline void streaming_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

template <class A>
HD SimdVec<A> broadcast(A number) {
  A values[LANES];  // an array: of assignments to a pack's elements the compiler makes one instruction each
  for (int i = 0; i < LANES; ++i) values[i] = number;
  return *reinterpret_cast<const SimdVec<A>*>(values);
}

// Packs that the registers hold.
template <class A>
constexpr int MAX_PACKS = REGISTERS * sizeof(float) / sizeof(A);

template <class A>
struct LineAllocator {
  using value_type = A;
  LineAllocator() = default;
  template <class B>
  LineAllocator(const LineAllocator<B>&) {}
  A* allocate(size_t n) { return static_cast<A*>(::operator new(n * sizeof(A), LINE)); }
  void deallocate(A* array, size_t) { ::operator delete(array, LINE); }
  friend bool operator==(const LineAllocator&, const LineAllocator&) { return true; }
  friend bool operator!=(const LineAllocator&, const LineAllocator&) { return false; }

 private:
  static constexpr std::align_val_t LINE{64};
};
// A std::vector that begins at a cache line: a pack across two lines takes as long as two packs.
template <class A>
using PackVector = std::vector<A, LineAllocator<A>>;

// Calls f with a value of the element type.
template <class F>
void dispatch(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f(float());
    case DType::f64:
      return f(double());
    case DType::f16:
      return f(torch::headeronly::Half());
    case DType::bf16:
      return f(torch::headeronly::BFloat16());
  }
}

// f(begin, end) for ranges of at least `grain` that cover [0, n), on torch's own threads.
template <class F>
void parallel(int64_t n, int64_t grain, const F& f) {
  auto call = [](int64_t begin, int64_t end, void* context) { (*static_cast<const F*>(context))(begin, end); };
  if (torch_parallel_for(0, n, grain, call, const_cast<F*>(&f)) != 0)
    throw std::runtime_error("nerfkit: a thread failed");
}

// f(i) for every i in [0, n) on torch's own threads, each taking the next when done with one: for tasks of unequal
// length.
template <class F>
void parallel_each(int64_t n, const F& f) {
  uint32_t threads = 1;
  torch_get_num_threads(&threads);
  std::atomic<int64_t> next{0};
  parallel(std::min<int64_t>(threads, n), 1, [&](int64_t, int64_t) {
    for (int64_t i; (i = next++) < n;) f(i);
  });
}

}  // namespace nerfkit
