// SPDX-License-Identifier: Apache-2.0
// Eight lanes per ray, as in composite/cuda.cu. A warp ends when none of its four rays has light left.

#include "common/gpu.cuh"
#include "count_visible/args.h"

namespace nerfkit {
namespace {

constexpr int LANES = 8;  // of a ray

template <class T>
__global__ void __launch_bounds__(THREADS)
    count_visible_rays(CountVisibleInputs<T> in, int64_t* __restrict__ counts) {  // [R]
  using A = acc_t<T>;
  const int64_t ray = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / LANES;
  const int lane = threadIdx.x % LANES;
  const bool is_ray = ray < in.n_rays;
  const int64_t begin = is_ray ? in.ray_offsets[ray] : 0, end = is_ray ? in.ray_offsets[ray + 1] : 0;
  A before = 0;  // thickness in front of the eight samples
  int lit = 0;
  for (int64_t first = begin; __any_sync(FULL_MASK, first < end && before < in.limit); first += LANES) {
    const int64_t n = first + lane;
    const bool real = n < end && before < in.limit;
    const A upto = warp_inclusive_sum(real ? thickness_of(in, n) : A(0), lane, LANES);
    // Not upto minus this lane's own thickness: that cancels where it is large, and is NaN where it is infinite or NaN.
    const A lower = __shfl_up_sync(FULL_MASK, upto, 1, LANES);
    lit += real && before + (lane ? lower : A(0)) < in.limit;
    before += __shfl_sync(FULL_MASK, upto, LANES - 1, LANES);
  }
  lit = warp_sum(lit, LANES);
  if (is_ray && lane == 0) counts[ray] = lit;
}

}  // namespace

Status count_visible(DType dtype, const CountVisibleArguments& arguments, int64_t* counts, Stream stream) {
  if (arguments.n_rays == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    count_visible_rays<<<blocks_for(arguments.n_rays * LANES), THREADS, 0, (cudaStream_t)stream>>>(typed<T>(arguments),
                                                                                                   counts);
  });
  return launched();
}

}  // namespace nerfkit
