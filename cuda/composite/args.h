// SPDX-License-Identifier: Apache-2.0
// Volume rendering: weight w = T (1 - exp(-tau)) with tau = density delta and T = exp(-sum of the tau before).

#pragma once

#include <cmath>

#include "common/launch.h"

namespace nerfkit {

template <class T>
struct CompositeInputs {
  const T *density, *rgb, *t_starts, *t_ends, *background;
  const int64_t* ray_offsets;
  int64_t n_rays;
  int64_t background_stride;  // 3, or 0 where all rays share one
};

template <class T>
struct CompositeGradients {
  const T *color, *opacity, *depth, *weights;
};

template <class A>
struct CompositeLimits {
  static constexpr A max_thickness = A(50);   // MAX_THICKNESS and
  static constexpr A min_opacity = A(1e-10);  // MIN_OPACITY of nerfkit/ops/composite.py
};

// A sample, as the ray sees it.
template <class A>
struct Slice {
  A thickness, through, weight, middle;  // `through`: what light passes the slice
  bool clamped;
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

// What the sums of a ray say about the gradient of each weight: base + per_middle * middle.
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

template <class T>
HD acc_t<T> weight_gradient(const CompositeInputs<T>& in, const CompositeGradients<T>& grad,
                            const RayGradient<acc_t<T>>& ray, int64_t n, acc_t<T> middle) {
  using A = acc_t<T>;
  A sum = A(grad.weights[n]) + ray.opacity + ray.depth_per_middle * middle;
  for (int i = 0; i < 3; ++i) sum += ray.color[i] * (A(in.rgb[3 * n + i]) - ray.background[i]);
  return sum;
}

struct CompositeArguments {
  const void *density, *rgb, *t_starts, *t_ends, *background;
  const int64_t* ray_offsets;
  int64_t n_rays, background_stride;
};

template <class T>
CompositeInputs<T> typed(const CompositeArguments& a) {
  return {(const T*)a.density, (const T*)a.rgb, (const T*)a.t_starts, (const T*)a.t_ends, (const T*)a.background,
          a.ray_offsets,       a.n_rays,        a.background_stride};
}

Status composite(DType, const CompositeArguments&, void* color, void* opacity, void* depth, void* weights, Stream);
// grad_background is [R, 3] also where all rays share one.
Status composite_bwd(DType, const CompositeArguments&, const void* grad_color, const void* grad_opacity,
                     const void* grad_depth, const void* grad_weights, void* grad_density, void* grad_rgb,
                     void* grad_background, Stream);

}  // namespace nerfkit
