// SPDX-License-Identifier: Apache-2.0
// Volume rendering of one sample and of one ray: w = T (1 - exp(-tau)), tau = density (t_end - t_start),
// T = exp(-sum of the tau in front). N samples, R rays.

#pragma once

#include <cmath>

#include "common/launch.h"

namespace nerfkit {

// T is void for the launchers, the element type for the kernels.
template <class T>
struct CompositeInputs {
  const T* density;            // [N]
  const T* rgb;                // [N, 3]
  const T* t_starts;           // [N]
  const T* t_ends;             // [N]
  const T* background;         // [R, 3], or [3]
  const int64_t* ray_offsets;  // [R + 1]
  int64_t n_rays;
  int64_t background_stride;  // 3, or 0 where all rays share one
};
using CompositeArguments = CompositeInputs<void>;

// Of the outputs.
template <class T>
struct CompositeGradients {
  const T* color;    // [R, 3]
  const T* opacity;  // [R]
  const T* depth;    // [R]
  const T* weights;  // [N]
};

template <class A>
struct CompositeLimits {
  static constexpr A max_thickness = A(50);   // MAX_THICKNESS and
  static constexpr A min_opacity = A(1e-10);  // MIN_OPACITY of nerfkit/ops/composite.py
};

// A sample in front of which `before` of optical thickness lies.
template <class A>
struct Slice {
  A thickness;   // tau, at most max_thickness
  A through;     // T exp(-tau): transmittance behind the sample, the derivative of weight by thickness
  A weight;      // T (1 - exp(-tau))
  A middle;      // distance of the middle of the interval
  bool clamped;  // tau was larger: its gradient is 0
};

template <class T>
HD acc_t<T> thickness_of(const CompositeInputs<T>& in, int64_t n, bool* clamped) {
  using A = acc_t<T>;
  const A thickness = A(in.density[n]) * (A(in.t_ends[n]) - A(in.t_starts[n]));
  *clamped = thickness > CompositeLimits<A>::max_thickness;
  return *clamped ? CompositeLimits<A>::max_thickness : thickness;
}

template <class T>
HD Slice<acc_t<T>> slice_of(const CompositeInputs<T>& in, int64_t n, acc_t<T> thickness, acc_t<T> before,
                            bool clamped) {
  using A = acc_t<T>;
  using namespace std;
  const A transmittance = exp(-before);
  const A alpha = -expm1(-thickness);
  return {thickness, transmittance * (A(1) - alpha), transmittance * alpha,
          (A(in.t_starts[n]) + A(in.t_ends[n])) / A(2), clamped};
}

// What the gradient of each weight of a ray has in common: opacity + depth_per_middle * middle + color . (rgb -
// background).
template <class A>
struct RayGradient {
  A color[3], background[3], opacity, depth_per_middle;
};

template <class T>
HD RayGradient<acc_t<T>> ray_gradient(const CompositeInputs<T>& in, const CompositeGradients<T>& grad, int64_t ray,
                                      acc_t<T> opacity, acc_t<T> depth_sum) {
  using A = acc_t<T>;
  RayGradient<A> out;
  const A floor = CompositeLimits<A>::min_opacity, divisor = opacity > floor ? opacity : floor;
  const A grad_depth = A(grad.depth[ray]);
  for (int i = 0; i < 3; ++i) {
    out.color[i] = A(grad.color[3 * ray + i]);
    out.background[i] = A(in.background[in.background_stride * ray + i]);
  }
  out.opacity = A(grad.opacity[ray]) - (opacity >= floor ? grad_depth * (depth_sum / divisor) / divisor : A(0));
  out.depth_per_middle = grad_depth / divisor;
  return out;
}

// d loss / d weight of sample n.
template <class T>
HD acc_t<T> weight_gradient(const CompositeInputs<T>& in, const CompositeGradients<T>& grad,
                            const RayGradient<acc_t<T>>& ray, int64_t n, acc_t<T> middle) {
  using A = acc_t<T>;
  A sum = A(grad.weights[n]) + ray.opacity + ray.depth_per_middle * middle;
  for (int i = 0; i < 3; ++i) sum += ray.color[i] * (A(in.rgb[3 * n + i]) - ray.background[i]);
  return sum;
}

template <class T>
CompositeInputs<T> typed(const CompositeArguments& a) {
  return {(const T*)a.density, (const T*)a.rgb, (const T*)a.t_starts, (const T*)a.t_ends, (const T*)a.background,
          a.ray_offsets,       a.n_rays,        a.background_stride};
}
template <class T>
CompositeGradients<T> typed(const CompositeGradients<void>& a) {
  return {(const T*)a.color, (const T*)a.opacity, (const T*)a.depth, (const T*)a.weights};
}

Status composite(DType, const CompositeArguments&,
                 void* color,    // [R, 3]
                 void* opacity,  // [R]
                 void* depth,    // [R]
                 void* weights,  // [N]
                 Stream);
Status composite_bwd(DType, const CompositeArguments&, const CompositeGradients<void>&,
                     void* grad_density,     // [N]
                     void* grad_rgb,         // [N, 3]
                     void* grad_background,  // [R, 3] also where all rays share one
                     Stream);

}  // namespace nerfkit
