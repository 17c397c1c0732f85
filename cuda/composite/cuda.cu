// SPDX-License-Identifier: Apache-2.0
// Eight lanes per ray, four rays per warp: the average ray of training has less than ten samples, and neighbouring
// rays' samples are neighbours in memory, so that a warp's loads are coalesced. Thickness in front of a sample is a
// prefix sum over the eight lanes, carried from one eight samples to the next.

#include "common/gpu.cuh"
#include "composite/args.h"

namespace nerfkit {
namespace {

constexpr int LANES = 8;  // of a ray

// Calls f(is a sample, sample, slice) for this lane's samples, near to far. All lanes of a warp call it together, also
// those without samples.
template <class T, class F>
__device__ __forceinline__ void for_samples(const CompositeInputs<T>& in, int64_t begin, int64_t end, int lane,
                                            const F& f) {
  using A = acc_t<T>;
  A before = 0;
  for (int64_t first = begin; __any_sync(FULL_MASK, first < end); first += LANES) {
    const int64_t n = first + lane;
    const bool real = n < end;
    bool clamped = false;
    const A thickness = real ? thickness_of(in, n, &clamped) : A(0);
    const A upto = warp_inclusive_sum(thickness, lane, LANES);
    Slice<A> slice{};
    if (real) slice = slice_of(in, n, thickness, before + upto - thickness, clamped);
    f(real, n, slice);
    before += __shfl_sync(FULL_MASK, upto, LANES - 1, LANES);
  }
}

template <class T>
__global__ void __launch_bounds__(THREADS) composite_forward(CompositeInputs<T> in,
                                                             T* __restrict__ color,      // [R, 3]
                                                             T* __restrict__ opacity,    // [R]
                                                             T* __restrict__ depth,      // [R]
                                                             T* __restrict__ weights) {  // [N]
  using A = acc_t<T>;
  const int64_t ray = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / LANES;
  const int lane = threadIdx.x % LANES;
  const bool is_ray = ray < in.n_rays;
  const int64_t begin = is_ray ? in.ray_offsets[ray] : 0, end = is_ray ? in.ray_offsets[ray + 1] : 0;
  A rgb[3] = {}, total = 0, depth_sum = 0;
  for_samples(in, begin, end, lane, [&](bool real, int64_t n, const Slice<A>& slice) {
    if (!real) return;
    weights[n] = T(slice.weight);
    total += slice.weight;
    depth_sum += slice.weight * slice.middle;
    for (int i = 0; i < 3; ++i) rgb[i] += slice.weight * A(in.rgb[3 * n + i]);
  });
  total = warp_sum(total, LANES);
  depth_sum = warp_sum(depth_sum, LANES);
  for (int i = 0; i < 3; ++i) rgb[i] = warp_sum(rgb[i], LANES);
  if (!is_ray || lane) return;
  for (int i = 0; i < 3; ++i)
    color[3 * ray + i] = T(rgb[i] + (A(1) - total) * A(in.background[in.background_stride * ray + i]));
  const A floor = CompositeLimits<A>::min_opacity;
  opacity[ray] = T(total);
  depth[ray] = T(depth_sum / (total > floor ? total : floor));
}

template <class T>
__global__ void __launch_bounds__(THREADS) composite_backward(CompositeInputs<T> in, CompositeGradients<T> grad,
                                                              T* __restrict__ grad_density,       // [N]
                                                              T* __restrict__ grad_rgb,           // [N, 3]
                                                              T* __restrict__ grad_background) {  // [R, 3]
  using A = acc_t<T>;
  const int64_t ray = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / LANES;
  const int lane = threadIdx.x % LANES;
  const bool is_ray = ray < in.n_rays;
  const int64_t begin = is_ray ? in.ray_offsets[ray] : 0, end = is_ray ? in.ray_offsets[ray + 1] : 0;
  A opacity = 0, depth_sum = 0;
  for_samples(in, begin, end, lane, [&](bool, int64_t, const Slice<A>& slice) {
    opacity += slice.weight;
    depth_sum += slice.weight * slice.middle;
  });
  opacity = warp_sum(opacity, LANES);
  depth_sum = warp_sum(depth_sum, LANES);
  RayGradient<A> of_ray{};
  if (is_ray) of_ray = ray_gradient(in, grad, ray, opacity, depth_sum);
  A behind = 0;  // sum of weight times its gradient over the samples behind
  for_samples(in, begin, end, lane, [&](bool real, int64_t n, const Slice<A>& slice) {
    if (real) behind += slice.weight * weight_gradient(in, grad, of_ray, n, slice.middle);
  });
  behind = warp_sum(behind, LANES);
  for_samples(in, begin, end, lane, [&](bool real, int64_t n, const Slice<A>& slice) {
    const A of_weight = real ? weight_gradient(in, grad, of_ray, n, slice.middle) : A(0);
    const A upto = warp_inclusive_sum(slice.weight * of_weight, lane, LANES);
    if (real) {
      const A of_thickness = slice.clamped ? A(0) : of_weight * slice.through - (behind - upto);
      grad_density[n] = T(of_thickness * (A(in.t_ends[n]) - A(in.t_starts[n])));
      for (int i = 0; i < 3; ++i) grad_rgb[3 * n + i] = T(slice.weight * of_ray.color[i]);
    }
    behind -= __shfl_sync(FULL_MASK, upto, LANES - 1, LANES);
  });
  if (!is_ray || lane) return;
  for (int i = 0; i < 3; ++i) grad_background[3 * ray + i] = T((A(1) - opacity) * of_ray.color[i]);
}

}  // namespace

Status composite(DType dtype, const CompositeArguments& arguments, void* color, void* opacity, void* depth,
                 void* weights, Stream stream) {
  if (arguments.n_rays == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    composite_forward<<<blocks_for(arguments.n_rays * LANES), THREADS, 0, (cudaStream_t)stream>>>(
        typed<T>(arguments), (T*)color, (T*)opacity, (T*)depth, (T*)weights);
  });
  return launched();
}

Status composite_bwd(DType dtype, const CompositeArguments& arguments, const CompositeGradients<void>& gradients,
                     void* grad_density, void* grad_rgb, void* grad_background, Stream stream) {
  if (arguments.n_rays == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const auto grad = typed<T>(gradients);
    composite_backward<<<blocks_for(arguments.n_rays * LANES), THREADS, 0, (cudaStream_t)stream>>>(
        typed<T>(arguments), grad, (T*)grad_density, (T*)grad_rgb, (T*)grad_background);
  });
  return launched();
}

}  // namespace nerfkit
