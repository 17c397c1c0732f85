// SPDX-License-Identifier: Apache-2.0
// The ray of a lane: intervals in occupied cells, which are those of the op march, bit for bit, and what has been seen.

#pragma once

#include "composite/args.h"
#include "march/growing_steps.cuh"
#include "march/wide.cuh"
#include "render_rays/args.h"

namespace nerfkit {
namespace {

constexpr int WINDOW = 8;                            // intervals that are looked up at a time
constexpr int FIRST_SPAN = 16, MAX_SPAN = 64;        // intervals of a probe with t_edges: at first, at most
constexpr float PROBED = float(BLOCK / 2) * 0.999f;  // cells around a probe that it covers

// Where a lane is on its ray.
struct Marcher {
  float o[3], d[3];       // in cells of the box; with t_edges in half sides of the box
  float start, leave;     // distances of the first middle and of the end
  float farthest, speed;  // with t_edges instead of these, as in ContractedRay
  float moment;           // with t_edges, as in ContractedRay
  int next, base;         // intervals: the first that is not looked up; the first of the window
  int near_until;         // up to this one, cells have to be looked up
  int span;               // intervals that a probe of the fine grid passes; 0: it covers none
  int wide_span;          // the same of the wide grid
  int fine_steps;   // with t_edges, where one of the wide grid has WIDE times `span`: probes of the fine grid before it
  unsigned window;  // occupied intervals of the WINDOW from `base` on
  unsigned ahead;   // the same of those in front of `next`, for when the window is empty
  bool at_end;      // of the ray

  __device__ __forceinline__ ContractedRay<float> contracted(const MarchGrid& grid) const {
    const int most = max(grid.cells[0], max(grid.cells[1], grid.cells[2]));
    return {{o[0], o[1], o[2]}, {d[0], d[1], d[2]}, 0.f, farthest, speed, moment, float(most) * 0.25f, true};
  }
  __device__ __forceinline__ TileRay<float> in_box() const {
    TileRay<float> ray;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) ray.o[axis] = o[axis], ray.d[axis] = d[axis];
    ray.start = start, ray.leave = leave;
    return ray;
  }
};

// Distance at which interval k of t_edges begins.
__device__ __forceinline__ float edge(const MarchArguments& in, int k) { return __ldg((const float*)in.t_edges + k); }
__device__ __forceinline__ Steps<float> steps_of(const MarchArguments& in) {
  return {float(in.limits.step), float(in.limits.step / 2)};
}

// Begins ray `index`; false if it has no samples.
__device__ __forceinline__ bool begin(Marcher& m, const MarchArguments& in, int index) {
  m.next = m.near_until = 0, m.window = m.ahead = 0, m.at_end = false;
  if (in.t_edges) {
    const ContractedRay<float> ray = contracted_ray<float>(in, index);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) m.o[axis] = ray.o[axis], m.d[axis] = ray.d[axis];
    m.farthest = ray.farthest, m.speed = ray.speed, m.moment = ray.moment;
    m.span = FIRST_SPAN, m.fine_steps = 0;
    return ray.marches;
  }
  const int64_t at = 3 * int64_t(index);
  const GridRay<float> ray = grid_ray((const float*)in.origins + at, (const float*)in.directions + at,
                                      (const float*)in.box, 0.f, false, in.grid, in.limits);
  constexpr float EPSILON = 1.1920929e-7f;
  const float farthest = fabsf(ray.start) + fabsf(ray.leave) + WIDE * MAX_SPAN * ray.step;
  float reach = 0, error = 0;  // cells along the worst axis: from one middle to the next; of rounding
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    m.o[axis] = ray.o[axis], m.d[axis] = ray.d[axis];
    reach = fmaxf(reach, fabsf(ray.d[axis]) * ray.step);
    error = fmaxf(error, (fabsf(ray.o[axis]) + fabsf(ray.d[axis]) * farthest) * (16 * EPSILON));
  }
  m.start = ray.start, m.leave = ray.leave, m.moment = 0;
  const auto span_of = [&](float probed) {
    const float passed = 2 * (probed - error) / reach;
    return passed > 0 ? 1 + int(fminf(passed, float(WIDE * MAX_SPAN))) : 0;
  };
  m.span = span_of(PROBED), m.wide_span = span_of(WIDE * PROBED);
  return ray.start < ray.leave && !ray.too_long();
}

// The steps of a lane are of two kinds, which a warp does by turns, as most of its lanes need. One passes the intervals
// of a probe that finds nothing, or else says up to where cells have to be looked up.
__device__ __forceinline__ void approach(Marcher& m, const MarchArguments& in, const Coarse& coarse) {
  if (in.t_edges) {
    m.at_end = m.next >= in.n_intervals;
    if (m.at_end) return;
    const bool is_wide = m.fine_steps == 0;
    const int end = min(m.next + (is_wide ? WIDE : 1) * m.span, in.n_intervals);
    const float first = (edge(in, m.next) + edge(in, m.next + 1)) * 0.5f,
                last = (edge(in, end - 1) + edge(in, end)) * 0.5f;
    const Segment<float> part = segment(m.contracted(in.grid), in.grid, first, last);
    const float probed = (is_wide ? WIDE : 1) * PROBED;
    if (!(part.reach <= probed)) {  // the probe covers too little: fewer intervals
      if (m.span > WINDOW)
        m.span /= 2;
      else if (is_wide)
        m.fine_steps = WIDE;
      else
        m.near_until = end;
    } else if (is_wide ? probe<WIDE>(coarse, part.at) : probe<1>(coarse, part.at)) {
      if (!is_wide) m.near_until = end;
      m.fine_steps = WIDE;
    } else {
      m.next = end;
      if (part.reach <= probed / 2) m.span = min(2 * m.span, MAX_SPAN);
      if (!is_wide) --m.fine_steps;
    }
    return;
  }
  const Steps<float> steps = steps_of(in);
  m.at_end = !(m.start + float(m.next) * steps.step < m.leave);
  if (m.at_end) return;
  const auto finds = [&](auto wide, int span) {  // at the middle of the next ones
    const float t = m.start + (float(m.next) + 0.5f * float(span - 1)) * steps.step;
    const float at[3] = {m.o[0] + m.d[0] * t, m.o[1] + m.d[1] * t, m.o[2] + m.d[2] * t};
    return span == 0 || probe<wide.value>(coarse, at);
  };
  const bool wide = finds(std::integral_constant<int, WIDE>(), m.wide_span),
             fine = finds(std::integral_constant<int, 1>(), m.span);
  if (wide && fine)
    m.near_until = m.next + max(m.span, 1);
  else
    m.next += wide ? m.span : m.wide_span;
}

