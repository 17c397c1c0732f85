// SPDX-License-Identifier: Apache-2.0
// A thread takes rays one after the other, and their samples near to far.

#include "composite/args.h"

#include "common/simd_cpu.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 64;  // rays per task of a thread, at least

// Calls f(sample, slice) for the samples of a ray, near to far.
template <class T, class F>
void for_samples(const CompositeInputs<T>& in, int64_t ray, const F& f) {
  acc_t<T> before = 0;
  for (int64_t n = in.ray_offsets[ray]; n < in.ray_offsets[ray + 1]; ++n) {
    bool clamped;
    const acc_t<T> thickness = thickness_of(in, n, &clamped);
    f(n, slice_of(in, n, thickness, before, clamped));
    before += thickness;
  }
}

template <class T>
void forward(const CompositeInputs<T>& in, int64_t ray, T* color, T* opacity, T* depth, T* weights) {
  using A = acc_t<T>;
  A rgb[3] = {}, total = 0, depth_sum = 0;
  for_samples(in, ray, [&](int64_t n, const Slice<A>& slice) {
    weights[n] = T(slice.weight);
    total += slice.weight;
    depth_sum += slice.weight * slice.middle;
    for (int i = 0; i < 3; ++i) rgb[i] += slice.weight * A(in.rgb[3 * n + i]);
  });
  for (int i = 0; i < 3; ++i)
    color[3 * ray + i] = T(rgb[i] + (A(1) - total) * A(in.background[in.background_stride * ray + i]));
  opacity[ray] = T(total);
  depth[ray] = T(depth_sum / std::max(total, CompositeLimits<A>::min_opacity));
}

template <class T>
void backward(const CompositeInputs<T>& in, const CompositeGradients<T>& grad, int64_t ray, T* grad_density,
              T* grad_rgb, T* grad_background) {
  using A = acc_t<T>;
  A opacity = 0, depth_sum = 0;
  for_samples(in, ray, [&](int64_t, const Slice<A>& slice) {
    opacity += slice.weight;
    depth_sum += slice.weight * slice.middle;
  });
  const RayGradient<A> of_ray = ray_gradient(in, grad, ray, opacity, depth_sum);
  A behind = 0;  // sum of weight times its gradient over the samples behind
  for_samples(in, ray, [&](int64_t n, const Slice<A>& slice) {
    behind += slice.weight * weight_gradient(in, grad, of_ray, n, slice.middle);
  });
  for_samples(in, ray, [&](int64_t n, const Slice<A>& slice) {
    const A of_weight = weight_gradient(in, grad, of_ray, n, slice.middle);
    behind -= slice.weight * of_weight;
    const A of_thickness = slice.clamped ? A(0) : of_weight * slice.through - behind;
    grad_density[n] = T(of_thickness * (A(in.t_ends[n]) - A(in.t_starts[n])));
    for (int i = 0; i < 3; ++i) grad_rgb[3 * n + i] = T(slice.weight * of_ray.color[i]);
  });
  for (int i = 0; i < 3; ++i) grad_background[3 * ray + i] = T((A(1) - opacity) * of_ray.color[i]);
}

}  // namespace

Status composite(DType dtype, const CompositeArguments& arguments, void* color, void* opacity, void* depth,
                 void* weights, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const auto in = typed<T>(arguments);
    parallel(in.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t ray = begin; ray < end; ++ray) forward(in, ray, (T*)color, (T*)opacity, (T*)depth, (T*)weights);
    });
  });
  return 0;
}

Status composite_bwd(DType dtype, const CompositeArguments& arguments, const CompositeGradients<void>& gradients,
                     void* grad_density, void* grad_rgb, void* grad_background, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const auto in = typed<T>(arguments);
    const auto grad = typed<T>(gradients);
    parallel(in.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t ray = begin; ray < end; ++ray)
        backward(in, grad, ray, (T*)grad_density, (T*)grad_rgb, (T*)grad_background);
    });
  });
  return 0;
}

}  // namespace nerfkit
