// SPDX-License-Identifier: Apache-2.0

#include "common/bind.h"
#include "lltm_cell/args.h"

namespace nerfkit {
namespace {

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& gates_in, const Tensor& c_in) {
  const OnDevice device(gates_in);
  const Tensor c = checked("c", c_in, gates_in, {ANY, ANY});
  const CellSize size{c.size(0), c.size(1)};
  const Tensor gates = checked("gates", gates_in, gates_in, {size.batch, 3 * size.state});
  Tensor h = empty(c, {size.batch, size.state}), c_new = empty(c, {size.batch, size.state});
  Tensor activated = empty(c, {size.batch, 3 * size.state});
  ran("lltm_cell",
      lltm_cell(dtype_of(c), data(gates), data(c), out(h), out(c_new), out(activated), size, device.stream));
  return {h, c_new, activated};
}

std::tuple<Tensor, Tensor> backward(const Tensor& grad_h_in, const Tensor& grad_c_in, const Tensor& gates_in,
                                    const Tensor& c_new_in) {
  const OnDevice device(gates_in);
  const Tensor c_new = checked("c_new", c_new_in, gates_in, {ANY, ANY});
  const CellSize size{c_new.size(0), c_new.size(1)};
  const Tensor gates = checked("gates", gates_in, c_new, {size.batch, 3 * size.state});
  const Tensor grad_h = checked("grad_h", grad_h_in, c_new, {size.batch, size.state});
  const Tensor grad_c_new = checked("grad_c", grad_c_in, c_new, {size.batch, size.state});
  Tensor grad_gates = empty(c_new, {size.batch, 3 * size.state}), grad_c = empty(c_new, {size.batch, size.state});
  ran("lltm_cell_bwd", lltm_cell_bwd(dtype_of(c_new), data(grad_h), data(grad_c_new), data(gates), data(c_new),
                                     out(grad_gates), out(grad_c), size, device.stream));
  return {grad_gates, grad_c};
}

#ifdef USE_CUDA
using Five = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

std::tuple<Tensor, Tensor, Tensor> small_forward(const Tensor& input_in, const Tensor& h_in, const Tensor& c_in,
                                                 const Tensor& weight_in, const Tensor& bias_in) {
  const OnDevice device(input_in);
  const Tensor input = checked("input", input_in, input_in, {ANY, ANY});
  const Tensor h = checked("h", h_in, input, {input.size(0), ANY});
  const int64_t batch = input.size(0), state = h.size(1), width = state + input.size(1);
  const Tensor c = checked("c", c_in, input, {batch, state});
  const Tensor weight = checked("weight", weight_in, input, {3 * state, width});
  const Tensor bias = checked("bias", bias_in, input, {3 * state});
  Tensor h_new = empty(input, {batch, state}), c_new = empty(input, {batch, state}),
         gates = empty(input, {batch, 3 * state});
  ran("lltm_cell",
      lltm_cell_small(dtype_of(input), data(input), data(h), data(c), data(weight), data(bias), out(h_new), out(c_new),
                      out(gates), {int(batch), int(state), int(width - state)}, device.stream));
  return {h_new, c_new, gates};
}

Five small_backward(const Tensor& grad_h_in, const Tensor& grad_c_in, const Tensor& input_in, const Tensor& h_in,
                    const Tensor& weight_in, const Tensor& gates_in, const Tensor& c_new_in) {
  const OnDevice device(input_in);
  const Tensor input = checked("input", input_in, input_in, {ANY, ANY});
  const Tensor h = checked("h", h_in, input, {input.size(0), ANY});
  const int64_t batch = input.size(0), state = h.size(1), width = state + input.size(1);
  const Tensor weight = checked("weight", weight_in, input, {3 * state, width});
  const Tensor gates = checked("gates", gates_in, input, {batch, 3 * state});
  const Tensor c_new = checked("c_new", c_new_in, input, {batch, state});
  const Tensor grad_h_new = checked("grad_h", grad_h_in, input, {batch, state});
  const Tensor grad_c_new = checked("grad_c", grad_c_in, input, {batch, state});
  Tensor grad_input = empty(input, shape_of(input)), grad_h = empty(input, {batch, state}),
         grad_c = empty(input, {batch, state});
  Tensor grad_weight = empty(input, {3 * state, width}), grad_bias = empty(input, {3 * state});
  ran("lltm_cell_bwd",
      lltm_cell_small_bwd(dtype_of(input), data(grad_h_new), data(grad_c_new), data(input), data(h), data(weight),
                          data(gates), data(c_new), out(grad_input), out(grad_h), out(grad_c), out(grad_weight),
                          out(grad_bias), {int(batch), int(state), int(width - state)}, device.stream));
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
