// SPDX-License-Identifier: Apache-2.0
// Half types on tensor cores, channels last, for kernels of 5 x 5 and 7 x 7 that keep the picture's size. A block walks
// down a strip of 16 columns of some channels, two rows a step; a warp has four of the channels, a quad. A product has
// two rows of results: a column of its right operand are the quad's values of 8 neighbouring columns, as they lie in
// shared memory, and a row of its left operand, which is sparse, the taps that lead from them to one channel of one
// result. Half of the products are of equal channels, the others are with zero: a value that is not finite reaches the
// results of its pair of channels that share its window. Copies to shared memory are quads of a pixel. Results are put
// together there and written a slot later.

#pragma once

#include <type_traits>

#include "common/pdl.cuh"
#include "depthwise_conv2d/cut_strips.h"
#include "depthwise_conv2d/mma_channels_rows.cuh"

namespace nerfkit {

// Distances along the columns of a window are int.
constexpr int64_t MOST_HALF_CHANNELS = INT32_MAX / (QUAD_COLUMNS + 8);

template <class T, int K, int QUADS, bool BACKWARD>
__global__ void __launch_bounds__(HalfChannelsShape<K, BACKWARD, QUADS>::THREADS,
                                  HalfChannelsShape<K, BACKWARD, QUADS>::RESIDENT) half_channels(const HalfConv<T> a) {
  using Shape = HalfChannelsShape<K, BACKWARD, QUADS>;
  using Window = typename Shape::Window;
  using Center = typename Shape::Center;
  using Result = typename Shape::Result;
  using Results = HalfResults<T, K, BACKWARD>;
  using Taps = HalfTaps<T, K>;
  constexpr int STEPS = Shape::STEPS, DEPTH = Shape::DEPTH;
  if (BACKWARD) pdl_trigger();
  extern __shared__ __align__(16) unsigned char shared[];
  const unsigned memory = shared_address(shared), zero = unsigned(a.height) >> 31;
  const HalfChannelsStrip at(a, blockIdx.x, Shape::CHANNELS);
  const int quad = threadIdx.x / 32 % QUADS, channel = at.channel + 4 * quad;
  const int rows = at.last - at.first, slots = (rows + K - 1 + Shape::ROWS - 1) / Shape::ROWS;
  const bool real = channel < a.channels;
  HalfChannelsMover<T, K, BACKWARD, Shape> mover(a, at, memory);
  if (BACKWARD && threadIdx.x < Shape::MOVERS) mover.ask(a);  // forward nothing came of it
  pdl_wait();
  const auto begin = [&] {
#pragma unroll
    for (int place = 0; place < DEPTH - 1; ++place) mover.fetch(place, a), cp_async_commit();
  };
  const bool paired = Shape::PAIRS && at.paired;
  const unsigned from = no_remat(memory + Results::template offset<Window>(quad, paired));
  const unsigned to = no_remat(memory + DEPTH * Shape::SLOT + Results::template result_offset<Result>(quad));
  const auto add_to_results = [&](Results& results, int place, int step) {
    results.template add<Window>(from + place * Shape::SLOT + 2 * step * Window::ROW, place * STEPS + step);
#pragma unroll
    for (int second = 0; second < 2; ++second)
      store_shared(to + place % Shape::RESULTS * Result::BYTES + 2 * step * Result::ROW + second * 16,
                   results.result(place * STEPS + step, second));
  };
  const unsigned outer = no_remat(memory + Taps::template offset<Window>(quad, 0, paired));
  const unsigned inner = no_remat(memory + Taps::template offset<Window>(quad, 1, paired));
  const unsigned center = no_remat(memory + Window::BYTES + Taps::template center_offset<Center>(quad));
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
        if constexpr (MOVES) cp_async_wait<DEPTH - 2>();
        __syncthreads();  // all copies for this slot are there, and the one before is done
        if constexpr (MOVES) mover.fetch((place + DEPTH - 1) % DEPTH, a);
        if (MOVES && slot) mover.write((place + DEPTH - 1) % DEPTH, a);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) work(slot, place, step);
        if constexpr (MOVES) cp_async_commit();
      }
    }
    if constexpr (MOVES) cp_async_wait<0>();
    __syncthreads();
    if (MOVES) mover.write((slots - 1) % DEPTH, a);
  };
  if (!BACKWARD || threadIdx.x < Shape::MOVERS) {
    begin();
    Results results(a, channel, real);
    walk(std::true_type(), [&](int, int place, int step) { add_to_results(results, place, step); });
  } else if constexpr (BACKWARD) {
    Taps taps;
    walk(std::false_type(), [&](int slot, int place, int step) { add_to_taps(taps, slot, place, step); });
    write_taps(taps);
  }
}

