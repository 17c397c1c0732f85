// SPDX-License-Identifier: Apache-2.0
// What both passes of the LLTM on a CPU share. GROUP rays advance together: a step is one product for all of them, with
// the weight in panels of LANES columns, and then the arithmetic of the units, LANES at a time.

#pragma once

#include <utility>
#include <vector>

#include "common/gemm_cpu.h"
#include "lltm/args.h"
#include "lltm/units_cpu.h"

namespace nerfkit {
namespace {

constexpr int GROUP = 8;
constexpr int BLOCK = 32;  // rows of a few steps, as many as stay in the L1 cache

// Neighbouring rays that one thread takes. The number does not depend on that of threads, nor do then any sums.
struct RayRange {
  int64_t begin, end;
};

constexpr int MIN_SAMPLES = 512;  // of a range: while its longest ray ends, slots are empty

// At most so many ranges.
int64_t range_count(const LltmShape& s, int64_t most) {
  return std::clamp<int64_t>(std::min(s.n_rays / GROUP, s.n_samples / MIN_SAMPLES), 1, most);
}

// f(range, its number)
template <class F>
void for_ranges(const LltmShape& s, int64_t ranges, const F& f) {
  parallel_each(ranges, [&](int64_t i) { f(RayRange{s.n_rays * i / ranges, s.n_rays * (i + 1) / ranges}, i); });
}

constexpr int PREFETCH_RAYS = GROUP / 2;  // how many rays ahead of its first sample a ray is prefetched

struct Slot {
  int64_t ray, sample, end;
};

// The rays of a range in GROUP slots. A slot whose ray ends takes the next one, so that all slots are taken almost to
// the end: the longest come first.
class Slots {
 public:
  int taken = 0;  // the first ones are
  Slot at[GROUP];

  Slots(const LltmShape& s, const RayRange& range, bool backward) : s_(s), backward_(backward) {
    rays_.reserve(range.end - range.begin);
    for (int64_t ray = range.begin; ray < range.end; ++ray)
      rays_.emplace_back(s.ray_offsets[ray] - s.ray_offsets[ray + 1], ray);
    std::sort(rays_.begin(), rays_.end());
  }

  // Calls pass.end(slot) where a ray has ended, pass.begin(slot) where one begins, pass.move(from, to) where none is
  // left.
  template <class Pass>
  HD void refill(Pass& pass) {
    for (int r = 0; r < GROUP;)
      if (r < taken && at[r].sample != at[r].end) {
        ++r;
      } else {
        if (r < taken) pass.end(at[r].ray, r);
        if (next_ < rays_.size()) {
          at[r] = slot_of(rays_[next_++].second);
          taken = std::max(taken, r + 1);
          pass.begin(at[r].ray, r);
          if (next_ + PREFETCH_RAYS < rays_.size()) pass.prefetch_ray(slot_of(rays_[next_ + PREFETCH_RAYS].second));
        } else if (r >= taken) {
          return;
        } else if (r < --taken) {
          at[r] = at[taken];
          pass.move(taken, r);
        }
      }
  }

 private:
  Slot slot_of(int64_t ray) const {
    const int64_t first = s_.ray_offsets[ray], behind = s_.ray_offsets[ray + 1];
    return backward_ ? Slot{ray, behind - 1, first - 1} : Slot{ray, first, behind};
  }

  const LltmShape& s_;
  bool backward_;
  std::vector<std::pair<int64_t, int64_t>> rays_;  // -length, ray
  size_t next_ = 0;
};

template <class Pass>
void run_all(Pass& pass, Slots& slots) {
  for (slots.refill(pass); slots.taken; slots.refill(pass)) pass.step(slots);
}

template <class T, class A>
HD void copy(const T* from, A* to, int n) {
  for (int i = 0; i < n; ++i) to[i] = A(from[i]);
}

// Prefetches array[at], if there is such an element: where the next sample of each of GROUP rays lies,
// the hardware does not predict.
template <class T>
HD void prefetch(const T* array, int64_t at) {
  __builtin_prefetch((const void*)(uintptr_t(array) + at * sizeof(T)));
}
template <class T>
HD void prefetch_to_write(const T* array, int64_t at) {
  __builtin_prefetch((const void*)(uintptr_t(array) + at * sizeof(T)), 1);
}

// All of a matrix's row [n].
template <class T>
HD void prefetch_row(const T* matrix, int64_t row, int n) {
  for (int i = 0; i < n; i += 64 / sizeof(T)) prefetch(matrix, row * n + i);
}
template <class T>
HD void prefetch_row_to_write(const T* matrix, int64_t row, int n) {
  for (int i = 0; i < n; i += 64 / sizeof(T)) prefetch_to_write(matrix, row * n + i);
}

}  // namespace
}  // namespace nerfkit
