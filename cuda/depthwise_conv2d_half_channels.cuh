// SPDX-License-Identifier: Apache-2.0
// Half types on tensor cores, channels last, for kernels of 7 x 7: the products of depthwise_conv2d_half_planes.cuh. A
// block walks down a strip of 64 columns of some channels, two rows a step: 8 blocks of 8 columns each, which are the 16
// rows of a product. A warp has two channels, backward with another that sums the weight's gradient of the same two. Copies
// to shared memory are words of two channels of a pixel, a plane for each pair of channels; on the way into registers the
// two come apart. Results are put together in shared memory and written, a step
// later, by the warps that have them.

#pragma once

#include "depthwise_conv2d_half_channels_sums.cuh"

namespace nerfkit {

// Distances along the columns of a window are int.
constexpr int64_t MOST_HALF_CHANNELS = INT32_MAX / (STRIP + 2 * MARGIN);

// Of some steps, the rows of the window and, backward, of x.
template <int CH, int STEPS, bool BACKWARD>
struct alignas(16) ChannelsSlot {
  PairRows<CH, STRIP + 2 * MARGIN, 2 * STEPS> window;                             // from column x0 - MARGIN on
  PairRows<BACKWARD ? CH : 2, BACKWARD ? STRIP : 4, BACKWARD ? 2 * STEPS : 1> x;  // from column x0 on
};

// Blocks that a multiprocessor is to hold at a time: 16 warps.
constexpr int resident_channels(int channels, bool backward) { return 16 / (channels / 2 * (backward ? 2 : 1)); }

template <int CH, int DEPTH, int STEPS, bool BACKWARD>
struct ChannelsShared {
  static constexpr int PAIRS = CH / 2, THREADS = 32 * PAIRS * (BACKWARD ? 2 : 1);
  ChannelsSlot<CH, STEPS, BACKWARD> slot[DEPTH];
  PairRows<CH, STRIP, 2 * STEPS> results[2];
};

template <int CH>
struct HalfChannelsStrip {
  int64_t base;  // of the picture at the group's first channel
  int part, x0, first, last, channel;

  // The groups of one strip are neighbours.
  template <class T>
  __device__ __forceinline__ HalfChannelsStrip(const HalfConv<T>& a, int unit) {
    const int groups = (a.channels + CH - 1) / CH;
    part = unit / groups;
    const int picture = part / (a.strips * a.pieces), piece = part % (a.strips * a.pieces);
    channel = unit % groups * CH;
    base = picture * a.strides.batch + channel;
    x0 = piece % a.strips * STRIP, first = piece / a.strips * a.rows, last = min(first + a.rows, a.height);
  }
};

// What a thread copies of some rows of a strip: every APART-th column of one row, of one pair of channels.
template <class T, int COLUMNS, int ROWS, int PAIRS, int THREADS>
struct PairCopies {
  static constexpr int APART = THREADS / PAIRS / ROWS, TURNS = (COLUMNS + APART - 1) / APART;
  static constexpr bool WHOLE = COLUMNS % APART == 0;  // or only threads with LAST in `turns` have a last turn
  static constexpr unsigned LAST = 1u << 31;
  static_assert(APART * PAIRS * ROWS == THREADS);
  const T* from;
  unsigned turns, place;  // a bit for each column that is inside the picture; where the first goes, in words

  // From picture row y0 and column x0 on; columns less than `unused` from either end are left out.
  template <int CH>
  __device__ __forceinline__ PairCopies(const HalfConv<T>& a, const HalfChannelsStrip<CH>& at, const T* picture, int y0,
                                        int x0, int unused)
      : turns(0) {
    const int pair = threadIdx.x % PAIRS, column = threadIdx.x / PAIRS % APART;
#pragma unroll
    for (int k = 0; k < TURNS; ++k) {
      const int i = column + k * APART;
      if (i >= unused && i < COLUMNS - unused && unsigned(x0 + i) < unsigned(a.width)) turns |= 1u << k;
    }
    if (at.channel + 2 * pair >= a.channels) turns = 0;
    if (column < COLUMNS % APART) turns |= LAST;
    place = (row() * PAIRS + pair) * (COLUMNS + 4) + column;
    from = picture + at.base + 2 * pair + (y0 + row()) * a.strides.row + (x0 + column) * a.strides.column;
  }

  static __device__ __forceinline__ int row() { return threadIdx.x / PAIRS / APART; }

