// SPDX-License-Identifier: Apache-2.0
// Half types on tensor cores, channels last, for kernels of 5 x 5 and 7 x 7 that keep the picture's size. A block walks
// down a strip of 16 columns of some channels, two rows a step; a warp has four of the channels, a quad. A product has two
// rows of results: a column of its right operand are the quad's values of 8 neighbouring columns, as they lie in shared
// memory, and a row of its left operand, which is sparse, the taps that lead from them to one channel of one result. Half of
// the products are of equal channels, the others are with zero: a value that is not finite reaches the results of its pair of
// channels that share its window. Copies to shared memory are quads of a pixel. Results are put together there and written a
// slot later.

#pragma once

#include <type_traits>
#include <utility>

#include "depthwise_conv2d_cut_strips.h"
#include "depthwise_conv2d_half_channels_rows.cuh"
#include "early_launch.cuh"

namespace nerfkit {

// Distances along the columns of a window are int.
constexpr int64_t MOST_HALF_CHANNELS = INT32_MAX / (QUAD_COLUMNS + 8);

template <class T, int K, int QUADS, bool BACKWARD>
__global__ void __launch_bounds__(HalfChannelsShape<K, BACKWARD, QUADS>::THREADS,
                                  HalfChannelsShape<K, BACKWARD, QUADS>::RESIDENT)
    half_channels(const HalfConv<T> a) {
  using Shape = HalfChannelsShape<K, BACKWARD, QUADS>;
  using Window = typename Shape::Window;
  using Center = typename Shape::Center;
  using Result = typename Shape::Result;
  using Results = HalfResults<T, K, BACKWARD>;
  // With both in a warp the registers are full: with more addresses kept, or a product for the bias, ptxas spilled some.
  constexpr bool ROOM = !BACKWARD || Shape::TWO_ROLES, KEEP_CENTER = ROOM || !std::is_same_v<T, __nv_bfloat16>;
  using Taps = HalfTaps<T, K, ROOM>;
  constexpr int STEPS = Shape::STEPS, DEPTH = Shape::DEPTH;
  if (BACKWARD) invite_next_kernel();
  extern __shared__ __align__(16) unsigned char shared[];
  const unsigned memory = shared_address(shared), zero = unsigned(a.height) >> 31;
  const HalfChannelsStrip at(a, blockIdx.x, Shape::CHANNELS);
  const int quad = threadIdx.x / 32 % QUADS, channel = at.channel + 4 * quad;
  const int rows = at.last - at.first, slots = (rows + K - 1 + Shape::ROWS - 1) / Shape::ROWS;
  const bool real = channel < a.channels;
  HalfChannelsMover<T, K, BACKWARD, Shape> mover(a, at, memory);
  if (Shape::TWO_ROLES && threadIdx.x < Shape::MOVERS) mover.ask(a);  // else ptxas spilled registers, or nothing came of it
  await_kernels_before();
  const auto begin = [&] {
#pragma unroll
    for (int place = 0; place < DEPTH - 1; ++place) mover.fetch(place, a), end_copies();
  };
  const unsigned from = kept<ROOM>(memory + Results::template offset<Window>(quad));
  const unsigned to = kept(memory + DEPTH * Shape::SLOT + Results::template result_offset<Result>(quad));
  const auto add_to_results = [&](Results& results, int place, int step) {
    results.template add<Window>(from + place * Shape::SLOT + 2 * step * Window::ROW, place * STEPS + step);
#pragma unroll
    for (int second = 0; second < 2; ++second)
      store_shared(to + place % Shape::RESULTS * Result::BYTES + 2 * step * Result::ROW + second * 16,
                   results.result(place * STEPS + step, second));
  };
  const unsigned outer = kept(memory + Taps::template offset<Window>(quad, 0));
  const unsigned inner = ROOM ? kept(memory + Taps::template offset<Window>(quad, 1)) : outer + 32;
  const unsigned center = kept<KEEP_CENTER>(memory + Window::BYTES + Taps::template center_offset<Center>(quad));
  const auto add_to_taps = [&](Taps& taps, int slot, int place, int step) {
    const int row = 2 * step, result = slot * Shape::ROWS + row - K / 2;  // of the results at the window's first row
    const int offset = place * Shape::SLOT + row * Window::ROW;
    taps.add(outer + offset, inner + offset, center + place * Shape::SLOT + row * Center::ROW, place * STEPS + step,
             unsigned(result) < unsigned(rows), unsigned(result + 1) < unsigned(rows), zero);
  };
  const auto write_taps = [&](Taps& taps) {
    static_assert(DEPTH * Shape::SLOT >= int(sizeof(float)) * Taps::FLOATS * QUADS || !BACKWARD);
    if (a.partials && real)
      taps.write(reinterpret_cast<float*>(shared) + Taps::FLOATS * quad,
                 a.partials + (int64_t(at.part) * a.channels + channel) * (K * K + 1));
  };
  // Calls work(slot, its place, step of it) with the slot's rows in shared memory. If `moves`, copies rows for the slot
  // DEPTH - 1 on and writes those of the one before; else others do.
  // (Defined after what it calls: before, ptxas spilled registers.)
  const auto walk = [&](auto moves, const auto& work) {
    constexpr bool MOVES = decltype(moves)::value;
    for (int slot0 = 0; slot0 < slots; slot0 += DEPTH) {
#pragma unroll
      for (int place = 0; place < DEPTH; ++place) {
        const int slot = slot0 + place;
        if (slot >= slots) break;
        if constexpr (MOVES) await_copies<DEPTH - 2>();
        __syncthreads();  // all copies for this slot are there, and the one before is done
        if constexpr (MOVES) mover.fetch((place + DEPTH - 1) % DEPTH, a);
        if (MOVES && slot) mover.write((place + DEPTH - 1) % DEPTH, a);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) work(slot, place, step);
        if constexpr (MOVES) end_copies();
      }
    }
    if constexpr (MOVES) await_copies<0>();
    __syncthreads();
    if (MOVES) mover.write((slots - 1) % DEPTH, a);
  };
  if constexpr (!BACKWARD) {
    begin();
    Results results(a, channel, real);
    walk(std::true_type(), [&](int, int place, int step) { add_to_results(results, place, step); });
  } else if constexpr (!Shape::TWO_ROLES) {
    begin();
    Results results(a, channel, real);
    Taps taps;
    walk(std::true_type(), [&](int slot, int place, int step) {
      add_to_results(results, place, step), add_to_taps(taps, slot, place, step);
    });
    write_taps(taps);
  } else if (threadIdx.x < Shape::MOVERS) {
    begin();
    Results results(a, channel, real);
    walk(std::true_type(), [&](int, int place, int step) { add_to_results(results, place, step); });
  } else {
    Taps taps;
    walk(std::false_type(), [&](int slot, int place, int step) { add_to_taps(taps, slot, place, step); });
    write_taps(taps);
  }
}

