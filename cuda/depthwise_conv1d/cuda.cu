// SPDX-License-Identifier: Apache-2.0
// Launchers: which kernel takes what, and how many blocks it gets.

#include "common/reduce_partials.cuh"
#include "depthwise_conv1d/generic.cuh"
#include "depthwise_conv1d/runs.cuh"

namespace nerfkit {
namespace {

// Blocks along the samples, at most; in the backward pass each writes a partial sum of the weight's gradient.
constexpr int MAX_BLOCKS = 2048, MAX_PARTIALS = 512;

int tiles_of(const Conv1dShape& s, int max_tiles) {
  return int(std::clamp<int64_t>((s.n_samples + TILE - 1) / TILE, 1, max_tiles));
}

// Threads [channels / width, samples], and the blocks along the channels.
struct Block {
  dim3 threads;
  unsigned along_channels;
};

Block block_for(int channels, int width) {
  unsigned x = 1;
  while (x < 64 && int(x) * width < channels) x *= 2;
  return {dim3(x, THREADS / x), unsigned((channels + x * width - 1) / (x * width))};
}

// Calls f with an element, the channels of one access, the kernel's length, 0 for one that is not listed, and whether
// the kernels by runs take it.
template <class F>
void dispatch_conv(DType dtype, const Conv1dShape& s, bool aligned16, const F& f) {
  dispatch(dtype, [&](auto t) {
    using T = decltype(t);
    auto with_kernel = [&](auto width) {
      const std::false_type by_runs;
      switch (s.kernel) {
        case 1:
          return f(t, width, std::integral_constant<int, 1>(), by_runs);
        case 3:
          return f(t, width, std::integral_constant<int, 3>(), by_runs);
        case 5:
          return f(t, width, std::integral_constant<int, 5>(), by_runs);
        case 7:
          return f(t, width, std::integral_constant<int, 7>(), by_runs);
        default:
          return f(t, std::integral_constant<int, 1>(), std::integral_constant<int, 0>(), by_runs);
      }
    };
    constexpr bool DOUBLE = sizeof(T) == 8;
    const std::integral_constant<int, DOUBLE ? 2 : V> width;
    if (s.channels % width.value || !aligned16) return with_kernel(std::integral_constant<int, 1>());
    if constexpr (!DOUBLE)
      if (s.kernel == K && s.dilation == 1) return f(t, width, std::integral_constant<int, K>(), std::true_type());
    with_kernel(width);
  });
}

}  // namespace

Status depthwise_conv1d(DType dtype, const void* x, const void* weight, const void* bias, void* out,
                        const Conv1dShape& s, Stream stream) {
  if (s.n_samples == 0 || s.channels == 0) return 0;
  const auto on = (cudaStream_t)stream;
  const bool aligned16 = aligned(x, 16) && aligned(weight, 16) && aligned(bias, 16) && aligned(out, 16);
  dispatch_conv(dtype, s, aligned16, [&](auto t, auto width, auto kernel, auto by_runs) {
    using T = decltype(t);
    if constexpr (by_runs.value) {
      const RunShape runs = run_shape<T>(s, tiles_of(s, MAX_BLOCKS));
      depthwise_conv1d_runs_forward<T>
          <<<run_grid(runs), THREADS, 0, on>>>((const T*)x, (const T*)weight, (const T*)bias, (T*)out, runs);
    } else {
      const Block block = block_for(s.channels, width.value);
      const dim3 grid(blocks_for(s.n_samples, TILE), block.along_channels);
      depthwise_conv1d_forward<T, width.value, kernel.value>
          <<<grid, block.threads, 0, on>>>((const T*)x, (const T*)weight, (const T*)bias, (T*)out, s);
    }
  });
  return launched();
}

Status depthwise_conv1d_bwd(DType dtype, const void* grad_out, const void* x, const void* weight, void* grad_x,
                            void* grad_weight, void* grad_bias, void* partials_out, const Conv1dShape& s,
                            Stream stream) {
  if (s.channels == 0) return 0;
  const auto on = (cudaStream_t)stream;
  const bool aligned16 = aligned(x, 16) && aligned(weight, 16) && aligned(grad_out, 16) && aligned(grad_x, 16);
  dispatch_conv(dtype, s, aligned16, [&](auto t, auto width, auto kernel, auto by_runs) {
    using T = decltype(t);
    auto* partials = (acc_t<T>*)partials_out;
    int n_partials = s.n_samples == 0 ? 0 : kernel.value > 0 ? tiles_of(s, MAX_PARTIALS) : 1;
    if constexpr (by_runs.value) {
      if (s.n_samples) {
        const RunShape runs = run_shape<T>(s, n_partials);
        const dim3 grid = run_grid(runs);
        n_partials = grid.x;
        depthwise_conv1d_runs_backward<T><<<grid, THREADS, 0, on>>>((const T*)grad_out, (const T*)x, (const T*)weight,
                                                                    (T*)grad_x, grad_weight ? partials : nullptr, runs);
      }
    } else if constexpr (kernel.value > 0) {
      if (s.n_samples) {
        const Block block = block_for(s.channels, width.value);
        const dim3 grid(n_partials, block.along_channels);
        depthwise_conv1d_backward<T, width.value, kernel.value><<<grid, block.threads, 0, on>>>(
            (const T*)grad_out, (const T*)x, (const T*)weight, (T*)grad_x, grad_weight ? partials : nullptr, s);
      }
    } else if (s.n_samples) {
      if (grad_x) {
        const Block block = block_for(s.channels, 1);
        const dim3 grid(blocks_for(s.n_samples, TILE), block.along_channels);
        depthwise_conv1d_forward<T, 1, 0, true>
            <<<grid, block.threads, 0, on>>>((const T*)grad_out, (const T*)weight, (const T*)nullptr, (T*)grad_x, s);
      }
      if (grad_weight)
        depthwise_conv1d_any_grad_weight<<<dim3(s.channels, s.kernel + 1), THREADS, 0, on>>>((const T*)grad_out,
                                                                                             (const T*)x, partials, s);
    }
    if (grad_weight)
      launch_reduce_partials<T>(partials, grad_weight, grad_bias, n_partials, s.channels, s.kernel, stream);
  });
  return launched();
}

int64_t conv1d_partials(const Conv1dShape& s) {
  return int64_t(tiles_of(s, MAX_PARTIALS)) * s.channels * (s.kernel + 1);
}

}  // namespace nerfkit
