// SPDX-License-Identifier: Apache-2.0
// The distortion loss of a ray by prefix sums over its samples, near to far. N samples, R rays.

#pragma once

#include <cmath>

#include "common/launch.h"

namespace nerfkit {

// T is void for the launchers, the element type for the kernels.
template <class T>
struct DistortionInputs {
  const T* weights;            // [N]
  const T* t_starts;           // [N]
  const T* t_ends;             // [N]
  const int64_t* ray_offsets;  // [R + 1]
  int64_t n_rays;
  double near, per_unit;  // g(near), 1 / (g(far) - g(near))
  double linear;          // scene units
};
using DistortionArguments = DistortionInputs<void>;

// g: proportional to the distance up to `linear`, then to its logarithm, with one slope where they meet.
template <class A>
HD A unnormalised(A t, A linear) {
  using namespace std;
  const A x = t / linear;
  return x < A(1) ? x : A(1) + log(x);
}

// A sample, with distances from 0 at near to 1 at far.
template <class A>
struct Stretch {
  A weight, length, middle;
};

// Middles count from `origin`, that of the ray's first sample: the loss has differences alone, and small numbers round
// less.
template <class T>
HD Stretch<acc_t<T>> stretch_of(const DistortionInputs<T>& in, int64_t n, acc_t<T> origin) {
  using A = acc_t<T>;
  const A linear = A(in.linear), near = A(in.near), per_unit = A(in.per_unit);
  const A start = (unnormalised(A(in.t_starts[n]), linear) - near) * per_unit;
  const A end = (unnormalised(A(in.t_ends[n]), linear) - near) * per_unit;
  return {A(in.weights[n]), end - start, (start + end) / A(2) - origin};
}

// Sums of w and w s.
template <class A>
struct Moments {
  A weight, moment;
};

// What a sample adds to the loss, itself and with all samples in front of it.
template <class A>
HD A loss_of(const Stretch<A>& s, const Moments<A>& before) {
  return s.weight * (s.weight * s.length / A(3) + A(2) * (s.middle * before.weight - before.moment));
}

// d loss / d weight of a sample: `before` those in front, `all` those of the ray.
template <class A>
HD A weight_gradient(const Stretch<A>& s, const Moments<A>& before, const Moments<A>& all) {
  return A(2) * (s.weight * s.length / A(3) + s.middle * (A(2) * before.weight - all.weight) +
                 (all.moment - A(2) * before.moment));
}

template <class T>
DistortionInputs<T> typed(const DistortionArguments& a) {
  return {(const T*)a.weights,
          (const T*)a.t_starts,
          (const T*)a.t_ends,
          a.ray_offsets,
          a.n_rays,
          a.near,
          a.per_unit,
          a.linear};
}

Status distortion(DType, const DistortionArguments&,
                  void* losses,  // [R]
                  Stream);
Status distortion_bwd(DType, const DistortionArguments&,
                      const void* grad_losses,  // [R]
                      void* grad_weights,       // [N]
                      Stream);

}  // namespace nerfkit
