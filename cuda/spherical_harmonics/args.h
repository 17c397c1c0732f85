// SPDX-License-Identifier: Apache-2.0
// Real spherical harmonics of degrees 0 to 3.

#pragma once

#include "common/launch.h"

namespace nerfkit {

constexpr int HARMONICS = 16;

// Source: P. Sloan, "Efficient Spherical Harmonic Evaluation", 2013.
template <class P>
HD void harmonics_of(const P* direction /* [3] */, P (&out)[HARMONICS]) {
  const P x = direction[0], y = direction[1], z = direction[2];
  const P xx = x * x, yy = y * y, zz = z * z;
  out[0] = P(0.28209479177387814);
  out[1] = P(-0.4886025119029199) * y;
  out[2] = P(0.4886025119029199) * z;
  out[3] = P(-0.4886025119029199) * x;
  out[4] = P(1.0925484305920792) * x * y;
  out[5] = P(-1.0925484305920792) * y * z;
  out[6] = P(0.9461746957575601) * zz - P(0.31539156525252005);
  out[7] = P(-1.0925484305920792) * x * z;
  out[8] = P(0.5462742152960396) * (xx - yy);
  out[9] = P(0.5900435899266435) * y * (yy - P(3) * xx);
  out[10] = P(2.890611442640554) * x * y * z;
  out[11] = P(0.4570457994644657) * y * (P(1) - P(5) * zz);
  out[12] = P(0.3731763325901154) * z * (P(5) * zz - P(3));
  out[13] = P(0.4570457994644657) * x * (P(1) - P(5) * zz);
  out[14] = P(1.445305721320277) * z * (xx - yy);
  out[15] = P(0.5900435899266435) * x * (P(3) * yy - xx);
}

Status spherical_harmonics(DType from, DType to,
                           const void* directions,    // [R, 3] of dtype `from`, unit length
                           const int64_t* ray_index,  // [n_rows], or null: row n is of ray n
                           void* out,                 // [n_rows, 16] of dtype `to`
                           int64_t n_rows, Stream);

}  // namespace nerfkit
