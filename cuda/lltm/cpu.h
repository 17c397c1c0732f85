// SPDX-License-Identifier: Apache-2.0
// What both passes of the LLTM on a CPU share. GROUP rays walk together: a step is one product for all of them, with
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
constexpr int BLOCK = 32;  // rows of a few steps, which fill the first cache

// Neighbouring rays that one thread walks. The number does not depend on that of threads, nor do then any sums.
struct Part {
  int64_t begin, end;
};

constexpr int LEAST_SAMPLES = 512;  // of a part: while its longest ray ends, slots are empty

// At most so many parts.
int64_t parts_of(const LltmShape& s, int64_t most) {
  return std::clamp<int64_t>(std::min(s.n_rays / GROUP, s.n_samples / LEAST_SAMPLES), 1, most);
}

// f(part, its number)
template <class F>
void for_parts(const LltmShape& s, int64_t parts, const F& f) {
  parallel_each(parts, [&](int64_t i) { f(Part{s.n_rays * i / parts, s.n_rays * (i + 1) / parts}, i); });
}

constexpr int AHEAD = GROUP / 2;  // rays in front of which its first sample is asked for

struct Slot {
  int64_t ray, place, end;
};

// The rays of a part in GROUP slots. One that ends makes room for the next, so that all slots are taken almost to the
// end: the longest come first.
class Slots {
 public:
  int taken = 0;  // the first ones are
  Slot at[GROUP];

  Slots(const LltmShape& s, const Part& part, bool backward) : s_(s), backward_(backward) {
    rays_.reserve(part.end - part.begin);
    for (int64_t ray = part.begin; ray < part.end; ++ray)
      rays_.emplace_back(s.ray_offsets[ray] - s.ray_offsets[ray + 1], ray);
    std::sort(rays_.begin(), rays_.end());
  }

  // Calls walk.end(slot) where a ray has ended, walk.begin(slot) where one begins, walk.move(from, to) where none is
  // left.
  template <class W>
  HD void refill(W& walk) {
    for (int r = 0; r < GROUP;)
      if (r < taken && at[r].place != at[r].end) {
        ++r;
      } else {
        if (r < taken) walk.end(at[r].ray, r);
        if (next_ < rays_.size()) {
          at[r] = slot_of(rays_[next_++].second);
          taken = std::max(taken, r + 1);
          walk.begin(at[r].ray, r);
          if (next_ + AHEAD < rays_.size()) walk.foresee(slot_of(rays_[next_ + AHEAD].second));
        } else if (r >= taken) {
          return;
        } else if (r < --taken) {
          at[r] = at[taken];
          walk.move(taken, r);
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

template <class W>
void walk_all(W& walk, Slots& slots) {
  for (slots.refill(walk); slots.taken; slots.refill(walk)) walk.step(slots);
}

template <class T, class A>
HD void copy(const T* from, A* to, int n) {
  for (int i = 0; i < n; ++i) to[i] = A(from[i]);
}

// Have array[at] brought to the cache, if there is such an element: where the next sample of each of GROUP rays lies,
// the processor does not foresee.
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
