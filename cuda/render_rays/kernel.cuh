// SPDX-License-Identifier: Apache-2.0
// Persistent warps. A lane has a ray, and takes the next one that no lane has when it is done; its samples are taken
// near to far, one in each round of the warp, as in the picture in NOTES.md. What a lane computes depends on its ray
// alone, whatever the lanes beside it do.

#pragma once

#include "render_rays/field.cuh"
#include "render_rays/lane.cuh"

namespace nerfkit {
namespace {

constexpr int MAX_WARPS = 12;  // of a block, one block on a multiprocessor: 168 registers a thread
constexpr int REFILL = 8;      // lanes without a ray that are worth the time to begin some
constexpr int FOUND = 4;       // lanes that have found a sample, for each one that looks on: worth the time to go on

struct RenderPlan {
  Sizes sizes;
  BlockParts block;
  WarpParts warp;
  Coarse coarse;
  unsigned* next_ray;  // [1] that no lane has taken
};

// V: features of a level; LLTM: whether there is one.
template <int V, bool LLTM>
__global__ void __launch_bounds__(32 * MAX_WARPS, 1)
    render_rays_kernel(const __grid_constant__ RenderArguments a, const __grid_constant__ RenderPlan plan) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Sizes& s = plan.sizes;
  const BlockParts& block = plan.block;
  const WarpParts& part = plan.warp;
  fill_block(shared, a, s, block);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  unsigned char* mine = shared + block.used + threadIdx.x / 32 * part.used;  // this warp's part
  for (int i = lane; i * 16 < part.used; i += 32) reinterpret_cast<uint4*>(mine)[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();

  auto* features = reinterpret_cast<__half*>(mine + part.features) + lane * s.feature_stride();
  auto* geometry = reinterpret_cast<__half*>(mine + part.geometry) + lane * SHORT_STRIDE;
  auto* weights = reinterpret_cast<float*>(mine + part.weights) + lane;
  auto* harmonics = reinterpret_cast<__half*>(mine + part.harmonics);
  auto* queue = reinterpret_cast<__half*>(mine + part.queue);
  auto* waiting = reinterpret_cast<float*>(mine + part.waiting);
  auto* owners = reinterpret_cast<int*>(mine + part.owners);
  const auto* taps = reinterpret_cast<const float*>(shared + block.taps);
  const int feature_rows = 32 * s.feature_stride(), geometry_rows = 32 * SHORT_STRIDE;  // from one sample to the next
  const auto sigmoid = [](float x) { return 1 / (1 + expf(-float(__half(x)))); };       // of what the network gives
  const float threshold = *a.threshold;
  const unsigned lower = (1u << lane) - 1;

  int ray = -1;            // of this lane
  bool open = false;       // there may be more samples
  int kept = 0, sent = 0;  // samples; of these, those that went to the queue
  unsigned own = 0;        // bit i: sample i of the queue is this ray's
  Marcher marcher{};
  Seen seen{};
  RayStates states{};
  int head = 0, count = 0;  // of the queue: place of the first sample, samples
  bool more = true;         // rays that no lane has taken

  for (;;) {
    // ---- refill, march: until few lanes are still looking; the others look ahead ----
    unsigned idle;
    for (;;) {
      if (marcher.window == 0) {
        marcher.window = marcher.ahead, marcher.base = marcher.next - WINDOW, marcher.ahead = 0;
        if (marcher.window == 0 && marcher.at_end) open = false;
      }
      if (ray >= 0 && !open && sent == kept && !own) {
        write_pixel(a, ray, seen);
        ray = -1, kept = sent = 0;
      }
      idle = __ballot_sync(FULL_MASK, ray < 0);
      if (more && __popc(idle) >= REFILL) {
        unsigned first = 0;
        if (lane == 0) first = atomicAdd(plan.next_ray, unsigned(__popc(idle)));
        first = __shfl_sync(FULL_MASK, first, 0);
        more = first + __popc(idle) < unsigned(a.march.n_rays);
        const unsigned index = first + __popc(idle & lower);
        if (ray < 0 && index < unsigned(a.march.n_rays)) {
          ray = int(index);
          open = begin(marcher, a.march, ray) && a.limit > 0;
          seen = Seen{};
          if (open)
            store_harmonics((const float*)a.march.directions + 3 * int64_t(ray), harmonics + lane * SHORT_STRIDE);
        }
        if (LLTM) states.begin(idle);
        continue;
      }
      const bool looks = open && marcher.ahead == 0 && !marcher.at_end;
      const unsigned want = __ballot_sync(FULL_MASK, looks && marcher.window == 0),
                     have = __ballot_sync(FULL_MASK, marcher.window != 0);
      if (FOUND * __popc(want) <= __popc(have)) break;
      const bool near = looks && marcher.next < marcher.near_until;
      const unsigned nears = __ballot_sync(FULL_MASK, near), aways = __ballot_sync(FULL_MASK, looks && !near);
      if (__popc(nears) >= __popc(aways)) {
        if (near) look_up(marcher, a.march);
      } else if (looks && !near) {
        approach(marcher, a.march, plan.coarse);
      }
    }
    if (idle == FULL_MASK) return;

    // ---- density: of the next sample of each ray, and of as many more as there are lanes without a ray ----
    const unsigned found = __ballot_sync(FULL_MASK, marcher.window != 0);
    const int more_each = found ? min(__popc(idle) / __popc(found), WINDOW - 1) : 0;
    const int feature_row = kept % s.taps * feature_rows, geometry_row = kept % (s.lag + 1) * geometry_rows;
    if (found) {
      int of = lane, skipped = 0;  // the lane of the ray; samples of it that other lanes take
      const int rank = __popc(idle & lower);
      if (ray < 0 && rank < more_each * __popc(found))
        of = __fns(found, 0, rank / more_each + 1), skipped = rank % more_each + 1;
      unsigned window = __shfl_sync(FULL_MASK, marcher.window, of);
      const int base = __shfl_sync(FULL_MASK, marcher.base, of), number = __shfl_sync(FULL_MASK, ray, of);
      const float start = __shfl_sync(FULL_MASK, marcher.start, of);
      for (; skipped; --skipped) window &= window - 1;
      float point[3] = {};
      if (window) unit_position(a.march, number, ends_of(a.march, start, base + __ffs(window) - 1), point);
      encode<V>(a, point, s.n_dense, features + feature_row);
      __syncwarp();
      const unsigned row = shared_address(features + feature_row);
#pragma unroll 1
      for (int m = 0; m < 2; ++m) {
        float result[OUT / 8][4];
        density_net(shared, s, block, __shfl_sync(FULL_MASK, row, 16 * m + lane % 16), result);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int at = 16 * m + g + 8 * r;  // the lane of the row
          __half* to = geometry + __shfl_sync(FULL_MASK, geometry_row, at) + (at - lane) * SHORT_STRIDE + 2 * t;
          *reinterpret_cast<unsigned*>(to) = pack<__half>(result[0][2 * r], result[0][2 * r + 1]);
          *reinterpret_cast<unsigned*>(to + 8) = pack<__half>(result[1][2 * r], result[1][2 * r + 1]);
        }
      }
      __syncwarp();
    }

    for (int turn = 0; turn <= more_each; ++turn) {
      // ---- keep: a sample of each ray, near to far ----
      bool keeps = false;
      if (marcher.window != 0) {
        const int by =
            turn == 0 ? lane : __fns(idle, 0, __popc(found & lower) * more_each + turn);  // whose rows it has
        const __half* of_sample = geometry + (turn == 0 ? geometry_row : (by - lane) * SHORT_STRIDE);
        const float2 ends = ends_of(a.march, marcher.start, marcher.base + __ffs(marcher.window) - 1);
        const float log_density = float(of_sample[0]) + a.density_bias;
        const float density = expf(log_density > MAX_LOG_DENSITY ? MAX_LOG_DENSITY : log_density);
        marcher.window &= marcher.window - 1;
        keeps = !(-expm1f(-density * (ends.y - ends.x)) < threshold);  // also NaN, as it has to be seen
        if (keeps) {
          if (turn > 0) {
            copy_row(features + (by - lane) * s.feature_stride(), features + kept % s.taps * feature_rows, s.channels);
            copy_row(of_sample, geometry + kept % (s.lag + 1) * geometry_rows, GEOMETRY);
          }
          weights[kept++ % (s.lag + 1) * 32] = seen.add(density, ends);
        }
        const float tau = density * (ends.y - ends.x), most = CompositeLimits<float>::max_thickness;
        seen.stopped += tau > most ? most : tau;
        if (!(seen.stopped < a.limit)) open = false, marcher.window = marcher.ahead = 0;
      }

      // ---- context: a sample of each ray that has one to send; color: after each half of the rays ----
      const bool sends = keeps ? kept - sent > s.lag : ray >= 0 && !open && sent < kept;
      const unsigned sending = __ballot_sync(FULL_MASK, sends);
#pragma unroll 1
      for (int m = 0; m < 2; ++m) {
        const unsigned of_these = sending & 0xffffu << 16 * m;
        if (of_these) {
          const auto place_of = [&](int of) { return (head + count + __popc(of_these & ((1u << of) - 1))) % QUEUE; };
          if (of_these >> lane & 1) {
            const int place = place_of(lane);
            __half* row = queue + place * s.queue_stride();
            own |= 1u << (count + __popc(of_these & lower));
            owners[place] = lane;
            waiting[place] = weights[sent % (s.lag + 1) * 32];
            copy_row(geometry + sent % (s.lag + 1) * geometry_rows, row, GEOMETRY);
            if (s.context) convolve(features, feature_rows, s, taps, sent, kept, row + GEOMETRY);
            ++sent;
          }
          __syncwarp();
          if (LLTM) {
            const __half* encoded = queue + place_of(16 * m + lane % 16) * s.queue_stride() + GEOMETRY;
            const unsigned address = shared_address(encoded);
            if (m == 0)
              states.step<0>(of_these, shared, s, block, address);
            else
              states.step<1>(of_these, shared, s, block, address);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int of = 16 * m + g + i % 2 * 8;
              __half* to = queue + place_of(of) * s.queue_stride() + GEOMETRY + s.channels + i / 2 * 8 + 2 * t;
              const unsigned state = m == 0 ? states.h[0].value[0][i] : states.h[1].value[0][i];
              if (of_these >> of & 1) *reinterpret_cast<unsigned*>(to) = state;
            }
            __syncwarp();
          }
          count += __popc(of_these);
        }

        // Full tiles; in the end less if rays only wait for it.
        const bool goes_on = ray >= 0 && (open || sent < kept), waits = ray >= 0 && !goes_on;
        const unsigned going = __ballot_sync(FULL_MASK, goes_on), behind = __ballot_sync(FULL_MASK, waits && own);
        const bool at_once = m == 1 && (going == 0 || __popc(behind) >= REFILL);
        while (count >= TILE || (at_once && count > 0)) {
          const int place = (head + lane % TILE) % QUEUE;
          float result[OUT / 8][4];
          color_net(shared, s, block, shared_address(queue + place * s.queue_stride()),
                    shared_address(harmonics + owners[place] * SHORT_STRIDE), result);
          __syncwarp();
#pragma unroll
          for (int r = 0; r < 2; ++r) {  // [3] float32, over what the sample's row held
            auto* to = reinterpret_cast<float*>(queue + (head + g + 8 * r) % QUEUE * s.queue_stride()) + 2 * t;
            if (t < 2) to[0] = sigmoid(result[0][2 * r]);
            if (t < 1) to[1] = sigmoid(result[0][2 * r + 1]);
          }
          __syncwarp();
          for (unsigned samples = own & ((1u << TILE) - 1); samples; samples &= samples - 1) {
            const int from = (head + __ffs(samples) - 1) % QUEUE;
            const auto* color = reinterpret_cast<const float*>(queue + from * s.queue_stride());
            const float weight = waiting[from];
#pragma unroll
            for (int i = 0; i < 3; ++i) seen.color[i] += weight * color[i];
          }
          __syncwarp();
          own >>= TILE;
          head = (head + TILE) % QUEUE;
          count = max(count - TILE, 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace nerfkit
