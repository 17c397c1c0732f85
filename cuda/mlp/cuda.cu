// SPDX-License-Identifier: Apache-2.0
// Launchers: which networks have a kernel, and how many blocks it gets.

#include "mlp/backward.cuh"
#include "mlp/forward.cuh"

namespace nerfkit {
namespace {

// Calls f with the element type, the width of the hidden layers and their number, as constants.
// False where there is no kernel; `why_no_kernel` of nerfkit/ops/mlp.py says the same in words.
template <class F>
bool with_kernel(DType dtype, const MlpShape& s, const F& f) {
  const int hidden = s.n_layers - 1;
  const auto with_depth = [&](auto element, auto width) {
    hidden == 2 ? f(element, width, std::integral_constant<int, 2>())
                : f(element, width, std::integral_constant<int, 1>());
  };
  const auto with_width = [&](auto element) {
    switch (s.width[1]) {
      case 16:
        return with_depth(element, std::integral_constant<int, 16>());
      case 32:
        return with_depth(element, std::integral_constant<int, 32>());
      case 64:
        return with_depth(element, std::integral_constant<int, 64>());
    }
  };
  bool fits = (hidden == 1 || hidden == 2) && (s.width[1] == 16 || s.width[1] == 32 || s.width[1] == 64);
  fits = fits && (hidden == 1 || s.width[2] == s.width[1]) && s.width[0] <= WIDEST && s.width[s.n_layers] <= OUT;
  for (int k = 0; k < s.n_inputs; ++k) fits = fits && s.input_width[k] % 16 == 0;
  if (!fits || current_gpu().major < TENSOR_CORES_MAJOR) return false;
  if (dtype == DType::f16)
    with_width(__half());
  else if (dtype == DType::bf16)
    with_width(__nv_bfloat16());
  else
    return false;
  return true;
}

template <class T>
MlpArrays<T> arrays_of(const MlpInputs& inputs, const void* parameters, const MlpShape& s) {
  MlpArrays<T> a{};
  for (int k = 0; k < s.n_inputs; ++k) a.inputs[k] = (const T*)inputs.rows[k], a.input_width[k] = s.input_width[k];
  a.parameters = (const T*)parameters;
  a.n_rows = s.n_rows, a.n_in = s.width[0], a.n_out = s.width[s.n_layers];
  return a;
}

// As many blocks as are resident at once, at most one for every ROWS rows and max_blocks.
template <class Kernel, class Arrays>
Status launch(Kernel kernel, const Arrays& arrays, size_t shared, int max_blocks, Stream stream) {
  const Gpu gpu = current_gpu();
  allow_shared(kernel, gpu);
  int resident = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, 32 * WARPS, shared);
  const int64_t tiles = (arrays.n_rows + ROWS - 1) / ROWS;
  const int64_t blocks =
      std::min<int64_t>(std::min<int64_t>(tiles, max_blocks), int64_t(std::max(resident, 1)) * gpu.processors);
  kernel<<<unsigned(blocks), 32 * WARPS, shared, (cudaStream_t)stream>>>(arrays);
  return launched();
}

}  // namespace

Status mlp(DType dtype, const MlpInputs& inputs, const void* parameters, void* out, const MlpShape& s, Stream stream) {
  if (s.n_rows == 0) return 0;
  Status status = 0;
  const bool done = with_kernel(dtype, s, [&](auto element, auto width, auto depth) {
    using T = decltype(element);
    constexpr int H = width.value, HIDDEN = depth.value;
    MlpArrays<T> a = arrays_of<T>(inputs, parameters, s);
    a.out = (T*)out;
    status = launch(mlp_forward<T, H, HIDDEN>, a, Weights<T, H, HIDDEN>::bytes(a.n_in), 1 << 30, stream);
  });
  return done ? status : Status(cudaErrorInvalidValue);
}

Status mlp_bwd(DType dtype, const void* grad_out, const MlpInputs& inputs, const void* parameters,
               const MlpInputGradients& grad_inputs, void* grad_parameters, const MlpShape& s, Stream stream) {
  if (s.n_rows == 0) return 0;
  Status status = 0;
  const bool done = with_kernel(dtype, s, [&](auto element, auto width, auto depth) {
    using T = decltype(element);
    constexpr int H = width.value, HIDDEN = depth.value;
    MlpArrays<T> a = arrays_of<T>(inputs, parameters, s);
    a.grad_out = (const T*)grad_out;
    a.grad_parameters = (float*)grad_parameters;
    for (int k = 0; k < s.n_inputs; ++k) a.grad_inputs[k] = (T*)grad_inputs.rows[k];
    status = launch(mlp_backward<T, H, HIDDEN>, a, backward_bytes<T, H, HIDDEN>(a.n_in), MLP_PARTS, stream);
  });
  return done ? status : Status(cudaErrorInvalidValue);
}

}  // namespace nerfkit
