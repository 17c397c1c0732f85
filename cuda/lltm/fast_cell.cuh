// SPDX-License-Identifier: Apache-2.0
// The activations in float32, as fast as the element type allows: of half types within their own rounding.

#pragma once

#include "lltm/args.h"

namespace nerfkit {
namespace {

template <class T>
__device__ __forceinline__ float fast_tanh(float x) {
  if constexpr (sizeof(T) == 4) {
    return 1.f - __fdividef(2.f, __expf(2.f * x) + 1.f);
  } else {
    float y;
#if __CUDA_ARCH__ >= 750
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
#else
    y = tanhf(x);
#endif
    return y;
  }
}

template <class T>
__device__ __forceinline__ Gates<float> fast_activate(float a_i, float a_o, float a_g) {
  auto open = [](float a) {
    if constexpr (sizeof(T) == 4) return __fdividef(1.f, 1.f + __expf(-a));
    return 0.5f + 0.5f * fast_tanh<T>(0.5f * a);
  };
  return {open(a_i), open(a_o), a_g > 0 ? a_g : __expf(a_g) - 1.f};
}

}  // namespace
}  // namespace nerfkit
