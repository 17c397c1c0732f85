// SPDX-License-Identifier: Apache-2.0

#include "common/bind.h"
#include "lltm_cell/args.h"

namespace nerfkit {
namespace {

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& gates_in, const Tensor& c_in) {
  const OnDevice device(gates_in);
  const Tensor c = check_contiguous("c", c_in, gates_in, {ANY, ANY});
  const int64_t batch = c.size(0), state = c.size(1);
  const Tensor gates = check_contiguous("gates", gates_in, gates_in, {batch, 3 * state});
  Tensor h = empty(c, {batch, state}), c_new = empty(c, {batch, state});
  Tensor activated = empty(c, {batch, 3 * state});
  const CellForward<void> arguments{const_ptr(gates),       const_ptr(c), mutable_ptr(h), mutable_ptr(c_new),
                                    mutable_ptr(activated), batch,        state};
  check_launch("lltm_cell", lltm_cell(dtype_of(c), arguments, device.stream));
  return {h, c_new, activated};
}

std::tuple<Tensor, Tensor> backward(const Tensor& grad_h_in, const Tensor& grad_c_in, const Tensor& gates_in,
                                    const Tensor& c_new_in) {
  const OnDevice device(gates_in);
  const Tensor c_new = check_contiguous("c_new", c_new_in, gates_in, {ANY, ANY});
  const int64_t batch = c_new.size(0), state = c_new.size(1);
  const Tensor gates = check_contiguous("gates", gates_in, c_new, {batch, 3 * state});
  const Tensor grad_h = check_contiguous("grad_h", grad_h_in, c_new, {batch, state});
  const Tensor grad_c_new = check_contiguous("grad_c", grad_c_in, c_new, {batch, state});
  Tensor grad_gates = empty(c_new, {batch, 3 * state}), grad_c = empty(c_new, {batch, state});
  const CellBackward<void> arguments{const_ptr(grad_h),
                                     const_ptr(grad_c_new),
                                     const_ptr(gates),
                                     const_ptr(c_new),
                                     mutable_ptr(grad_gates),
                                     mutable_ptr(grad_c),
                                     batch,
                                     state};
  check_launch("lltm_cell_bwd", lltm_cell_bwd(dtype_of(c_new), arguments, device.stream));
  return {grad_gates, grad_c};
}

#ifdef USE_CUDA
using Five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

std::tuple<Tensor, Tensor, Tensor> small_forward(const Tensor& input_in, const Tensor& h_in, const Tensor& c_in,
                                                 const Tensor& weight_in, const Tensor& bias_in) {
  const OnDevice device(input_in);
  const Tensor input = check_contiguous("input", input_in, input_in, {ANY, ANY});
  const Tensor h = check_contiguous("h", h_in, input, {input.size(0), ANY});
  const int64_t batch = input.size(0), state = h.size(1), width = state + input.size(1);
  const Tensor c = check_contiguous("c", c_in, input, {batch, state});
  const Tensor weight = check_contiguous("weight", weight_in, input, {3 * state, width});
  const Tensor bias = check_contiguous("bias", bias_in, input, {3 * state});
  Tensor h_new = empty(input, {batch, state}), c_new = empty(input, {batch, state}),
         gates = empty(input, {batch, 3 * state});
  const CellSmallForward<void> arguments{const_ptr(input), const_ptr(h),       const_ptr(c),       const_ptr(weight),
                                         const_ptr(bias),  mutable_ptr(h_new), mutable_ptr(c_new), mutable_ptr(gates),
                                         int(batch),       int(state),         int(width - state)};
  check_launch("lltm_cell", lltm_cell_small(dtype_of(input), arguments, device.stream));
  return {h_new, c_new, gates};
}

Five small_backward(const Tensor& grad_h_in, const Tensor& grad_c_in, const Tensor& input_in, const Tensor& h_in,
                    const Tensor& weight_in, const Tensor& gates_in, const Tensor& c_new_in) {
  const OnDevice device(input_in);
  const Tensor input = check_contiguous("input", input_in, input_in, {ANY, ANY});
  const Tensor h = check_contiguous("h", h_in, input, {input.size(0), ANY});
  const int64_t batch = input.size(0), state = h.size(1), width = state + input.size(1);
  const Tensor weight = check_contiguous("weight", weight_in, input, {3 * state, width});
  const Tensor gates = check_contiguous("gates", gates_in, input, {batch, 3 * state});
  const Tensor c_new = check_contiguous("c_new", c_new_in, input, {batch, state});
  const Tensor grad_h_new = check_contiguous("grad_h", grad_h_in, input, {batch, state});
  const Tensor grad_c_new = check_contiguous("grad_c", grad_c_in, input, {batch, state});
  Tensor grad_input = empty(input, shape_of(input)), grad_h = empty(input, {batch, state}),
         grad_c = empty(input, {batch, state});
  Tensor grad_weight = empty(input, {3 * state, width}), grad_bias = empty(input, {3 * state});
  const CellSmallBackward<void> arguments{const_ptr(grad_h_new),
                                          const_ptr(grad_c_new),
                                          const_ptr(input),
                                          const_ptr(h),
                                          const_ptr(weight),
                                          const_ptr(gates),
                                          const_ptr(c_new),
                                          mutable_ptr(grad_input),
                                          mutable_ptr(grad_h),
                                          mutable_ptr(grad_c),
                                          mutable_ptr(grad_weight),
                                          mutable_ptr(grad_bias),
                                          int(batch),
                                          int(state),
                                          int(width - state)};
  check_launch("lltm_cell_bwd", lltm_cell_small_bwd(dtype_of(input), arguments, device.stream));
  return {grad_input, grad_h, grad_c, grad_weight, grad_bias};
}
#endif

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_lltm_cell", TORCH_BOX(&nerfkit::forward));
  m.impl("_lltm_cell_bwd", TORCH_BOX(&nerfkit::backward));
#ifdef USE_CUDA
  m.impl("_lltm_cell_small", TORCH_BOX(&nerfkit::small_forward));
  m.impl("_lltm_cell_small_bwd", TORCH_BOX(&nerfkit::small_backward));
#endif
}
