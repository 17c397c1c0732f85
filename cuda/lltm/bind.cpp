// SPDX-License-Identifier: Apache-2.0

#include "lltm/args.h"

#include <array>

#include "common/bind.h"

namespace nerfkit {
namespace {

// Checked, and on a GPU with rows that begin at a multiple of 16 bytes.
Tensor aligned(const char* name, const Tensor& tensor, const Tensor& like, const Shape& shape) {
  const Tensor rows = check_contiguous(name, tensor, like, shape);
  const bool moves = !rows.is_cpu() && reinterpret_cast<uintptr_t>(const_ptr(rows)) % 16;
  return moves ? torch::stable::clone(rows) : rows;
}

// Null without an order. It has to be contiguous, as nothing here would keep a copy alive.
const int64_t* order_data(const std::optional<Tensor>& order, const Tensor& like, int64_t rays) {
  if (!order) return nullptr;
  STD_TORCH_CHECK(order->is_contiguous(), "nerfkit: order must be contiguous");
  return static_cast<const int64_t*>(const_ptr(check_contiguous("order", *order, like, ScalarType::Long, {rays})));
}

// Sizes, and where the rays are.
struct Rays {
  int64_t n, rays, n_input, state;  // N, R, I, H
  Tensor offsets;                   // [R + 1]
  LltmShape shape;

