// SPDX-License-Identifier: Apache-2.0
// One step of Adam for one element; elements whose gradient is zero are left as they are.

#pragma once

#include <cmath>

#include "common/launch.h"

namespace nerfkit {

struct LazyAdamArguments {
  void* param;       // [n] read and written, as the two moments
  const void* grad;  // [n]
  void* exp_avg;     // [n] first moment
  void* exp_avg_sq;  // [n] second moment
  int64_t n;
  const float* step;        // [1] number of this step, from 1 on
  const float* lr;          // [1]
  const float* grad_scale;  // [1] that the gradients are divided by, or null
  const float* found_inf;   // [1] not 0: nothing is changed; or null
  double beta1, beta2, eps;
};

// What follows from the betas alone, computed on the host: a logarithm in double is slow on a GPU.
template <class T>
struct AdamRates {
  T beta1, beta2, rest1, rest2, log1, log2, eps;  // rest = 1 - beta

  explicit AdamRates(const LazyAdamArguments& a)
      : beta1(a.beta1),
        beta2(a.beta2),
        rest1(1 - a.beta1),
        rest2(1 - a.beta2),
        log1(std::log(a.beta1)),
        log2(std::log(a.beta2)),
        eps(a.eps) {}
};

template <class T>
struct AdamStep : AdamRates<T> {
  T rate;        // lr / (1 - beta1^step)
  T correction;  // 1 / sqrt(1 - beta2^step)
  T scale;       // 1 / grad_scale
};

// Not to be called where found_inf is set: nothing may change.
template <class T>
HD AdamStep<T> adam_step(const LazyAdamArguments& a, const AdamRates<T>& rates) {
  const T step = T(*a.step), bias1 = -std::expm1(step * rates.log1), bias2 = -std::expm1(step * rates.log2);
  return {rates, T(*a.lr) / bias1, 1 / std::sqrt(bias2), a.grad_scale ? 1 / T(*a.grad_scale) : T(1)};
}

template <class T>
HD void update(const AdamStep<T>& by, T& param, T grad, T& mean, T& square) {
  const T g = grad * by.scale;
  mean = by.beta1 * mean + by.rest1 * g;
  square = by.beta2 * square + by.rest2 * g * g;
  param -= by.rate * mean / (std::sqrt(square) * by.correction + by.eps);
}

Status lazy_adam(DType, const LazyAdamArguments&, Stream);

}  // namespace nerfkit