// Returns what the work costs; a piece begins with waiting.
template <class Shape, class T>
int64_t share_out_strips(HalfConv<T>& a, int kernel, int64_t batch, int processors) {
  constexpr int START = 4;  // slots' worth of waiting
  a.strips = int(blocks_for(a.width, QUAD_COLUMNS)), a.period = std::max(a.height + kernel / 2, Shape::ROWS);
  a.quads = Shape::QUADS, a.pictures = int(batch);
  const int64_t rows = batch * a.period, groups = blocks_for(a.channels, Shape::CHANNELS);
  const auto slots_of = [&](int64_t rows) { return (rows + kernel - 1 + Shape::ROWS - 1) / Shape::ROWS + START; };
  const Pieces best = cut_strips(rows, a.strips, groups, 1, processors * Shape::RESIDENT, rows / (2 * kernel), slots_of);
  a.rows = int(best.rows), a.units = best.blocks, a.pieces = int(best.blocks / groups / a.strips);
  return best.cost * Shape::QUADS * Shape::RESIDENT;
}

// Quads of a block. With 16 of them copies are whole lines; with 8 fewer are idle where channels are no multiple of 64.
template <int K, bool BACKWARD>
constexpr int USUAL_QUADS = BACKWARD ? (K == 7 ? 4 : 16) : 8;

template <class T>
void share_out_channels(HalfConv<T>& a, int kernel, int64_t batch, bool backward, int processors) {
  const auto share_out = [&](auto shape) { return share_out_strips<decltype(shape)>(a, kernel, batch, processors); };
  if (kernel == 7) {
    backward ? share_out(HalfChannelsShape<7, true, USUAL_QUADS<7, true>>())
             : share_out(HalfChannelsShape<7, false, USUAL_QUADS<7, false>>());
  } else if (!backward) {
    share_out(HalfChannelsShape<5, false, USUAL_QUADS<5, false>>());
  } else {
    HalfConv<T> other = a;
    const int64_t with_16 = share_out(HalfChannelsShape<5, true, 16>());
    std::swap(a, other);
    if (4 * with_16 <= 5 * share_out(HalfChannelsShape<5, true, 8>())) a = other;  // the same work took 0.8 of the time
  }
}

template <class T, int K, int QUADS, bool BACKWARD>
void launch_channels(const HalfConv<T>& a, cudaStream_t stream) {
  using Shape = HalfChannelsShape<K, BACKWARD, QUADS>;
  static_assert(Shape::BYTES <= 99 * 1024, "a block may have that of every GPU with tensor cores");
  const auto kernel = half_channels<T, K, QUADS, BACKWARD>;
  if (Shape::BYTES > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::BYTES);
  launch_early(kernel, unsigned(a.units), Shape::THREADS, Shape::BYTES, stream, a);
}

template <class T, int K, bool BACKWARD>
void launch_half_channels(const HalfConv<T>& a, cudaStream_t stream) {
  if constexpr (K == 5 && BACKWARD)
    if (a.quads == 8) return launch_channels<T, K, 8, BACKWARD>(a, stream);
  launch_channels<T, K, USUAL_QUADS<K, BACKWARD>, BACKWARD>(a, stream);
}

}  // namespace nerfkit
