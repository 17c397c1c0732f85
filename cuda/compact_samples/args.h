// SPDX-License-Identifier: Apache-2.0
// The first samples of each ray, moved to where ray_offsets has them, and their positions.

#pragma once

#include "common/launch.h"

namespace nerfkit {

struct CompactArguments {
  const void *origins, *directions, *t_starts, *t_ends;
  const int64_t *source_offsets, *ray_offsets;
  int64_t n_rays, n_rows;

  HD int64_t last_ray() const { return n_rays ? n_rays - 1 : 0; }  // of the rows that no ray needs
};

template <class P>
struct CompactedRay {
  P origin[3], direction[3];
  int64_t begin, end;  // rows of the result
  int64_t shift;       // from there to the row of the source
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

Status compact_samples(DType, const CompactArguments&, void* positions, void* t_starts, void* t_ends,
                       int64_t* ray_index, Stream);

}  // namespace nerfkit
