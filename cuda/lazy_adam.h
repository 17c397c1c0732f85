// SPDX-License-Identifier: Apache-2.0
// One step of Adam for one element.

#pragma once

#include <cmath>

#include "launch.h"

namespace nerfkit {

struct LazyAdamArguments {
  void* param;
  const void* grad;
  void *exp_avg, *exp_avg_sq;
  int64_t n;
  const float *step, *lr, *grad_scale, *found_inf;  // the last two may be null
  double beta1, beta2, eps;
};

template <class T>
struct AdamStep {
  T beta1, beta2, rest1, rest2, eps, rate, correction, scale;  // rest = 1 - beta; correction of the root
};

// Not to be called if nothing is to change.
template <class T>
HD AdamStep<T> adam_step(const LazyAdamArguments& a) {
  const T step = T(*a.step), bias1 = -std::expm1(step * T(std::log(a.beta1))), bias2 = -std::expm1(step * T(std::log(a.beta2)));
  return {T(a.beta1), T(a.beta2), T(1 - a.beta1), T(1 - a.beta2), T(a.eps), T(*a.lr) / bias1, 1 / std::sqrt(bias2),
          a.grad_scale ? 1 / T(*a.grad_scale) : T(1)};
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
