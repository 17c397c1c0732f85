// SPDX-License-Identifier: Apache-2.0

#include "bind.h"
#include "lltm_cell.h"

namespace nerfkit {
namespace {

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& gates_in, const Tensor& c_in) {
  const OnDevice device(gates_in);
  const Tensor c = checked("c", c_in, gates_in, {ANY, ANY});
  const CellSize size{c.size(0), c.size(1)};
  const Tensor gates = checked("gates", gates_in, gates_in, {size.batch, 3 * size.state});
  Tensor h = empty(c, {size.batch, size.state}), c_new = empty(c, {size.batch, size.state});
  Tensor activated = empty(c, {size.batch, 3 * size.state});
  ran("lltm_cell", lltm_cell(dtype_of(c), data(gates), data(c), out(h), out(c_new), out(activated), size, device.stream));
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

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_lltm_cell", TORCH_BOX(&nerfkit::forward));
  m.impl("_lltm_cell_bwd", TORCH_BOX(&nerfkit::backward));
}
