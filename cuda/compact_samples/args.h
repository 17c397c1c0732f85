// SPDX-License-Identifier: Apache-2.0
// The first samples of each ray, moved to where ray_offsets has them, and their positions. R rays, M samples of the
// source, n_rows of the result.

#pragma once

#include "common/launch.h"

namespace nerfkit {

struct CompactArguments {
  const void* origins;            // [R, 3]
  const void* directions;         // [R, 3]
  const void* t_starts;           // [M]
  const void* t_ends;             // [M]
  const int64_t* source_offsets;  // [R + 1] rows of each ray in t_starts and t_ends
  const int64_t* ray_offsets;     // [R + 1] rows of each ray in the result
  int64_t n_rays, n_rows;

  HD int64_t last_ray() const { return n_rays ? n_rays - 1 : 0; }  // ray_index of padding rows
};

template <class P>
struct CompactedRay {
  P origin[3], direction[3];
  int64_t begin, end;  // rows of the result
  int64_t shift;       // row of the source - row of the result
};

template <class P>
HD CompactedRay<P> compacted_ray(const CompactArguments& in, int64_t ray) {
  CompactedRay<P> out;
  for (int i = 0; i < 3; ++i) {
    out.origin[i] = ((const P*)in.origins)[3 * ray + i];
    out.direction[i] = ((const P*)in.directions)[3 * ray + i];
  }
  out.begin = in.ray_offsets[ray];
  out.end = in.ray_offsets[ray + 1];
  out.shift = in.source_offsets[ray] - out.begin;
  return out;
}

Status compact_samples(DType, const CompactArguments&,
                       void* positions,     // [n_rows, 3]
                       void* t_starts,      // [n_rows]
                       void* t_ends,        // [n_rows]
                       int64_t* ray_index,  // [n_rows]
                       Stream);

}  // namespace nerfkit