  // This thread's row, or zeros. Then the one ROWS below.
  __device__ __forceinline__ void copy(unsigned* to, bool inside, const HalfConv<T>& a) {
    const unsigned real = inside ? turns : 0;
#pragma unroll
    for (int k = 0; k < TURNS; ++k)
      if (WHOLE || k < TURNS - 1 || turns & LAST)
        copy_async_or_zeros<4>(to + place + k * APART, from + k * APART * a.channels, real & 1u << k);
    from += ROWS * a.strides.row;
  }
};

// Between global and shared memory: all threads of a block copy, the warps that have results write them.
template <class T, int K, int CH, int DEPTH, int STEPS, bool BACKWARD>
struct ChannelsMover {
  using Shared = ChannelsShared<CH, DEPTH, STEPS, BACKWARD>;
  static constexpr int WINDOW = STRIP + 2 * MARGIN, CHUNKS = CH / 8;
  PairCopies<T, WINDOW, 2 * STEPS, CH / 2, Shared::THREADS> window;
  PairCopies<T, STRIP, 2 * STEPS, CH / 2, Shared::THREADS> x;
  int from, last;  // picture row that this thread copies for the window; the end of x
  T* to;           // 8 channels of a pixel
  int y, end;      // their row of the results; 0 if they are outside

  __device__ __forceinline__ ChannelsMover(const HalfConv<T>& a, const HalfChannelsStrip<CH>& at)
      : window(a, at, a.in, at.first - K / 2, at.x0 - MARGIN, MARGIN - K / 2), x(a, at, a.x, at.first, at.x0, 0),
        from(at.first - K / 2 + window.row()), last(at.last) {
    const int chunk = threadIdx.x % CHUNKS, column = threadIdx.x / CHUNKS % STRIP, row = threadIdx.x / CHUNKS / STRIP;
    const bool inside = at.x0 + column < a.width && at.channel + 8 * chunk < a.channels;
    y = row - (K - 1), end = a.out && inside ? at.last - at.first : 0;
    to = a.out + at.base + (at.first + y) * a.strides.row + (at.x0 + column) * a.strides.column + 8 * chunk;
  }

  // In the slots' order, as `write` is.
  __device__ __forceinline__ void fetch(Shared& shared, int index, const HalfConv<T>& a, bool with_x) {
    auto& slot = shared.slot[index % DEPTH];
    window.copy(&slot.window.word[0][0][0], unsigned(from) < unsigned(a.height), a);
    if (BACKWARD && with_x) x.copy(&slot.x.word[0][0][0], from + K / 2 < last, a);
    from += 2 * STEPS;
  }

  // The rows that a slot's steps completed.
  __device__ __forceinline__ void write(const Shared& shared, int index, const HalfConv<T>& a) {
    const int chunk = threadIdx.x % CHUNKS, column = threadIdx.x / CHUNKS % STRIP, row = threadIdx.x / CHUNKS / STRIP;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      if (unsigned(y) < unsigned(end)) {
        Vec<unsigned, 4> words;
#pragma unroll
        for (int i = 0; i < 4; ++i) words.v[i] = shared.results[index % 2].word[2 * step + row][4 * chunk + i][column];
        *reinterpret_cast<Vec<unsigned, 4>*>(to) = words;
      }
      y += 2, to += 2 * a.strides.row;
    }
  }
};

// Calls work(step, step % PERIOD), with the step's rows in shared memory; and for every slot of STEPS steps, before them,
// fetch for the slot DEPTH - 1 on and write for the one before.
template <int PERIOD, int DEPTH, int STEPS, class Fetch, class Work, class Write>
__device__ __forceinline__ void walk_down(int steps, const Fetch& fetch, const Work& work, const Write& write) {
  for (int step0 = 0; step0 < steps; step0 += PERIOD) {
#pragma unroll
    for (int j = 0; j < PERIOD; ++j) {
      const int step = step0 + j;
      if (step >= steps) break;
      if (step % STEPS == 0) {
        await_copies<DEPTH - 2>();
        __syncthreads();  // all copies for this slot are there, and the one before is done
        fetch(step / STEPS + DEPTH - 1);
        if (step) write(step / STEPS - 1);
      }
      work(step, j);
    }
  }
  __syncthreads();
  write((steps - 1) / STEPS);
}

