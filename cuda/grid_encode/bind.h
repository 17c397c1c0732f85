// SPDX-License-Identifier: Apache-2.0
// For bindings: the levels of a table.

#pragma once

#include "common/bind.h"
#include "grid_encode/args.h"

namespace nerfkit {

inline GridLevels levels_of(const Tensor& table, const std::vector<int64_t>& resolutions, int64_t max_entries) {
  STD_TORCH_CHECK(resolutions.size() <= MAX_LEVELS, "nerfkit: grid_encode has at most ", MAX_LEVELS, " levels");
  STD_TORCH_CHECK(max_entries > 0 && max_entries <= (int64_t(1) << 31), "nerfkit: max_entries must be in 1 .. 2^31");
  GridLevels levels{int(resolutions.size()), int(table.size(1)), uint32_t(max_entries), {}, {}};
  int64_t rows = 0;
  for (int i = 0; i < levels.n_levels; ++i) {
    levels.resolution[i] = int(resolutions[i]);
    levels.first_row[i] = rows;
    rows += entries_of(resolutions[i], max_entries);
  }
  STD_TORCH_CHECK(table.size(0) == rows, "nerfkit: table must have ", std::to_string(rows), " rows");
  return levels;
}

}  // namespace nerfkit
