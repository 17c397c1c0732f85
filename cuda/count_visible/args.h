// SPDX-License-Identifier: Apache-2.0
// How many samples of a ray light reaches: those with less than `limit` of optical thickness before them.

#pragma once

#include "common/launch.h"
#include "composite/args.h"

namespace nerfkit {

struct CountVisibleArguments {
  const void *density, *t_starts, *t_ends;
  const int64_t* ray_offsets;
  int64_t n_rays;
  double limit;
};

template <class T>
struct CountVisibleInputs {
  const T *density, *t_starts, *t_ends;
  const int64_t* ray_offsets;
  int64_t n_rays;
  acc_t<T> limit;
};

template <class T>
CountVisibleInputs<T> typed(const CountVisibleArguments& a) {
  return {(const T*)a.density, (const T*)a.t_starts, (const T*)a.t_ends, a.ray_offsets, a.n_rays, acc_t<T>(a.limit)};
}

template <class T>
HD acc_t<T> thickness_of(const CountVisibleInputs<T>& in, int64_t n) {
  using A = acc_t<T>;
  const A thickness = A(in.density[n]) * (A(in.t_ends[n]) - A(in.t_starts[n]));
  return thickness > CompositeLimits<A>::max_thickness ? CompositeLimits<A>::max_thickness : thickness;
}

Status count_visible(DType, const CountVisibleArguments&, int64_t* counts, Stream);

}  // namespace nerfkit
