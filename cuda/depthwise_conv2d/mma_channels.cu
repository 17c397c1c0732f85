// SPDX-License-Identifier: Apache-2.0
// Half types on tensor cores, channels last, for kernels of 7 x 7 that leave height and width as they are. A block goes
// down a strip of 16 columns of 32 channels, two rows per step; a warp has four of the channels, a quad. A product has
// two rows of results: a column of its right operand are the quad's values of 8 neighbouring columns, as they lie in
// shared memory, and a row of its left operand, which is sparse, the taps that lead from them to one channel of one
// result. Half of the products are of equal channels, the others are with zero: a value that is not finite reaches the
// results of its pair of channels that share its window. Results are put together in shared memory and written a slot
// later.

#include "common/pdl.cuh"
#include "depthwise_conv2d/mma_channels_copies.cuh"

namespace nerfkit {

template <class T, Pass PASS>
__global__ void __launch_bounds__(ChannelsBlock<PASS>::THREADS, ChannelsBlock<PASS>::RESIDENT)
    depthwise_conv2d_mma_channels(const MmaChannelsArgs<T> a) {
  using Block = ChannelsBlock<PASS>;
  using Window = typename Block::Window;
  using Center = typename Block::Center;
  using Result = typename Block::Result;
  using Results = ResultFragments<T, PASS>;
  using Taps = TapFragments<T>;
  constexpr bool BACKWARD = Block::BACKWARD;
  constexpr int STEPS = Block::STEPS, DEPTH = Block::DEPTH;
  if (BACKWARD) pdl_trigger();
  extern __shared__ __align__(16) unsigned char shared[];
  const unsigned memory = shared_address(shared);
  const unsigned zero = unsigned(a.height) >> 31;  // which the compiler cannot know: see TapFragments::add
  const ChannelsPiece at(a, blockIdx.x);
  const int quad = threadIdx.x / 32 % QUADS, channel = at.channel + 4 * quad;
  const int rows = at.last - at.first, n_slots = (rows + SIDE - 1 + Block::ROWS - 1) / Block::ROWS;
  const bool real = channel < a.channels;
  Copier<T, PASS> copier(a, at, memory);
  if (BACKWARD && threadIdx.x < Block::RESULT_THREADS) copier.prefetch(a);  // measured: forward it gained nothing
  pdl_wait();
  const auto begin = [&] {
#pragma unroll
    for (int slot = 0; slot < DEPTH - 1; ++slot) copier.copy(slot, a), cp_async_commit();
  };
  const unsigned from = no_remat(memory + Results::template offset<Window>(quad));
  const unsigned to = no_remat(memory + DEPTH * Block::SLOT + Results::template result_offset<Result>(quad));
  const auto add_to_results = [&](Results& results, int slot, int step) {
    results.template add<Window>(from + slot * Block::SLOT + 2 * step * Window::ROW, slot * STEPS + step);
#pragma unroll
    for (int second = 0; second < 2; ++second)
      store_shared(to + slot % Block::RESULTS * Result::BYTES + 2 * step * Result::ROW + second * 16,
                   results.result(slot * STEPS + step, second));
  };
  const unsigned outer = no_remat(memory + Taps::template offset<Window>(quad, 0));
  const unsigned inner = no_remat(memory + Taps::template offset<Window>(quad, 1));
  const unsigned center = no_remat(memory + Window::BYTES + Taps::template center_offset<Center>(quad));
  const auto add_to_taps = [&](Taps& taps, int index, int slot, int step) {
    const int row = 2 * step,
              result = index * Block::ROWS + row - SIDE / 2;  // of the results at the window's first row
    const int offset = slot * Block::SLOT + row * Window::ROW;
    taps.add(outer + offset, inner + offset, center + slot * Block::SLOT + row * Center::ROW, slot * STEPS + step,
             unsigned(result) < unsigned(rows), unsigned(result + 1) < unsigned(rows), zero);
  };
  const auto write_taps = [&](Taps& taps) {
    static_assert(DEPTH * Block::SLOT >= int(sizeof(float)) * Taps::FLOATS * QUADS || !BACKWARD);
    if (a.partials && real)
      taps.write(reinterpret_cast<float*>(shared) + Taps::FLOATS * quad,
                 a.partials + (int64_t(at.part) * a.channels + channel) * SUMS);
  };
  // Calls work(index, index % DEPTH, step of it) with the rows of slot `index` in shared memory. If `copies`, copies
  // rows for the slot DEPTH - 1 on and writes the results of the one before; else others do.
  // (Defined after what it calls: before, ptxas spilled registers.)
  const auto for_each_step = [&](auto copies, const auto& work) {
    constexpr bool COPIES = decltype(copies)::value;
    for (int index0 = 0; index0 < n_slots; index0 += DEPTH) {
#pragma unroll
      for (int slot = 0; slot < DEPTH; ++slot) {
        const int index = index0 + slot;
        if (index >= n_slots) break;
        if constexpr (COPIES) cp_async_wait<DEPTH - 2>();
        __syncthreads();  // all copies for this slot have arrived, and the one before is done
        if constexpr (COPIES) copier.copy((slot + DEPTH - 1) % DEPTH, a);
        if (COPIES && index) copier.write((slot + DEPTH - 1) % DEPTH, a);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) work(index, slot, step);
        if constexpr (COPIES) cp_async_commit();
      }
    }
    if constexpr (COPIES) cp_async_wait<0>();
    __syncthreads();
    if (COPIES) copier.write((n_slots - 1) % DEPTH, a);
  };
  if (!BACKWARD || threadIdx.x < Block::RESULT_THREADS) {
    begin();
    Results results(a, channel, real);
    for_each_step(std::true_type(), [&](int, int slot, int step) { add_to_results(results, slot, step); });
  } else if constexpr (BACKWARD) {
    Taps taps;
    for_each_step(std::false_type(), [&](int index, int slot, int step) { add_to_taps(taps, index, slot, step); });
    write_taps(taps);
  }
}

