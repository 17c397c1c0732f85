// SPDX-License-Identifier: Apache-2.0

#include "compact_samples/args.h"

#include "common/simd_cpu.h"

namespace nerfkit {
namespace {

constexpr int64_t GRAIN = 64, ROW_GRAIN = 4096;  // rays, and padding rows, per task of a thread, at least

template <class P>
void run(const CompactArguments& in, P* positions, P* t_starts, P* t_ends, int64_t* ray_index) {
  parallel(in.n_rays, GRAIN, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const CompactedRay<P> ray = compacted_ray<P>(in, r);
      for (int64_t n = ray.begin; n < ray.end; ++n) {
        const P start = ((const P*)in.t_starts)[n + ray.shift], stop = ((const P*)in.t_ends)[n + ray.shift];
        for (int i = 0; i < 3; ++i) positions[3 * n + i] = ray.origin[i] + ray.direction[i] * ((start + stop) / P(2));
        t_starts[n] = start;
        t_ends[n] = stop;
        ray_index[n] = r;
      }
    }
  });
  const int64_t used = in.ray_offsets[in.n_rays];
  parallel(in.n_rows - used, ROW_GRAIN, [&](int64_t begin, int64_t end) {
    begin += used, end += used;
    std::fill(positions + 3 * begin, positions + 3 * end, P(0));
    std::fill(t_starts + begin, t_starts + end, P(0));
    std::fill(t_ends + begin, t_ends + end, P(0));
    std::fill(ray_index + begin, ray_index + end, in.last_ray());
  });
}

}  // namespace

Status compact_samples(DType dtype, const CompactArguments& in, void* positions, void* t_starts, void* t_ends,
                       int64_t* ray_index, Stream) {
  if (dtype == DType::f64)
    run(in, (double*)positions, (double*)t_starts, (double*)t_ends, ray_index);
  else
    run(in, (float*)positions, (float*)t_starts, (float*)t_ends, ray_index);
  return 0;
}

}  // namespace nerfkit
