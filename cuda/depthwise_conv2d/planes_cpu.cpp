// SPDX-License-Identifier: Apache-2.0
// Planes of float32 and float64, without a stride and with rows of taps one apart: no frame. Outputs are summed in the
// order in which they lie in memory; what the packs at the edges would take from beyond a row is not read (AVX-512 and
// AVX2).

#include "depthwise_conv2d/parts.h"
#include "depthwise_conv2d/sums.h"

namespace nerfkit {
namespace {

constexpr int64_t STRIPS = 256;  // what is dealt out to threads, if there are as many
constexpr int LOW = 8;           // rows of a strip at least: as many are summed at once

template <class T>
struct PlanesInPlace {
  const T* from;
  T* to;
  const Pictures& s;
  const Line y, x;
  const PartWeights<T>& weights;
  const int64_t n_taps = int64_t(y.kernel) * x.kernel;
  const int packs = int((int64_t(x.out) + LANES - 1) / LANES);
  const int over = packs > 1 ? int(int64_t(packs) * LANES - x.out) : 0;
  const bool fetches = s.bytes<T>() > CACHED_BY_PLANE;
  const bool past_caches = rows_go_past_caches(to, x.out, PACKS_AT_ONCE<T, 8>, s.bytes<T>());
  const PackVector<T> zeros = PackVector<T>(x.source);
  std::vector<int64_t> offset = std::vector<int64_t>(x.kernel);

  void run() {
    for (int v = 0; v < x.kernel; ++v) offset[v] = int64_t(v) * x.dilation;
    const int64_t planes = s.batch * s.channels, groups = std::max(1, y.out / LOW);
    const int64_t strips = std::min(groups, STRIPS / std::max<int64_t>(1, planes) + 1);
    const auto begin_of = [&](int64_t strip) { return strip < strips ? int(groups * strip / strips) * LOW : y.out; };
    parallel(planes * strips, 1, [&](int64_t begin, int64_t end) {
      PackVector<T> weight((n_taps + 1) * LANES);
      std::vector<const T*> rows;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t plane = i / strips, strip = i % strips;
        const T* taps = weights.values.data() + plane % s.channels * (n_taps + 1);
        for (int64_t k = 0; k <= n_taps; ++k) store(weight.data() + k * LANES, broadcast(taps[k]));
        sum_strip(plane, begin_of(strip), begin_of(strip + 1) - begin_of(strip), weight.data(), rows);
      }
      if (past_caches) streaming_fence();
    });
  }

  // `height` rows of outputs from `row` on.
  void sum_strip(int64_t plane, int row, int height, const T* weight, std::vector<const T*>& rows) const {
    const T* const source = from + plane * y.source * x.source;
    rows.resize(pointers_of(y, height));
    for (int i = 0; i < int(rows.size()); ++i) {
      const int at = y.value_at(y.start(row) + i);
      rows[i] = (at < 0 ? zeros.data() : source + int64_t(at) * x.source) - x.lead;
    }
    const Inputs<T> inputs{rows.data(), 1, 0, LANES, offset.data(), y.kernel, x.kernel, 0, x.kernel};
    const auto sum = [&](auto k, auto r, int first, int groups) {
      const int64_t next = y.start(row + first + r) + y.kernel - 1;  // row of inputs that is not read before
      const Outputs<T> out{to + (plane * y.out + row + first) * x.out,
                           x.out,
                           LANES,
                           std::min(LANES, x.out),
                           fetches,
                           source + next * x.source,
                           x.source,
                           LANES,
                           past_caches,
                           nullptr,
                           r * int64_t(x.out)};
      for (int group = 0; group < groups; ++group)
        sum_rows<k, r>(inputs.below(first + group * r), weight, out.below(group * r));
    };
    if (height < 4) return sum(Int<0>(), Int<1>(), 0, height);
    with_height(y.kernel,
                [&](auto k) { by_group(height, [&](auto r, int first, int groups) { sum(k, r, first, groups); }); });
  }

  // R rows.
  template <int K, int R>
  void sum_rows(const Inputs<T>& in, const T* weight, const Outputs<T>& out) const {
    const int line = past_caches ? PACKS_PER_LINE<T> : 1;  // packs: what goes past the caches are whole lines
    const auto [first, last] = x.whole(0, x.out);
    const int begin = int(std::min<int64_t>(packs, (int64_t(first) + line * LANES - 1) / (line * LANES) * line));
    const bool to_end = last == x.out && last - LANES >= first;
    const int end = to_end ? packs : std::max(begin, last / (line * LANES) * line);
    auto edge = [&](int p) {
      auto to = out;
      to.past_caches = past_caches && line == 1;
      correlate<T, K, 1, R, 1, true>(in, weight, to, {p, p + 1, 1, p + 1 == packs ? over : 0, -x.lead, x.source});
    };
    for (int p = 0; p < begin; ++p) edge(p);
    correlate_packs<T, K, 1, R>(in, weight, out, {begin, end, 1, end == packs ? over : 0});
    for (int p = end; p < packs; ++p) edge(p);
  }
};

}  // namespace

void depthwise_conv2d_planes(DType dtype, const void* from, const void* weight, const void* bias, void* to,
                             const Conv2dShape& shape, bool backward) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (HAS_MASKED_LOAD && std::is_same_v<T, acc_t<T>>) {
      const Pictures s(shape);
      const auto ys = backward ? backward_parts(s.y) : forward_parts(s.y);
      const auto xs = backward ? backward_parts(s.x) : forward_parts(s.x);
      if (ys.empty() || xs.empty()) return;
      const PartWeights<T> weights((const T*)weight, (const T*)bias, s, ys, xs);
      PlanesInPlace<T>{(const T*)from, (T*)to, s, ys[0].line, xs[0].line, weights}.run();
    }
  });
}

}  // namespace nerfkit
