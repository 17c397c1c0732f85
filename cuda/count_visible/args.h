// SPDX-License-Identifier: Apache-2.0
// How many samples of a ray light reaches: those with less than `limit` of optical thickness in front of them.
// N samples, R rays.

#pragma once

#include "common/launch.h"
#include "composite/args.h"

namespace nerfkit {

// T is void for the launchers, the element type for the kernels.
template <class T, class Limit = acc_t<T>>
struct CountVisibleInputs {
  const T* density;            // [N]
  const T* t_starts;           // [N]
  const T* t_ends;             // [N]
  const int64_t* ray_offsets;  // [R + 1]
  int64_t n_rays;
  Limit limit;  // optical thickness
};
using CountVisibleArguments = CountVisibleInputs<void, double>;

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

Status count_visible(DType, const CountVisibleArguments&, int64_t* counts /* [R] */, Stream);

}  // namespace nerfkit
