// SPDX-License-Identifier: Apache-2.0
// One step of Adam for one element.

#pragma once

#include <cmath>

#include "common/launch.h"

namespace nerfkit {

struct LazyAdamArguments {
  void* param;
  const void* grad;
  void *exp_avg, *exp_avg_sq;
  int64_t n;
  const float *step, *lr, *grad_scale, *found_inf;  // the last two may be null
  double beta1, beta2, eps;
};

// What follows from the betas alone, found on the host: a logarithm in double is slow on a GPU.
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
  T rate, correction, scale;  // correction of the root
};

// Not to be called if nothing is to change.
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
