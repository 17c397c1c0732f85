// SPDX-License-Identifier: Apache-2.0
// Which kernel takes which case; the first that is made for it does.

#include "common/reduce_partials.cuh"
#include "depthwise_conv2d/kernels.cuh"

namespace nerfkit {
namespace {

template <class T, Pass PASS>
int64_t try_launch_special(const Conv2dArrays<T>& a, const Conv2dShape& s, cudaStream_t stream) {
  int64_t parts = 0;
  if constexpr (sizeof(T) == 2) {
    parts =
        s.channels_last ? try_launch_mma_channels<T, PASS>(a, s, stream) : try_launch_mma_planes<T, PASS>(a, s, stream);
  }
  if constexpr (sizeof(T) <= 4)
    if (!parts) parts = try_launch_strips<T, PASS>(a, s, stream);
  return parts;
}

}  // namespace

Status depthwise_conv2d(DType dtype, const void* x, const void* weight, const void* bias, void* out,
                        const Conv2dShape& s, Stream stream) {
  const auto on = (cudaStream_t)stream;
  if (s.batch * s.channels * s.y.out_size * s.x.out_size == 0) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const Conv2dArrays<T> a{(const T*)x, (const T*)weight, (const T*)bias, (T*)out, nullptr, nullptr};
    if (try_launch_special<T, Pass::forward>(a, s, on)) return;
    if (!try_launch_generic_forward(a, s, on)) launch_naive_forward(a, s, on);
  });
  return launched();
}

Status depthwise_conv2d_bwd(DType dtype, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* scratch, const Conv2dShape& s, Stream stream) {
  const auto on = (cudaStream_t)stream;
  if (s.channels == 0 || (is_empty(s) && !grad_weight)) return 0;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    auto* partials = grad_weight ? (acc_t<T>*)scratch : nullptr;
    const Conv2dArrays<T> a{(const T*)grad_out, (const T*)weight, nullptr, (T*)grad_x, (const T*)x, partials};
    int64_t parts = try_launch_special<T, Pass::backward>(a, s, on);
    if (!parts) parts = try_launch_generic_backward(a, s, on);
    if (!parts) launch_naive_backward(a, s, on), parts = 1;
    const int taps = s.y.kernel * s.x.kernel;
    if (partials) launch_reduce_partials<T>(partials, grad_weight, grad_bias, int(parts), s.channels, taps, stream);
  });
  return launched();
}

int64_t conv2d_scratch(DType dtype, const Conv2dShape& s) {
  const int bytes = dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
  int64_t parts = std::max<int64_t>(1, generic_parts(s, bytes));
  if (bytes <= 4) parts = std::max(parts, strips_parts(s, bytes));
  if (bytes == 2) parts = std::max(parts, s.channels_last ? mma_channels_parts(s) : mma_planes_parts(s));
  return parts * s.channels * (s.y.kernel * s.x.kernel + 1);
}

}  // namespace nerfkit
