// SPDX-License-Identifier: Apache-2.0
// A thread takes rays one after the other, and their samples near to far.

#include "distortion/args.h"

#include "common/simd_cpu.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 64;  // rays per task of a thread, at least

// Calls f(sample, stretch, moments of the samples in front), near to far, and returns the moments of all.
template <class T, class F>
Moments<acc_t<T>> for_samples(const DistortionInputs<T>& in, int64_t ray, const F& f) {
  using A = acc_t<T>;
  const int64_t begin = in.ray_offsets[ray], end = in.ray_offsets[ray + 1];
  const A origin = begin < end ? stretch_of(in, begin, A(0)).middle : A(0);
  Moments<A> before{};
  for (int64_t n = begin; n < end; ++n) {
    const Stretch<A> s = stretch_of(in, n, origin);
    f(n, s, before);
    before = {before.weight + s.weight, before.moment + s.weight * s.middle};
  }
  return before;
}

}  // namespace

Status distortion(DType dtype, const DistortionArguments& arguments, void* losses, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    using A = acc_t<T>;
    const auto in = typed<T>(arguments);
    parallel(in.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t ray = begin; ray < end; ++ray) {
        A loss = 0;
        for_samples(in, ray,
                    [&](int64_t, const Stretch<A>& s, const Moments<A>& before) { loss += loss_of(s, before); });
        ((T*)losses)[ray] = T(loss);
      }
    });
  });
  return 0;
}

Status distortion_bwd(DType dtype, const DistortionArguments& arguments, const void* grad_losses, void* grad_weights,
                      Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    using A = acc_t<T>;
    const auto in = typed<T>(arguments);
    parallel(in.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
      for (int64_t ray = begin; ray < end; ++ray) {
        const A grad = A(((const T*)grad_losses)[ray]);
        const Moments<A> all = for_samples(in, ray, [](int64_t, const Stretch<A>&, const Moments<A>&) {});
        for_samples(in, ray, [&](int64_t n, const Stretch<A>& s, const Moments<A>& before) {
          ((T*)grad_weights)[n] = T(grad * weight_gradient(s, before, all));
        });
      }
    });
  });
  return 0;
}

}  // namespace nerfkit