// The other looks up the next WINDOW intervals, a few together.
__device__ __forceinline__ void look_up(Marcher& m, const MarchArguments& in) {
  constexpr int TOGETHER = WINDOW / 2;
  const uint8_t* occupancy = reinterpret_cast<const uint8_t*>(in.grid.occupancy);
  m.ahead = 0;
#pragma unroll 1
  for (int first = 0; first < WINDOW; first += TOGETHER) {
    Interval at[TOGETHER];
    if (in.t_edges) {
      const ContractedRay<float> ray = m.contracted(in.grid);
      float edges[TOGETHER + 1];
#pragma unroll
      for (int i = 0; i <= TOGETHER; ++i) edges[i] = edge(in, min(m.next + i, in.n_intervals));
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) {
        at[i] = interval_at(ray, in.grid, (edges[i] + edges[i + 1]) * 0.5f);
        at[i].valid = at[i].valid && m.next + i < in.n_intervals;
      }
    } else {
      const TileRay<float> ray = m.in_box();
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) at[i] = interval<false>(ray, in.grid, steps_of(in), float(m.next + i));
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i)
      m.ahead |= unsigned(__ldg(occupancy + at[i].cell) != 0 && at[i].valid) << (first + i);
    m.next += TOGETHER;
  }
}

// Where interval k of a ray begins and ends; start as in Marcher.
__device__ __forceinline__ float2 ends_of(const MarchArguments& in, float start, int k) {
  if (in.t_edges) return make_float2(edge(in, k), edge(in, k + 1));
  const Steps<float> steps = steps_of(in);
  const float t = start + float(k) * steps.step;
  return make_float2(t - steps.half, t + steps.half);
}

// The middle of an interval, 0 to 1 in the feature grid: the operations of nerfkit/model, each rounded for itself.
__device__ __forceinline__ void unit_position(const MarchArguments& in, int ray, float2 ends, float (&unit)[3]) {
  const float *origin = (const float*)in.origins + 3 * int64_t(ray),
              *direction = (const float*)in.directions + 3 * int64_t(ray), *box = (const float*)in.box;
  const float middle = (ends.x + ends.y) / 2;
  float largest = 1;
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    const float position = origin[axis] + direction[axis] * middle, low = box[axis], high = box[3 + axis];
    if (in.t_edges) {
      constexpr float FARTHEST = 1.2676506002282294e30f;  // 2^100, of nerfkit/ops/march.py
      const float u = (position - (low + high) / 2) / ((high - low) / 2);
      unit[axis] = fminf(fmaxf(u, -FARTHEST), FARTHEST);
      largest = fmaxf(largest, fabsf(unit[axis]));
    } else {
      unit[axis] = (position - low) / (high - low);
    }
  }
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    if (in.t_edges) unit[axis] = (product(unit[axis] / largest, 2 - 1 / largest) + 2) / 4;
    unit[axis] = fminf(fmaxf(unit[axis], 0.f), 1.f);  // as grid_encode does
  }
}

// What a ray has seen. Light is stopped by every sample, colors are of those that are kept.
struct Seen {
  float stopped;                   // optical thickness of all samples so far
  float thickness;                 // of those that are kept
  float opacity, depth, color[3];  // sums over their weights
  float median;                    // distance at which half of the light was left; 0 as long as more is

  // Adds a sample of a density that is kept, and returns its weight.
  __device__ __forceinline__ float add(float density, float2 ends) {
    const float tau = density * (ends.y - ends.x), most = CompositeLimits<float>::max_thickness;
    const float stops = tau > most ? most : tau, alpha = -expm1f(-stops), weight = expf(-thickness) * alpha;
    const float before = 1 - opacity, after = before - weight;
    if (before > 0.5f && after <= 0.5f)
      median = ends.x + logf(before * 2) / logf(before / fmaxf(after, 1e-12f)) * (ends.y - ends.x);
    thickness += stops;
    opacity += weight;
    depth += weight * ((ends.x + ends.y) / 2);
    return weight;
  }
};

__device__ __forceinline__ void write_pixel(const RenderArguments& a, int ray, const Seen& seen) {
  const float* background = a.background + a.background_stride * ray;
#pragma unroll
  for (int i = 0; i < 3; ++i) a.color[3 * int64_t(ray) + i] = seen.color[i] + (1 - seen.opacity) * background[i];
  const float floor = CompositeLimits<float>::min_opacity;
  a.opacity[ray] = seen.opacity;
  a.depth[ray] = seen.depth / (seen.opacity > floor ? seen.opacity : floor);
  a.median[ray] = seen.median;
}

}  // namespace
}  // namespace nerfkit
