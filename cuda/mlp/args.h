// SPDX-License-Identifier: Apache-2.0
// A small network of linear layers with ReLU between them, for N rows.
//
// parameters [P]: for each layer its weight [out, in], row by row, and then its bias [out].

#pragma once

#include "common/launch.h"

namespace nerfkit {

// As in nerfkit/ops/mlp.py.
constexpr int MLP_INPUTS = 4;                       // tensors that are concatenated, at most
constexpr int MLP_LAYERS = 8;                       // at most
constexpr int MLP_PARTS = 256, MLP_CPU_PARTS = 32;  // partial sums of the gradient of the parameters: blocks, tasks

struct MlpShape {
  int64_t n_rows;
  int n_inputs;
  int input_width[MLP_INPUTS];  // [n_inputs]
  int n_layers;
  int width[MLP_LAYERS + 1];  // [n_layers + 1] in front of each layer, and of the output; width[0]: sum of input_width

  int64_t parameters() const {  // P
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

Status mlp(DType, const MlpInputs&,
           const void* parameters,  // [P]
           void* out,               // [N, width[n_layers]]
           const MlpShape&, Stream);
Status mlp_bwd(DType,
               const void* grad_out,  // [N, width[n_layers]]
               const MlpInputs&,
               const void* parameters,  // [P]
               const MlpInputGradients&,
               void* grad_parameters,  // [MLP_PARTS, P], on the CPU [MLP_CPU_PARTS, P], of the accumulation type, zero
                                       // at the start: the sum of its rows is the gradient
               const MlpShape&, Stream);

}  // namespace nerfkit