// Returns what the work costs, in rows that a block walks; a piece begins with waiting.
template <class Shape, class T>
int64_t share_out_strips(HalfConv<T>& a, int kernel, int64_t batch, const Gpu& gpu) {
  constexpr int START = 16 / Shape::ROWS,
                OF_SYSTEM = 1024;  // slots' worth of waiting; bytes of a block's shared memory
  a.period = std::max(a.height + kernel / 2, Shape::GROUP), a.quads = Shape::QUADS, a.pictures = int(batch);
  const int64_t rows = batch * a.period, groups = blocks_for(a.channels, Shape::CHANNELS), most = rows / (2 * kernel);
  const int fit = gpu.processor_shared_bytes / (Shape::BYTES + OF_SYSTEM);
  const int64_t resident = gpu.processors * std::max(1, std::min(Shape::RESIDENT, fit));
  const auto slots_of = [&](int64_t rows) { return (rows + kernel - 1 + Shape::ROWS - 1) / Shape::ROWS + START; };
  const int strips = int(blocks_for(a.width, QUAD_COLUMNS)), left = a.width - (strips - 1) * QUAD_COLUMNS;
  Pieces best = cut_strips(rows, strips, groups, 1, resident, most, slots_of);
  if (Shape::PAIRS && batch % 2 == 0 && left <= PAIRED_COLUMNS) {
    const Pieces pairs = cut_paired_strips(rows, strips - 1, groups, resident, most, slots_of);
    if (pairs.cost < best.cost) best = pairs;
  }
  const bool paired = best.paired_rows > 0;
  a.strips = paired ? strips - 1 : strips, a.units = best.blocks;
  a.rows = int(best.rows), a.pieces = a.strips ? int(shares(rows, best.rows)) : 0;
  a.paired_rows = int(best.paired_rows), a.paired_pieces = paired ? int(shares(rows / 2, best.paired_rows)) : 0;
  return best.cost * Shape::ROWS;
}

// With 8 quads copies are half lines, with 4 quarters; the other blocks of a line drift away along the rows of a piece.
// With 4 fewer are idle where channels are no multiple of 32, and two pictures may share a strip of 7 x 7.
template <int K, class T>
void share_out_backward(HalfConv<T>& a, int64_t batch, const Gpu& gpu) {
  constexpr double DRIFT = 16384;                 // rows after which it takes twice as long with 4
  constexpr double WITH_8 = K == 5 ? 7. / 8 : 1;  // of the time that the same work takes with 4
  HalfConv<T> with_4 = a;
  const double cost = WITH_8 * share_out_strips<HalfChannelsShape<K, true, 8>>(a, K, batch, gpu);
  const double cost_4 = share_out_strips<HalfChannelsShape<K, true, 4>>(with_4, K, batch, gpu);
  if (cost_4 * (1 + std::max(with_4.rows, with_4.paired_rows) / DRIFT) < cost) a = with_4;
}

template <class T>
void share_out_channels(HalfConv<T>& a, int kernel, int64_t batch, bool backward, const Gpu& gpu) {
  if (backward)
    kernel == 7 ? share_out_backward<7>(a, batch, gpu) : share_out_backward<5>(a, batch, gpu);
  else if (kernel == 7)
    share_out_strips<HalfChannelsShape<7, false, 8>>(a, kernel, batch, gpu);
  else
    share_out_strips<HalfChannelsShape<5, false, 8>>(a, kernel, batch, gpu);
}

template <class T, int K, int QUADS, bool BACKWARD>
void launch_channels(const HalfConv<T>& a, cudaStream_t stream) {
  using Shape = HalfChannelsShape<K, BACKWARD, QUADS>;
  static_assert(Shape::BYTES <= 99 * 1024, "a block may have that of every GPU with tensor cores");
  const auto kernel = half_channels<T, K, QUADS, BACKWARD>;
  if (Shape::BYTES > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::BYTES);
  pdl_launch(kernel, unsigned(a.units), Shape::THREADS, Shape::BYTES, stream, a);
}

template <class T, int K, bool BACKWARD>
void launch_half_channels(const HalfConv<T>& a, cudaStream_t stream) {
  if constexpr (BACKWARD)
    if (a.quads == 4) return launch_channels<T, K, 4, BACKWARD>(a, stream);
  launch_channels<T, K, 8, BACKWARD>(a, stream);
}

}  // namespace nerfkit
