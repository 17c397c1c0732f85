// SPDX-License-Identifier: Apache-2.0
// How strips that go on over all pictures are cut into pieces, one a block or a warp.

#pragma once

#include <algorithm>
#include <cstdint>

namespace nerfkit {

struct Pieces {
  int64_t rows, blocks, cost;  // rows of a piece; all blocks; steps, one wave of blocks after another
};

// Of `strips` strips of `rows` rows for each group of channels, at most `most` of a strip; a block takes `of_block` of a
// group, and `resident` blocks run at once. Blocks are to come in full waves. steps_of(rows): what a piece takes.
template <class StepsOf>
Pieces cut_strips(int64_t rows, int64_t strips, int64_t groups, int64_t of_block, int64_t resident, int64_t most,
                  const StepsOf& steps_of) {
  constexpr int MOST_WAVES = 16;
  const auto shares = [](int64_t work, int64_t each) { return (work + each - 1) / each; };
  Pieces best{0, 0, INT64_MAX};
  for (int64_t waves = 1; waves <= MOST_WAVES; ++waves) {
    const int64_t wanted = waves * resident * of_block / (groups * strips);
    const int64_t each = shares(rows, std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, most)));
    const int64_t blocks = groups * shares(strips * shares(rows, each), of_block);
    const int64_t cost = shares(blocks, resident) * steps_of(each);
    if (cost < best.cost) best = {each, blocks, cost};
  }
  return best;
}

}  // namespace nerfkit