template <class T, int K, int CH, int DEPTH, int STEPS, bool BACKWARD>
__global__ void __launch_bounds__(ChannelsShared<CH, DEPTH, STEPS, BACKWARD>::THREADS, resident_channels(CH, BACKWARD))
    half_channels(const HalfConv<T> a) {
  using Shared = ChannelsShared<CH, DEPTH, STEPS, BACKWARD>;
  constexpr int SUMS = (K + 1) / 2, PERIOD = SUMS % STEPS ? SUMS * STEPS : SUMS, PAIRS = CH / 2;
  if (BACKWARD) invite_next_kernel();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const HalfChannelsStrip<CH> at(a, blockIdx.x);
  const int pair = threadIdx.x / 32 % PAIRS, channel = at.channel + 2 * pair;
  const int rows = at.last - at.first, steps = (rows + K) / 2;
  const bool real = channel < a.channels, to_sums = BACKWARD && a.partials;
  ChannelsMover<T, K, CH, DEPTH, STEPS, BACKWARD> mover(a, at);
  const auto fetch = [&](int slot) {
    if (slot * STEPS < steps) mover.fetch(shared, slot, a, to_sums);
    end_copies();
  };
#pragma unroll 1
  for (int slot = 0; slot < DEPTH - 1; ++slot) fetch(slot);
  if (threadIdx.x < 32 * PAIRS) {
    PairResults<T, K, BACKWARD> results(a, channel, real);
    const auto add = [&](int step, int j) {
      if (!a.out) return;
      const int row = step % STEPS * 2;
      const auto& window = shared.slot[step / STEPS % DEPTH].window;
      auto& to = shared.results[step / STEPS % 2];
      results.add(window.word[row][pair], window.word[row + 1][pair], j);
      results.put(to.word[row][pair], to.word[row + 1][pair], j);
    };
    walk_down<PERIOD, DEPTH, STEPS>(steps, fetch, add, [&](int slot) { mover.write(shared, slot, a); });
  } else if constexpr (BACKWARD) {
    PairTaps<T, K> taps;
    const auto add = [&](int step, int j) {
      if (!to_sums) return;
      const auto& from = shared.slot[step / STEPS % DEPTH];
      const int row = step % STEPS * 2, result = 2 * step - K / 2;  // the row of the results at the window's first row
      const bool first = unsigned(result) < unsigned(rows), second = unsigned(result + 1) < unsigned(rows);
      taps.add(from.window.word[row][pair], from.window.word[row + 1][pair], from.x.word[row][pair],
               from.x.word[row + 1][pair], j, first, second);
    };
    walk_down<PERIOD, DEPTH, STEPS>(steps, fetch, add, [](int) {});
    if (!to_sums || !real) return;
    float* square = reinterpret_cast<float*>(memory) + 128 * pair;
    taps.write(square, a.partials + (int64_t(at.part) * a.channels + channel) * (K * K + 1));
  }
}

// Pieces of the height and channels of a block, so that the blocks come in full waves; a piece begins with waiting.
template <class T>
void share_out_channels(HalfConv<T>& a, int64_t batch, bool backward, int processors) {
  constexpr int MOST_PIECES = 64, START = 5, K = 7;  // START: steps' worth of waiting
  a.strips = int(blocks_for(a.width, STRIP));
  int64_t least = INT64_MAX;
  for (const int channels : {16, 24}) {
    if (channels > 16 && backward) break;
    const int64_t groups = batch * blocks_for(a.channels, channels) * a.strips;
    const int64_t resident = resident_channels(channels, backward);
    for (int pieces = 1; pieces == 1 || (pieces <= MOST_PIECES && pieces * 2 * K <= a.height); ++pieces) {
      const int rows = int(blocks_for(a.height, pieces));
      const int64_t waves = (groups * pieces + processors * resident - 1) / (processors * resident);
      const int64_t cost = waves * resident * channels * ((rows + K) / 2 + START);
      if (cost < least) least = cost, a.rows = rows, a.group = channels;
    }
  }
  a.pieces = int(blocks_for(a.height, a.rows));
  a.units = batch * blocks_for(a.channels, a.group) * a.strips * a.pieces;
}

template <class T, int K, int CH, int DEPTH, int STEPS, bool BACKWARD>
void launch_channels(const HalfConv<T>& a, cudaStream_t stream) {
  using Shared = ChannelsShared<CH, DEPTH, STEPS, BACKWARD>;
  static_assert(sizeof(Shared) <= 99 * 1024, "a block may have that of every GPU with tensor cores");
  const auto kernel = half_channels<T, K, CH, DEPTH, STEPS, BACKWARD>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(sizeof(Shared)));
  kernel<<<unsigned(a.units), Shared::THREADS, sizeof(Shared), stream>>>(a);
}

template <class T, int K, bool BACKWARD>
void launch_half_channels(const HalfConv<T>& a, cudaStream_t stream) {
  constexpr int DEPTH = 4, STEPS = 2;  // slots; steps of each
  if constexpr (!BACKWARD)
    if (a.group == 24) return launch_channels<T, K, 24, DEPTH, STEPS, BACKWARD>(a, stream);
  launch_channels<T, K, 16, DEPTH, STEPS, BACKWARD>(a, stream);
}

}  // namespace nerfkit
