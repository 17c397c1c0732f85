// SPDX-License-Identifier: Apache-2.0
// A frame in one kernel: rays through an occupancy grid, a feature grid, two networks and what sees along the ray, to
// colors. R rays, T rows of the table, F features a level, C = L F features, K taps, P parameters of a network.

#pragma once

#include "grid_encode/args.h"
#include "march/args.h"
#include "spherical_harmonics/args.h"

namespace nerfkit {

// As in nerfkit/ops/render_rays.py.
constexpr int RENDER_WIDEST = 64;  // units of a hidden layer, and C, at most: WIDEST
constexpr int RENDER_TAPS = 7;     // K, at most: MOST_TAPS
constexpr int GEOMETRY = 16;       // outputs of the density network: N_GEOMETRY
constexpr int RAY_STATE = 16;      // units of the LLTM: N_STATE
constexpr float MAX_LOG_DENSITY = 30;

struct RenderArguments {    // networks and table are half values
  MarchArguments march;     // float32, without jitter
  GridLevels levels;        // of F = 2 or 4 features
  const void* table;        // [T, F]
  int hidden;               // units of the hidden layers of both networks
  const void* density_net;  // [P] C -> hidden -> GEOMETRY, the first of which is the logarithm of the density
  const void* color_net;    // [P] GEOMETRY, harmonics, encoded (if taps), state (if lltm_weight) -> hidden twice -> 3
  int taps;                 // K, odd; 0 without a convolution
  const void* conv_weight;  // [C, K]
  const void* conv_bias;    // [C]
  const void* lltm_weight;  // [3 RAY_STATE, RAY_STATE + C], or null
  const void* lltm_bias;    // [3 RAY_STATE]
  float density_bias;       // of the logarithm of the density
  const float* threshold;   // [1] opacity of the thinnest sample that is rendered
  float limit;              // of the optical thickness in front of a sample
  const float* background;  // [R, 3], or [3] with a stride of 0
  int64_t background_stride;
  float* color;     // [R, 3]
  float* opacity;   // [R]
  float* depth;     // [R] mean distance
  float* median;    // [R] distance at which half of the light is left, 0 where more is left
  void* workspace;  // [render_workspace_bytes()]
};

int64_t render_workspace_bytes(const int cells[3]);
Status render_rays(const RenderArguments&, Stream);  // needs at least one ray and one cell

}  // namespace nerfkit