// Cuts the strips into pieces, one per block, so that blocks come in full waves and need the fewest steps.
template <Pass PASS, class T>
void divide_strips(MmaChannelsArgs<T>& a, int64_t batch, const Gpu& gpu) {
  using Block = ChannelsBlock<PASS>;
  constexpr int MOST_WAVES = 16, START = 4;  // START: slots' worth of waiting when a piece begins
  constexpr int OF_SYSTEM = 1024;            // bytes of a block's shared memory that the system takes
  a.period = std::max(a.height + SIDE / 2, Block::ROWS), a.images = int(batch);
  a.strips = int(blocks_for(a.width, STRIP_COLUMNS));
  const int64_t rows = batch * a.period, groups = blocks_for(a.channels, BLOCK_CHANNELS);
  const int64_t most = std::max<int64_t>(1, rows / (2 * SIDE));  // pieces of a strip
  const int fit = gpu.processor_shared_bytes / (Block::BYTES + OF_SYSTEM);
  const int64_t resident = gpu.processors * std::max(1, std::min(Block::RESIDENT, fit));
  int64_t least = INT64_MAX;
  for (int64_t waves = 1, wanted = 0; waves <= MOST_WAVES && wanted < most; ++waves) {
    wanted = waves * resident / (groups * a.strips);
    const int64_t each = blocks_for(rows, std::clamp<int64_t>(wanted, 1, most)), pieces = blocks_for(rows, each);
    const int64_t blocks = groups * a.strips * pieces;
    const int64_t cost = blocks_for(blocks, resident) * (blocks_for(each + SIDE - 1, Block::ROWS) + START);
    if (cost < least) least = cost, a.rows = int(each), a.pieces = int(pieces), a.units = blocks;
  }
}

// Sets all but the arrays and returns the partial sums of a channel; 0 if the kernels are not made for this.
template <Pass PASS, class T>
int64_t fit_channels(MmaChannelsArgs<T>& a, const Conv2dShape& s) {
  constexpr int64_t MOST_CHANNELS =
      INT32_MAX / (STRIP_COLUMNS + SIDE + 1);  // distances along a window's columns are int
  if (!s.channels_last || same_size_side(s) != SIDE || is_empty(s)) return 0;
  if (s.channels % 8 || s.channels > MOST_CHANNELS) return 0;
  if (2 * s.batch * (int64_t(s.y.size) + SIDE) > INT32_MAX)
    return 0;  // rows of all images, and of a piece that ends later
  const Gpu gpu = current_gpu();
  if (gpu.major < TENSOR_CORES_MAJOR) return 0;
  a.strides = s.strides(s.y.size, s.x.size);
  a.channels = int(s.channels), a.height = s.y.size, a.width = s.x.size;
  divide_strips<PASS>(a, s.batch, gpu);
  return a.units <= INT32_MAX ? int64_t(a.strips) * a.pieces : 0;
}

template <class T, Pass PASS>
int64_t try_launch_mma_channels(const Conv2dArrays<T>& arrays, const Conv2dShape& s, cudaStream_t stream) {
  using Block = ChannelsBlock<PASS>;
  static_assert(Block::BYTES <= 99 * 1024, "a block may have that of every GPU with tensor cores");
  MmaChannelsArgs<T> a{arrays};
  if (!all_aligned(arrays, 16)) return 0;
  const int64_t parts = fit_channels<PASS>(a, s);
  if (!parts) return 0;
  const auto kernel = depthwise_conv2d_mma_channels<T, PASS>;
  if (Block::BYTES > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Block::BYTES);
  pdl_launch(kernel, unsigned(a.units), Block::THREADS, Block::BYTES, stream, a);
  return parts;
}

int64_t mma_channels_parts(const Conv2dShape& s) {
  MmaChannelsArgs<__half> a{};
  return fit_channels<Pass::backward>(a, s);
}

#define FOR_TYPE(T)                                                                                      \
  template int64_t try_launch_mma_channels<T, Pass::forward>(const Conv2dArrays<T>&, const Conv2dShape&, \
                                                             cudaStream_t);                              \
  template int64_t try_launch_mma_channels<T, Pass::backward>(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);
FOR_TYPE(__half)
FOR_TYPE(__nv_bfloat16)
#undef FOR_TYPE

}  // namespace nerfkit
