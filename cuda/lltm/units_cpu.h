// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the LLTM's units, in packs.

#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "common/simd_cpu.h"
#include "lltm_cell/args.h"

namespace nerfkit {
namespace {

// Input gate, output gate and candidate of LANES units.
template <class A>
struct SimdGates {
  SimdVec<A> i, o, g;
};

constexpr float LOG2E = 1.44269504f;

// What input and output gate are multiplied by before activation: the sigmoid of a float is 1 / (1 + 2^x) of that.
template <class A>
constexpr A GATE_SCALE = std::is_same_v<A, float> ? -LOG2E : 1;

#define EACH(k, n) _Pragma("GCC unroll 16") for (int k = 0; k < n; ++k)

// 2^x of N packs. All take each step together, as out-of-order execution does not reach from the end of one to the
// next. Relative error 1e-7 from -126 to 127; beyond, the number at that end, or with AVX-512 zero and infinity.
template <int N>
HD void powers_of_2(SimdVec<float> (&x)[N]) {
  SimdVec<float> rounded[N], r[N], p[N];
#if defined(__AVX512F__)
  EACH(k, N) rounded[k] = _mm512_maskz_roundscale_ps(-1, x[k], 0);
#else
  EACH(k, N) x[k] = x[k] < -126.f ? -126.f : x[k];
  EACH(k, N) x[k] = x[k] > 127.f ? 127.f : x[k];
  EACH(k, N) rounded[k] = (x[k] + 12582912.f) - 12582912.f;  // 1.5 * 2^23, whose neighbours are integers
#endif
  EACH(k, N) r[k] = x[k] - rounded[k];
  EACH(k, N) p[k] = r[k] * 1.532647148e-4f + 1.339080743e-3f;  // with these numbers nearest to 2^r for |r| < 1/2
  EACH(k, N) p[k] = p[k] * r[k] + 9.618505836e-3f;
  EACH(k, N) p[k] = p[k] * r[k] + 5.550359935e-2f;
  EACH(k, N) p[k] = p[k] * r[k] + 2.402264774e-1f;
  EACH(k, N) p[k] = p[k] * r[k] + 6.931471825e-1f;
  EACH(k, N) p[k] = p[k] * r[k] + 1.f;
#if defined(__AVX512F__)
  EACH(k, N) x[k] = _mm512_maskz_scalef_ps(-1, p[k], rounded[k]);
#else
  typedef int32_t Ints __attribute__((vector_size(sizeof(*x))));
  EACH(k, N) x[k] = (SimdVec<float>)((Ints)p[k] + (__builtin_convertvector(rounded[k], Ints) << 23));
#endif
}

template <int N>
HD void hyperbolic_tangents(SimdVec<float> (&x)[N]) {
  EACH(k, N) x[k] = (2 * LOG2E) * x[k];
  powers_of_2(x);
  EACH(k, N) x[k] = 1.f - 2.f / (x[k] + 1.f);
}
template <int N>
HD void hyperbolic_tangents(SimdVec<double> (&x)[N]) {
  for (auto& pack : x)
    for (int j = 0; j < LANES; ++j) pack[j] = hyperbolic_tangent(double(pack[j]));
}

// As activate() of a single number, of N packs with GATE_SCALE.
template <int N>
HD void activate_all(SimdGates<float> (&gate)[N]) {
  SimdVec<float> x[3 * N];
  EACH(k, N) x[k] = gate[k].i, x[N + k] = gate[k].o, x[2 * N + k] = LOG2E * gate[k].g;
  powers_of_2(x);
  EACH(k, N) gate[k].i = 1.f / (1.f + x[k]);
  EACH(k, N) gate[k].o = 1.f / (1.f + x[N + k]);
  EACH(k, N) gate[k].g = gate[k].g > 0.f ? gate[k].g : x[2 * N + k] - 1.f;
}
template <int N>
HD void activate_all(SimdGates<double> (&gates)[N]) {
  for (auto& gate : gates)
    for (int j = 0; j < LANES; ++j) {
      const Gates<double> one = activate(double(gate.i[j]), double(gate.o[j]), double(gate.g[j]));
      gate.i[j] = one.i, gate.o[j] = one.o, gate.g[j] = one.g;
    }
}

// As activate_bwd_at() of a single number: of gates before activation, from the hyperbolic tangent t of the new c and
// the gradients of h and c.
template <class A>
HD SimdGates<A> activate_bwd_all(const SimdGates<A>& gate, SimdVec<A> t, SimdVec<A> grad_h, SimdVec<A>& grad_c) {
  grad_c += grad_h * gate.o * (1 - t * t);
  const SimdVec<A> slope = gate.g > 0 ? broadcast(A(1)) : gate.g + 1;
  return {grad_c * gate.g * gate.i * (1 - gate.i), grad_h * t * gate.o * (1 - gate.o), grad_c * gate.i * slope};
}

// f(j, n) for the units j .. j + n - 1; where n is LANES it is a constant, for loads and stores without a test.
template <class F>
HD void for_units(int n_state, const F& f) {
  int j = 0;
  for (; j + LANES <= n_state; j += LANES) f(j, LANES);
  if (j < n_state) f(j, n_state - j);
}

}  // namespace
}  // namespace nerfkit
