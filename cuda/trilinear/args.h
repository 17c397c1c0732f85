// SPDX-License-Identifier: Apache-2.0
// out = sum over corners k of w_k(point) feats_k; corner 4 ix + 2 iy + iz. N points, F features.

#pragma once

#include "common/launch.h"

namespace nerfkit {

// Position in the cell, 0 to 1, of a point from -1 to 1.
template <class A>
HD void unit_position(const A* point, A u[3]) {
  for (int axis = 0; axis < 3; ++axis) u[axis] = (point[axis] + A(1)) * A(0.5);
}

template <class A>
HD void corner_weights(const A u[3], A w[8]) {
  const A xy[4] = {(1 - u[0]) * (1 - u[1]), (1 - u[0]) * u[1], u[0] * (1 - u[1]), u[0] * u[1]};
  for (int k = 0; k < 8; ++k) w[k] = xy[k >> 1] * ((k & 1) ? u[2] : 1 - u[2]);
}

// Gradient of u from d[k] = d loss / d w_k.
template <class A>
HD void corner_weights_bwd(const A u[3], const A d[8], A grad_u[3]) {
  const A v[3] = {1 - u[0], 1 - u[1], 1 - u[2]};
  grad_u[0] =
      v[1] * (v[2] * (d[4] - d[0]) + u[2] * (d[5] - d[1])) + u[1] * (v[2] * (d[6] - d[2]) + u[2] * (d[7] - d[3]));
  grad_u[1] =
      v[0] * (v[2] * (d[2] - d[0]) + u[2] * (d[3] - d[1])) + u[0] * (v[2] * (d[6] - d[4]) + u[2] * (d[7] - d[5]));
  grad_u[2] =
      v[0] * (v[1] * (d[1] - d[0]) + u[1] * (d[3] - d[2])) + u[0] * (v[1] * (d[5] - d[4]) + u[1] * (d[7] - d[6]));
}

struct TrilinearSize {
  int64_t n_points, n_features;  // N, F
};

Status trilinear(DType,
                 const void* feats,   // [N, 8, F]
                 const void* points,  // [N, 3] from -1 to 1, of the accumulation type
                 void* out,           // [N, F]
                 TrilinearSize, Stream);
// A null grad_feats or grad_points is not computed.
Status trilinear_bwd(DType,
                     const void* grad_out,  // [N, F]
                     const void* feats,     // [N, 8, F]
                     const void* points,    // [N, 3]
                     void* grad_feats,      // [N, 8, F]
                     void* grad_points,     // [N, 3]
                     TrilinearSize, Stream);

}  // namespace nerfkit
