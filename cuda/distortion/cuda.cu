// SPDX-License-Identifier: Apache-2.0
// Eight lanes per ray, four rays per warp, as in composite: sums over the samples in front are prefix sums over the
// eight lanes, carried from one eight samples to the next.

#include "common/gpu.cuh"
#include "distortion/args.h"

namespace nerfkit {
namespace {

constexpr int LANES = 8;  // of a ray

// The ray of a group of lanes; no samples behind the last ray.
struct RaySpan {
  int64_t ray, begin, end;
  bool is_ray;
};

__device__ __forceinline__ RaySpan span_of_group(const int64_t* ray_offsets,  // [R + 1]
                                                 int64_t n_rays) {
  const int64_t ray = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / LANES;
  const bool is_ray = ray < n_rays;
  return {ray, is_ray ? ray_offsets[ray] : 0, is_ray ? ray_offsets[ray + 1] : 0, is_ray};
}

// Calls f(sample, stretch, moments of the samples in front) for this lane's samples, near to far, and returns the
// moments of all samples of the ray. All lanes of a warp call it together, also those without samples.
template <class T, class F>
__device__ __forceinline__ Moments<acc_t<T>> for_samples(const DistortionInputs<T>& in, const RaySpan& span,
                                                         const F& f) {
  using A = acc_t<T>;
  const int lane = threadIdx.x % LANES;
  const A origin = span.begin < span.end ? stretch_of(in, span.begin, A(0)).middle : A(0);
  Moments<A> before{};  // the samples of earlier rounds
  for (int64_t first = span.begin; __any_sync(FULL_MASK, first < span.end); first += LANES) {
    const int64_t n = first + lane;
    Stretch<A> s{};
    if (n < span.end) s = stretch_of(in, n, origin);
    const A moment = s.weight * s.middle;
    const Moments<A> upto{warp_inclusive_sum(s.weight, lane, LANES), warp_inclusive_sum(moment, lane, LANES)};
    if (n < span.end) f(n, s, Moments<A>{before.weight + upto.weight - s.weight, before.moment + upto.moment - moment});
    before.weight += __shfl_sync(FULL_MASK, upto.weight, LANES - 1, LANES);
    before.moment += __shfl_sync(FULL_MASK, upto.moment, LANES - 1, LANES);
  }
  return before;
}

template <class T>
__global__ void __launch_bounds__(THREADS) distortion_forward(DistortionInputs<T> in,
                                                              T* __restrict__ losses) {  // [R]
  using A = acc_t<T>;
  const RaySpan span = span_of_group(in.ray_offsets, in.n_rays);
  A loss = 0;
  for_samples(in, span, [&](int64_t, const Stretch<A>& s, const Moments<A>& before) { loss += loss_of(s, before); });
  loss = warp_sum(loss, LANES);
  if (span.is_ray && threadIdx.x % LANES == 0) losses[span.ray] = T(loss);
}

template <class T>
__global__ void __launch_bounds__(THREADS) distortion_backward(DistortionInputs<T> in,
                                                               const T* __restrict__ grad_losses,  // [R]
                                                               T* __restrict__ grad_weights) {     // [N]
  using A = acc_t<T>;
  const RaySpan span = span_of_group(in.ray_offsets, in.n_rays);
  const A grad = span.is_ray ? A(grad_losses[span.ray]) : A(0);
  const Moments<A> all = for_samples(in, span, [](int64_t, const Stretch<A>&, const Moments<A>&) {});
  for_samples(in, span, [&](int64_t n, const Stretch<A>& s, const Moments<A>& before) {
    grad_weights[n] = T(grad * weight_gradient(s, before, all));
  });
}

}  // namespace

Status distortion(DType dtype, const DistortionArguments& arguments, void* losses, Stream stream) {
  if (arguments.n_rays == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    distortion_forward<<<blocks_for(arguments.n_rays * LANES), THREADS, 0, (cudaStream_t)stream>>>(typed<T>(arguments),
                                                                                                   (T*)losses);
  });
  return launched();
}

Status distortion_bwd(DType dtype, const DistortionArguments& arguments, const void* grad_losses, void* grad_weights,
                      Stream stream) {
  if (arguments.n_rays == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    distortion_backward<<<blocks_for(arguments.n_rays * LANES), THREADS, 0, (cudaStream_t)stream>>>(
        typed<T>(arguments), (const T*)grad_losses, (T*)grad_weights);
  });
  return launched();
}

}  // namespace nerfkit
