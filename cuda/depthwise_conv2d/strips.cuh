// SPDX-License-Identifier: Apache-2.0
// Square kernels of 3, 5 and 7 that leave height and width as they are: what a strip is, and how the image is cut into
// strips. A lane goes down a strip of a few columns; see NOTES.md for a drawing.

#pragma once

#include "common/async_copy.cuh"
#include "depthwise_conv2d/block_sums.cuh"
#include "depthwise_conv2d/kernels.cuh"

namespace nerfkit {

template <class T>
struct StripArgs : Conv2dArrays<T> {
  int channels, batch, height, width;
  int across;                    // blocks across the channels
  int rows;                      // of a strip
  Conv2dShape::Strides strides;  // of all arrays of images, in elements
};

// What a lane takes, and how many blocks a multiprocessor is to hold.
struct StripShape {
  int columns, channels, resident;
};

// measured: the fastest on an H200 of those whose sums and window fit the registers.
constexpr StripShape strip_shape(int k, int bytes, Layout layout, Pass pass) {
  const bool backward = pass == Pass::backward;
  if (k == 7) return {4, 1, backward ? 2 : 3};
  if (layout == Layout::planes && bytes == 2) return {8, 1, backward ? 3 : 7};
  if (layout == Layout::planes) return {4, 1, k == 5 ? 3 : backward ? 6 : 4};
  if (k == 3) return backward ? StripShape{4, 2, 3} : StripShape{8, 2, 4};
  return backward ? StripShape{6, 1, 3} : StripShape{bytes == 2 ? 8 : 6, 2, 2};
}

// Rows of the window in shared memory at a time, the slots of a ring: a multiple of the kernel's rows, so that indices
// of registers and slots are known when compiled. Few enough that L1, where neighbouring warps share rows, keeps some.
constexpr int ring_depth(int k, int bytes, Layout layout) {
  return k == 3 && !(layout == Layout::channels_last && bytes == 4) ? 6 : k;
}

// Rows of a strip: of the results, and which steps have a row of the window. Step i reads row first - K / 2 + i.
template <int K>
struct StripRows {
  int first, count, skipped, inside;

  template <class T>
  __device__ __forceinline__ StripRows(const StripArgs<T>& a, unsigned line, unsigned tiles_y) {
    const bool real = line / tiles_y < unsigned(a.batch);
    first = int(line % tiles_y) * a.rows;
    count = real ? min(a.rows, a.height - first) : 0;
    skipped = max(0, K / 2 - first);
    inside = real ? min(first + count + K / 2, a.height) - max(0, first - K / 2) : 0;
  }
  __device__ __forceinline__ bool has(int step) const { return unsigned(step - skipped) < unsigned(inside); }
};

// How strips are shared between blocks.
struct StripGrid {
  int64_t across, shared;  // blocks for all channels; blocks for a channel, each with a partial sum
  int rows;                // of a strip
};

// The height of a strip that needs the fewest steps, one wave of blocks after another.
inline StripGrid strip_grid(const Conv2dShape& s, int bytes, Pass pass, int processors) {
  constexpr int MOST_STRIPS = 64, START = 5;  // below each other; steps' worth of waiting when a strip begins
  const int K = s.x.kernel;
  const Layout layout = s.channels_last ? Layout::channels_last : Layout::planes;
  const StripShape shape = strip_shape(K, bytes, layout, pass);
  const int64_t columns = s.batch * blocks_for(s.x.size, shape.columns);
  const int64_t resident = int64_t(processors) * shape.resident;
  StripGrid best{s.channels_last ? blocks_for(s.channels, 32 * shape.channels) : s.channels, 0, 0};
  int64_t least = INT64_MAX;
  for (int strips = 1; strips == 1 || (strips <= MOST_STRIPS && strips * 2 * K <= s.y.size); ++strips) {
    const int rows = (s.y.size + strips - 1) / strips;
    const int64_t shared = blocks_for(columns * blocks_for(s.y.size, rows), s.channels_last ? WARPS_2D : THREADS_2D);
    const int64_t waves = (best.across * shared + resident - 1) / resident;
    const int64_t cost = waves * (rows + K - 1 + START);
    if (cost < least) least = cost, best.shared = shared, best.rows = rows;
  }
  return best;
}

}  // namespace nerfkit
