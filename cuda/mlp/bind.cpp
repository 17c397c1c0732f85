// SPDX-License-Identifier: Apache-2.0

#include "mlp/args.h"

#include "common/bind.h"

namespace nerfkit {
namespace {

struct Inputs {
  std::vector<Tensor> rows;  // [N, input_width] each
  MlpShape shape{};

  Inputs(const std::vector<Tensor>& inputs, const std::vector<int64_t>& widths) {
    STD_TORCH_CHECK(
        inputs.size() >= 1 && inputs.size() <= MLP_INPUTS && widths.size() >= 2 && widths.size() <= MLP_LAYERS + 1,
        "nerfkit: mlp takes 1 to ", MLP_INPUTS, " inputs and 1 to ", MLP_LAYERS, " layers");
    int64_t total = 0;
    for (const Tensor& input : inputs) {
      const Tensor row = check_contiguous("input", input, inputs[0], {inputs[0].size(0), ANY});
      // The GPU's kernel takes two half values at once.
      rows.push_back(reinterpret_cast<uintptr_t>(const_ptr(row)) % 4 ? torch::stable::clone(row) : row);
      shape.input_width[shape.n_inputs++] = int(input.size(1));
      total += input.size(1);
    }
    STD_TORCH_CHECK(total == widths[0], "nerfkit: the inputs must be ", widths[0], " wide, got ", total);
    shape.n_rows = inputs[0].size(0);
    shape.n_layers = int(widths.size()) - 1;
    for (size_t i = 0; i < widths.size(); ++i) shape.width[i] = int(widths[i]);
  }

  MlpInputs pointers() const {
    MlpInputs out{};
    for (size_t i = 0; i < rows.size(); ++i) out.rows[i] = const_ptr(rows[i]);
    return out;
  }
};

Tensor forward(const std::vector<Tensor>& inputs, const Tensor& parameters_in, const std::vector<int64_t>& widths) {
  const Inputs in(inputs, widths);
  const OnDevice device(in.rows[0]);
  const Tensor parameters = check_contiguous("parameters", parameters_in, in.rows[0], {in.shape.parameters()});
  Tensor result = empty(in.rows[0], {in.shape.n_rows, widths.back()});
  check_launch("mlp", mlp(dtype_of(parameters), in.pointers(), const_ptr(parameters), mutable_ptr(result), in.shape,
                          device.stream));
  return result;
}

std::tuple<std::vector<Tensor>, Tensor> backward(const Tensor& grad_out_in, const std::vector<Tensor>& inputs,
                                                 const Tensor& parameters_in, const std::vector<int64_t>& widths,
                                                 const std::vector<int64_t>& wanted) {
  const Inputs in(inputs, widths);
  const OnDevice device(in.rows[0]);
  const Tensor parameters = check_contiguous("parameters", parameters_in, in.rows[0], {in.shape.parameters()});
  const Tensor grad_out = check_contiguous("grad_out", grad_out_in, in.rows[0], {in.shape.n_rows, widths.back()});
  STD_TORCH_CHECK(wanted.size() == inputs.size(), "nerfkit: mlp needs a flag for each input");
  std::vector<Tensor> grad_inputs;
  MlpInputGradients pointers{};
  for (size_t i = 0; i < inputs.size(); ++i) {
    grad_inputs.push_back(wanted[i] ? empty(in.rows[i], shape_of(in.rows[i])) : empty0(in.rows[i]));
    if (wanted[i]) pointers.rows[i] = mutable_ptr(grad_inputs[i]);
  }
  Tensor grad_parameters = zeros(parameters, {parameters.is_cpu() ? MLP_CPU_PARTS : MLP_PARTS, in.shape.parameters()},
                                 acc_type(parameters.scalar_type()));
  check_launch("mlp_bwd", mlp_bwd(dtype_of(parameters), const_ptr(grad_out), in.pointers(), const_ptr(parameters),
                                  pointers, mutable_ptr(grad_parameters), in.shape, device.stream));
  return {grad_inputs, grad_parameters};
}

}  // namespace
}  // namespace nerfkit

STABLE_TORCH_LIBRARY_IMPL(nerfkit, NERFKIT_DEVICE, m) {
  m.impl("_mlp", TORCH_BOX(&nerfkit::forward));
  m.impl("_mlp_bwd", TORCH_BOX(&nerfkit::backward));
}
