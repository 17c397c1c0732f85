// SPDX-License-Identifier: Apache-2.0
// The LLTM of many units along few rays: a cluster of blocks walks 16 rays, and all clusters run at once. A block has some
// groups of 16 units and keeps their weights in shared memory, as far as they fit; warps share out the depths of a group's
// products and add up, and one or two of them do the units. What comes of a step is sent to all blocks, whose next products
// wait until all of its bytes are there. There are two buffers of it. A block sends to one of them only after it has got
// everything of the other, which others sent after reading the first.
// The weight is ordered as for lltm_wide.cuh.

#pragma once

#include "cluster.cuh"
#include "lltm_wide.cuh"

namespace nerfkit {
namespace {

constexpr int CLUSTER_WARPS = 8;  // of a block, at most
// Warps of a group, at most: on the way forward more take longer to add up than they save.
template <int PAIRS>
constexpr int GROUP_WARPS = PAIRS == 3 ? 4 : CLUSTER_WARPS;

// How a cluster's blocks share out the groups: what any of them has at most, and the warps of a group.
struct ClusterShare {
  int groups, warps;
};

// A warp's place: its group in the block, which may not be there in a cluster's last one, and its part of the depths.
struct WarpOfCluster {
  int group, part, parts;
  bool real;

  // Of n blocks of 16 depths, begin .. end - 1 are its own.
  __device__ __forceinline__ int begin(int n) const { return n * part / parts; }
  __device__ __forceinline__ int end(int n) const { return n * (part + 1) / parts; }
  // Whether it does the units for row r, g or g + 8, of every lane's two.
  __device__ __forceinline__ bool has_row(int r) const { return parts == 1 || part == r; }
};

__device__ __forceinline__ WarpOfCluster warp_of_cluster(const ClusterShare& share, int first_group, int groups) {
  const int warp = threadIdx.x / 32, group = warp / share.warps;
  return {group, warp % share.warps, share.warps, first_group + group < groups};
}

__device__ __forceinline__ void await_warps_of_group(const WarpOfCluster& w) {
  if (w.parts > 1) wait_for_group(w.group, 32 * w.parts);
}

// Sums of warps, [groups, parts, 2, PAIRS, 32].
template <int PAIRS>
int sums_of(const ClusterShare& share) {
  return share.groups * share.warps * 2 * PAIRS * 32;
}

// Adds up over the warps of a group: row r of `sum` is then complete in the warp that has it.
template <int PAIRS>
__device__ __forceinline__ void add_up(float (&sum)[1][PAIRS][2][4], float4* sums, const WarpOfCluster& w) {
  if (w.parts == 1) return;
  const int lane = threadIdx.x % 32;
  auto place = [&](int part, int r, int pair) -> float4& {
    return sums[(((w.group * w.parts + part) * 2 + r) * PAIRS + pair) * 32 + lane];
  };
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (!w.has_row(r))
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
        const float(&of)[2][4] = sum[0][pair];
        place(w.part, r, pair) = make_float4(of[0][2 * r], of[0][2 * r + 1], of[1][2 * r], of[1][2 * r + 1]);
      }
  await_warps_of_group(w);
#pragma unroll
  for (int r = 0; r < 2; ++r)
    for (int part = 0; w.has_row(r) && part < w.parts; ++part)
      if (part != w.part)
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
          const float4 other = place(part, r, pair);
          float(&of)[2][4] = sum[0][pair];
          of[0][2 * r] += other.x, of[0][2 * r + 1] += other.y, of[1][2 * r] += other.z, of[1][2 * r + 1] += other.w;
        }
}

template <class T>
__device__ __forceinline__ void send_units(T* to, const float (&values)[4], Arrivals& arrivals) {
  if constexpr (sizeof(T) == 2) {
    send_to_all(to, make_uint2(pack<T>(values[0], values[1]), pack<T>(values[2], values[3])), arrivals);
  } else {
    auto word = [&](int k) { return __float_as_uint(values[k]); };
    send_to_all(to, make_uint4(word(0), word(1), word(2), word(3)), arrivals);
  }
}

}  // namespace
}  // namespace nerfkit
