// SPDX-License-Identifier: Apache-2.0
// The LLTM of many units along 16 or 32 rays, near to far. The input's part of a step's products, which does not wait
// for the step before, comes before the barrier; the input arrives two steps ahead.

#include "lltm/large_state.cuh"

namespace nerfkit {
namespace {

constexpr int BUFFERS = 3;  // of the input
// Warps of a block, at most; they take groups of 16 units in turn. Half as many where a thread has more to hold.
template <class T, int TILES>
constexpr int FORWARD_WARPS = TILES == 1 && sizeof(T) == 2 ? 16 : 8;

// Bytes of shared memory besides the weight.
template <class T>
size_t forward_bytes(const LltmShape& s, int rays) {
  const int blocks_h = blocks_of_16(s.n_state), blocks_x = blocks_of_16(s.n_input);
  const size_t rows = size_t(rays) * (2 * shared_row(blocks_h) + BUFFERS * shared_row(blocks_x)) * sizeof(T);
  return rows + (3 + rays) * 16 * blocks_h * sizeof(float) + rays * sizeof(BlockRay);
}

// Starts to copy the input of a step; one warp for a row.
template <int BYTES, class T>
__device__ __forceinline__ void copy_input(T* to, int row, const T* input, int n_input, const BlockRay* rows, int count,
                                           int step) {
  constexpr int OF_COPY = BYTES < 4 ? 1 : BYTES / int(sizeof(T));
  for (int i = threadIdx.x / 32; i < count; i += blockDim.x / 32) {
    if (step >= rows[i].length) continue;
    const T* from = input + (rows[i].first + step) * n_input;
#pragma unroll 1
    for (int k = threadIdx.x % 32 * OF_COPY; k < n_input; k += 32 * OF_COPY) {
      if constexpr (BYTES < 4)
        to[i * row + k] = from[k];
      else
        cp_async_zfill<BYTES>(to + i * row + k, from + k, true);
    }
  }
}

// The same by the widest copies that rows are aligned to.
template <class T>
__device__ __forceinline__ void start_row_copies(T* to, int row, const T* input, int n_input, const BlockRay* rows,
                                                 int count, int step) {
  const int bytes = n_input * int(sizeof(T));
  if (bytes % 16 == 0)
    copy_input<16>(to, row, input, n_input, rows, count, step);
  else if (bytes % 4 == 0)
    copy_input<4>(to, row, input, n_input, rows, count, step);
  else
    copy_input<2>(to, row, input, n_input, rows, count, step);
  cp_async_commit();
}

// A lane's sums start from its four units' bias, `of_gate` from gate to gate.
template <int TILES>
__device__ __forceinline__ void start_sums(float (&sum)[TILES][3][2][4], const float* biases, int of_gate) {
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
    const float4 bias = *reinterpret_cast<const float4*>(biases + gate * of_gate);
#pragma unroll
    for (int r = 0; r < 2 * TILES; ++r) {
      float (&of)[2][4] = sum[r / 2][gate];
      const int at = r % 2 * 2;
      of[0][at] = bias.x, of[0][at + 1] = bias.y;
      of[1][at] = bias.z, of[1][at + 1] = bias.w;
    }
  }
}

// What four units of sample n are after a step, and what the backward pass needs.
template <class T>
__device__ __forceinline__ void store_step(const LltmForward<T>& a, const SavedGates<T>& saved, int64_t n, int unit,
                                           const float (&h)[4], const float (&c)[4], const float (&before)[4],
                                           const float (&act)[3][4]) {
  const int n_state = a.shape.n_state;
  store_units(a.h + n * n_state, unit, n_state, h);
  if (!saved.activated) return;
  store_units(saved.c + n * n_state, unit, n_state, c);
  store_units(saved.before + n * n_state, unit, n_state, before);
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
    store_units(saved.activated + (3 * n + gate) * n_state, unit, n_state, act[gate]);
}

// TILES of 16 rays.
template <class T, int TILES>
__global__ void __launch_bounds__(32 * FORWARD_WARPS<T, TILES>, 1)
    lltm_large_state_forward(const LltmForward<T> a, const SavedGates<T> saved, const PackedWeight weight, int tiles) {
  constexpr int BLOCK_RAYS = TILES * RAYS;
  extern __shared__ __align__(16) unsigned char shared[];
  const int n_state = a.shape.n_state, n_input = a.shape.n_input, blocks_h = blocks_of_16(n_state),
            padded_h = 16 * blocks_h;
  const int row_h = shared_row(blocks_h), row_x = shared_row(blocks_of_16(n_input));
  uint4* resident = reinterpret_cast<uint4*>(shared);  // [blocks_h, weight.resident, SIZE]
  T* states =
      reinterpret_cast<T*>(resident + blocks_h * weight.resident * PackedBlock<T, 3>::SIZE);  // [2, BLOCK_RAYS, row_h]
  T* inputs = states + 2 * BLOCK_RAYS * row_h;                                      // [BUFFERS, BLOCK_RAYS, row_x]
  float* biases = reinterpret_cast<float*>(inputs + BUFFERS * BLOCK_RAYS * row_x);  // [3, padded_h]
  float* cells = biases + 3 * padded_h;                                             // c, [2 TILES, blocks_h, 32, 4]
  BlockRay* rows = reinterpret_cast<BlockRay*>(cells + BLOCK_RAYS * padded_h);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32, warps = blockDim.x / 32;

  stage_weight<PackedBlock<T, 3>>(resident, weight, blocks_h);
#pragma unroll 1
  for (int i = threadIdx.x; i < int(reinterpret_cast<T*>(biases) - states); i += blockDim.x) states[i] = T(0.f);
#pragma unroll 1
  for (int i = threadIdx.x; i < 3 * padded_h; i += blockDim.x)
    biases[i] = i % padded_h < n_state ? float(a.bias[i / padded_h * n_state + i % padded_h]) : 0.f;

  auto start_input = [&](int step) {
    start_row_copies(inputs + step % BUFFERS * BLOCK_RAYS * row_x, row_x, a.input, n_input, rows, BLOCK_RAYS, step);
  };
  auto state_at = [&](int buffer, int row, int column) {
    return states + (buffer * BLOCK_RAYS + row) * row_h + column;
  };
  auto cell_at = [&](int r, int group) { return cells + ((r * blocks_h + group) * 32 + lane) * 4; };

  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    __syncthreads();
    find_rays(rows, BLOCK_RAYS, a.shape, tile);
    __syncthreads();
    const int longest = longest_of(rows, BLOCK_RAYS);
#pragma unroll 1
    for (int step = 0; step < BUFFERS - 1; ++step) start_input(step);
    for (int group = warp; group < blocks_h; group += warps)
      for (int r = 0; r < 2 * TILES; ++r) {
        const int unit = 16 * group + 4 * t, row = g + 8 * r;
        const int64_t ray = rows[row].ray;
        const Vec4<T> c = load_vec4<false>(a.c0 + ray * n_state, unit, n_state, ray >= 0);
        store(cell_at(r, group), {float(c.v[0]), float(c.v[1]), float(c.v[2]), float(c.v[3])});
        const Vec4<T> h = load_vec4<false>(a.h0 + ray * n_state, unit, n_state, ray >= 0);
        *reinterpret_cast<Vec4<T>*>(state_at(0, row, unit)) = h;
      }
    cp_async_wait<0>();
    __syncthreads();
    for (int step = 0; step < longest; ++step) {
      const int now = step % 2;
      const T* x = inputs + (step % BUFFERS * BLOCK_RAYS + g) * row_x + 4 * t;
      for (int group = warp; group < blocks_h; group += warps) {
        const int unit = 16 * group + 4 * t;
        float sum[TILES][3][2][4];
        start_sums(sum, biases + unit, padded_h);
        add_depths<T, 3, TILES>(sum, weight, resident, group, blocks_h, weight.depths, x, row_x);
        if (group == warp) {
          cp_async_wait<0>();  // of the next step
          __syncthreads();     // the state is there, and nothing is read any more of what is written below
          start_input(step + BUFFERS - 1);
        }
        add_depths<T, 3, TILES>(sum, weight, resident, group, 0, blocks_h, state_at(now, g, 4 * t), row_h);
#pragma unroll
        for (int r = 0; r < 2 * TILES; ++r) {
          const int row = g + 8 * r;
          float before[4];
          load(state_at(now, row, unit), before);
          if (step >= rows[row].length) {
            store(state_at(now ^ 1, row, unit), before);
            continue;
          }
          const int64_t n = rows[row].first + step;
          float h[4], act[3][4], c[4];
          load(cell_at(r, group), c);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const int at = r % 2 * 2 + k % 2;
            const float (&of)[3][2][4] = sum[r / 2];
            const Gates<float> gates = fast_activate<T>(of[0][k / 2][at], of[1][k / 2][at], of[2][k / 2][at]);
            c[k] += gates.g * gates.i;
            h[k] = fast_tanh<T>(c[k]) * gates.o;
            act[0][k] = gates.i, act[1][k] = gates.o, act[2][k] = gates.g;
          }
          store(cell_at(r, group), c), store(state_at(now ^ 1, row, unit), h);
          store_step(a, saved, n, unit, h, c, before, act);
        }
        __syncwarp();  // products take all lanes
      }
    }
    for (int group = warp; group < blocks_h; group += warps)
      for (int r = 0; r < 2 * TILES; ++r) {
        const int unit = 16 * group + 4 * t, row = g + 8 * r;
        const int64_t ray = rows[row].ray;
        if (ray < 0) continue;
        float h[4], c[4];
        load(state_at(longest % 2, row, unit), h), load(cell_at(r, group), c);
        store_units(a.h_n + ray * n_state, unit, n_state, h);
        store_units(a.c_n + ray * n_state, unit, n_state, c);
      }
  }
}

// TILES of 16 rays per block.
template <class T, int TILES>
bool launch(const LltmForward<T>& a, const LltmLaunch& on) {
  const int rays = RAYS * TILES, warps = std::min(blocks_of_16(a.shape.n_state), FORWARD_WARPS<T, TILES>);
  return launch_large_state<T, 3>(lltm_large_state_forward<T, TILES>, a, saved_gates(a.workspace, a.shape), rays, warps,
                                  forward_bytes<T>(a.shape, rays), on);
}

}  // namespace

bool launch_large_state_forward(const LltmLaunch& on, const LltmForward<void>& arguments) {
  bool done = false;
  dispatch(on.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (sizeof(T) < 8) {
      const LltmForward<T> a = arguments.as<T>();
      done = (rays_wait(a.shape, on.gpu) && launch<T, 2>(a, on)) || launch<T, 1>(a, on);
    }
  });
  return done;
}

}  // namespace nerfkit
