// SPDX-License-Identifier: Apache-2.0
// A small network of linear layers with ReLU between them, for many rows.
//
// parameters: for each layer its weight [out, in], row by row, and then its bias [out].

#pragma once

#include "common/launch.h"

namespace nerfkit {

constexpr int MLP_INPUTS = 4;  // tensors that lie side by side in the input, at most
constexpr int MLP_LAYERS = 8;
constexpr int MLP_PARTS = 256, MLP_CPU_PARTS = 32;  // of the gradient of the parameters

struct MlpShape {
  int64_t n_rows;
  int n_inputs, input_width[MLP_INPUTS];
  int n_layers, width[MLP_LAYERS + 1];  // width[0] is the sum of input_width

  int64_t parameters() const {
    int64_t n = 0;
    for (int layer = 0; layer < n_layers; ++layer) n += int64_t(width[layer] + 1) * width[layer + 1];
    return n;
  }
};

struct MlpInputs {
  const void* rows[MLP_INPUTS];  // [N, input_width] each
};
struct MlpInputGradients {
  void* rows[MLP_INPUTS];  // [N, input_width] each, or null
};

Status mlp(DType, const MlpInputs&, const void* parameters, void* out, const MlpShape&, Stream);
// grad_parameters [MLP_PARTS or on the CPU MLP_CPU_PARTS, P], of the accumulation type and zero at the start: the sum
// of its rows is the gradient.
Status mlp_bwd(DType, const void* grad_out, const MlpInputs&, const void* parameters, const MlpInputGradients&,
               void* grad_parameters, const MlpShape&, Stream);

}  // namespace nerfkit
