// SPDX-License-Identifier: Apache-2.0
// How strips that go on over all pictures are cut into pieces, one a block or a warp.

#pragma once

#include <algorithm>
#include <cstdint>

namespace nerfkit {

struct Pieces {
  int64_t rows, blocks, cost;  // rows of a piece; all blocks; steps, one wave of blocks after another
  int64_t paired_rows = 0;     // of a piece of the strip that two pictures share, if there is one
};

constexpr int MOST_WAVES = 16;

inline int64_t shares(int64_t work, int64_t each) { return (work + each - 1) / each; }

// Of `strips` strips of `rows` rows for each group of channels, at most `most` of a strip; a block takes `of_block` of
// a group, and `resident` blocks run at once. Blocks are to come in full waves. steps_of(rows): what a piece takes.
template <class StepsOf>
Pieces cut_strips(int64_t rows, int64_t strips, int64_t groups, int64_t of_block, int64_t resident, int64_t most,
                  const StepsOf& steps_of) {
  Pieces best{0, 0, INT64_MAX};
  most = std::max<int64_t>(1, most);
  for (int64_t waves = 1, wanted = 0; waves <= MOST_WAVES && wanted < most; ++waves) {
    wanted = waves * resident * of_block / (groups * strips);
    const int64_t each = shares(rows, std::clamp<int64_t>(wanted, 1, most));
    const int64_t blocks = groups * shares(strips * shares(rows, each), of_block);
    const int64_t cost = shares(blocks, resident) * steps_of(each);
    if (cost < best.cost) best = {each, blocks, cost};
  }
  return best;
}

// The same with a block a piece, where pictures share one more strip, two by two, which has half the rows. A step of it
// copies more and takes longer: its pieces have fewer rows.
template <class StepsOf>
Pieces cut_paired_strips(int64_t rows, int64_t strips, int64_t groups, int64_t resident, int64_t most,
                         const StepsOf& steps_of) {
  const auto longer = [](int64_t steps) { return steps + steps / 8; };
  const int64_t half = rows / 2, of_shared = longer(half), all = strips * rows + of_shared;
  Pieces best{0, 0, INT64_MAX};
  most = std::max(strips + 1, strips * most + most / 2);
  for (int64_t waves = 1, wanted = 0; waves <= MOST_WAVES && wanted < most; ++waves) {
    wanted = std::clamp(waves * resident / groups, strips + 1, most);
    const int64_t shared = std::max<int64_t>(1, (wanted * of_shared + all / 2) / all);
    const int64_t of_strip = strips ? std::max<int64_t>(1, (wanted - shared) / strips) : 0;
    const int64_t each = strips ? shares(rows, of_strip) : 0, pieces = strips ? strips * shares(rows, each) : 0;
    const int64_t paired = shares(half, std::max<int64_t>(1, wanted - strips * of_strip));
    const int64_t blocks = groups * (pieces + shares(half, paired));
    const int64_t steps = std::max(strips ? steps_of(each) : 0, longer(steps_of(paired)));
    const int64_t cost = shares(blocks, resident) * steps;
    if (cost < best.cost) best = {each, blocks, cost, paired};
  }
  return best;
}

}  // namespace nerfkit