  Rays(const Tensor& input, const Tensor& weight, const Tensor& offsets_in, const std::optional<Tensor>& order)
      : n(input.size(0)),
        rays(offsets_in.numel() - 1),
        n_input(input.size(1)),
        state(weight.dim() ? weight.size(0) / 3 : 0),
        offsets(check_contiguous("ray_offsets", offsets_in, input, ScalarType::Long, {ANY})),
        shape{n, rays, int(n_input), int(state), nerfkit::offsets(offsets, n), order_data(order, input, rays)} {
#ifdef USE_CUDA
    STD_TORCH_CHECK(state <= LARGEST_ON_GPU && n_input <= LARGEST_ON_GPU,
                    "nerfkit: lltm: the GPU's kernels take up to ", LARGEST_ON_GPU, " units and inputs, got ", state,
                    " and ", n_input);
#endif
  }
};

using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

Four forward(const Tensor& input_in, const Tensor& offsets_in, const Tensor& weight_in, const Tensor& bias_in,
             const Tensor& h0_in, const Tensor& c0_in, std::optional<Tensor> order, bool save) {
  const OnDevice device(input_in);
  const Tensor input = aligned("input", input_in, input_in, {ANY, ANY});
  const Rays r(input, weight_in, offsets_in, order);
  const Tensor weight = check_contiguous("weight", weight_in, input, {3 * r.state, r.state + r.n_input});
  const Tensor bias = check_contiguous("bias", bias_in, input, {3 * r.state});
  const Tensor h0 = aligned("h0", h0_in, input, {r.rays, r.state}), c0 = aligned("c0", c0_in, input, {r.rays, r.state});
  const DType dtype = dtype_of(input);
  Tensor h = empty(input, {r.n, r.state}), h_n = empty(input, {r.rays, r.state}), c_n = empty(input, {r.rays, r.state});
  Tensor workspace = empty(input, {save ? workspace_rows(input.is_cpu(), r.n, r.rays) : 0, r.state});
  const LltmForward<void> arguments{
      const_ptr(input), const_ptr(weight), const_ptr(bias),  const_ptr(h0),          const_ptr(c0),
      mutable_ptr(h),   mutable_ptr(h_n),  mutable_ptr(c_n), mutable_ptr(workspace), r.shape};
  check_launch("lltm", lltm(dtype, arguments, device.stream));
  return {h, h_n, c_n, workspace};
}

#ifdef USE_CUDA
Tensor joined_columns(const Tensor& left, const Tensor& right) {
  std::array<StableIValue, 2> stack{torch::stable::detail::from(std::vector<Tensor>{left, right}),
                                    torch::stable::detail::from(int64_t(1))};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::cat", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// A kernel runs the recurrence; gradients of input and weight are the library's products over all samples.
Five backward_by_products(const Tensor& grad_h, const Tensor& grad_h_n, const Tensor& grad_c_n, const Tensor& input,
                          const Tensor& weight, const Tensor& workspace, const Rays& r, bool to_input, bool to_weight,
                          Stream stream) {
  const DType dtype = dtype_of(input);
  Tensor grad_gates = empty(input, {r.n, 3 * r.state});
  Tensor grad_h0 = empty(input, {r.rays, r.state}), grad_c0 = empty(input, {r.rays, r.state});
  Tensor bias_partials = zeros(input, {BIAS_PARTIALS, 3 * r.state}, acc_type(input.scalar_type()));
  const LltmGateBackward<void> arguments{const_ptr(grad_h),          const_ptr(grad_h_n),
                                         const_ptr(grad_c_n),        const_ptr(weight),
                                         const_ptr(workspace),       mutable_ptr(grad_gates),
                                         mutable_ptr(grad_h0),       mutable_ptr(grad_c0),
                                         mutable_ptr(bias_partials), r.shape};
  check_launch("lltm_bwd", lltm_gates_bwd(dtype, arguments, stream));
  namespace stable = torch::stable;
  Tensor grad_input = empty0(input), grad_weight = empty0(input);
  Tensor all_weight = weight, saved = workspace;  // narrow() takes no const tensor
  if (to_input) grad_input = stable::matmul(grad_gates, stable::narrow(all_weight, 1, r.state, r.n_input));
  if (to_weight) {
    const Tensor by_gate = stable::transpose(grad_gates, 0, 1);                     // [3H, N]
    const Tensor before = stable::narrow(saved, 0, (SAVED_ON_GPU - 1) * r.n, r.n);  // [N, H], of SavedGates
    grad_weight = joined_columns(stable::matmul(by_gate, before), stable::matmul(by_gate, input));
  }
  const int64_t rows = 0;  // the dimension that is summed
  const Tensor bias_sum = stable::sum(bias_partials, torch::headeronly::IntHeaderOnlyArrayRef(&rows, 1));
  const Tensor grad_bias = stable::to(bias_sum, input.scalar_type());
  return {grad_input, grad_weight, grad_bias, grad_h0, grad_c0};
}
#endif

Five backward(const Tensor& grad_h_in, const Tensor& grad_h_n_in, const Tensor& grad_c_n_in, const Tensor& input_in,
              const Tensor& offsets_in, const Tensor& weight_in, const Tensor& workspace_in,
              std::optional<Tensor> order, bool to_input, bool to_weight) {
  const OnDevice device(input_in);
  const Tensor input = aligned("input", input_in, input_in, {ANY, ANY});
  const Rays r(input, weight_in, offsets_in, order);
  const Tensor weight = check_contiguous("weight", weight_in, input, {3 * r.state, r.state + r.n_input});
  const int64_t rows = workspace_rows(input.is_cpu(), r.n, r.rays);
  const Tensor workspace = aligned("workspace", workspace_in, input, {rows, r.state});
  const Tensor grad_h = aligned("grad_h", grad_h_in, input, {r.n, r.state});
  const Tensor grad_h_n = aligned("grad_h_n", grad_h_n_in, input, {r.rays, r.state});
  const Tensor grad_c_n = aligned("grad_c_n", grad_c_n_in, input, {r.rays, r.state});
  const DType dtype = dtype_of(input);
  Tensor partials = empty0(input);
#ifdef USE_CUDA
  if (!lltm_is_state16(dtype, r.state, r.n_input))
    return backward_by_products(grad_h, grad_h_n, grad_c_n, input, weight, workspace, r, to_input, to_weight,
                                device.stream);
  partials = empty(input, {STATE16_PARTIALS, 3 * r.state, r.state + r.n_input + 1}, ScalarType::Float);
#endif
  Tensor grad_input = empty(input, {r.n, r.n_input}), grad_bias = empty(input, {3 * r.state});
  Tensor grad_weight = empty(input, {3 * r.state, r.state + r.n_input});
  Tensor grad_h0 = empty(input, {r.rays, r.state}), grad_c0 = empty(input, {r.rays, r.state});
  const LltmBackward<void> arguments{const_ptr(grad_h),
                                     const_ptr(grad_h_n),
                                     const_ptr(grad_c_n),
                                     const_ptr(input),
                                     const_ptr(weight),
                                     const_ptr(workspace),
                                     mutable_ptr(grad_input),
                                     mutable_ptr(grad_weight),
                                     mutable_ptr(grad_bias),
                                     mutable_ptr(grad_h0),
                                     mutable_ptr(grad_c0),
                                     static_cast<float*>(mutable_ptr(partials)),
                                     r.shape};
  check_launch("lltm_bwd", lltm_bwd(dtype, arguments, device.stream));
  return {to_input ? grad_input : empty0(input), to_weight ? grad_weight : empty0(input), grad_bias, grad_h0, grad_c0};
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_lltm", TORCH_BOX(&nerfkit::forward));
  m.impl("_lltm_bwd", TORCH_BOX(&nerfkit::backward));
}
