// SPDX-License-Identifier: Apache-2.0

#include "lltm/cpu.h"

namespace nerfkit {
namespace {

constexpr int PARTS = 64;  // at most

// Rays whose units are computed side by side: what one has to wait for, another fills.
constexpr int TOGETHER = REGISTERS / 16;

template <class T>
struct Arrays {
  const T *input, *h0, *c0;
  T *h, *h_n, *c_n, *activated;
  const acc_t<T>*panels, *bias;  // columns as [units / LANES, 3, LANES], those of the gates with GATE_SCALE
};

template <class T>
class Walk {
 public:
  using A = acc_t<T>;

  Walk(const Arrays<T>& arrays, const LltmShape& s)
      : a_(arrays),
        H(s.n_state),
        I(s.n_input),
        in_(GROUP * (H + I)),
        gates_(GROUP * 3 * round_up(H)),
        c_(GROUP * round_up(H)) {}

  HD void begin(int64_t ray, int r) {
    copy(a_.h0 + ray * H, in_.data() + r * (H + I), H);
    copy(a_.c0 + ray * H, c_.data() + r * round_up(H), H);
  }
  HD void end(int64_t ray, int r) {
    copy(in_.data() + r * (H + I), a_.h_n + ray * H, H);
    copy(c_.data() + r * round_up(H), a_.c_n + ray * H, H);
  }
  HD void move(int from, int to) {
    copy(in_.data() + from * (H + I), in_.data() + to * (H + I), H);
    copy(c_.data() + from * round_up(H), c_.data() + to * round_up(H), H);
  }

  HD void foresee(const Slot& slot) {
    prefetch_row(a_.h0, slot.ray, H);
    prefetch_row(a_.c0, slot.ray, H);
    prefetch_row(a_.input, slot.place, I);
    prefetch_row_to_write(a_.h, slot.place, H);
    if (a_.activated) prefetch_row_to_write(a_.activated, slot.place, KEPT_ON_CPU * H);
  }

  HD void step(Slots& slots) {
    const int depth = H + I, columns = 3 * round_up(H);
    for (int r = 0; r < slots.taken; ++r) {
      const int64_t place = slots.at[r].place;
      copy(a_.input + place * I, in_.data() + r * depth + H, I);
      prefetch_row(a_.input, place + 1, I);
    }
    gemm<A>({{in_.data(), depth, 1},
             {a_.panels, LANES, int64_t(depth) * LANES},
             depth,
             {a_.bias, 0},
             {gates_.data(), columns}},
            slots.taken, columns / LANES);
    for (int r = 0; r < slots.taken; r += TOGETHER) units(r, slots);
    for (int r = 0; r < slots.taken; ++r) ++slots.at[r].place;
  }

 private:
  // Of TOGETHER rays, the last of them twice where there are not so many. In two passes: the processor has more packs
  // under way where what one of them waits for is short. What the next sample's units write is fetched pack by pack:
  // all at once would be more than the processor fetches without waiting.
  HD void units(int first, const Slots& slots) {
    constexpr int N = TOGETHER;
    A *gates[N], *c[N], *in[N];
    T *activated[N], *h[N];
    EACH(k, N) {
      const int r = std::min(first + k, slots.taken - 1);
      const int64_t place = slots.at[r].place;
      gates[k] = gates_.data() + 3 * r * round_up(H), c[k] = c_.data() + r * round_up(H),
      in[k] = in_.data() + r * (H + I);
      activated[k] = a_.activated + (a_.activated ? KEPT_ON_CPU * place * H : 0), h[k] = a_.h + place * H;
    }
    const int H = this->H;
    const bool keeps = a_.activated;
    for_units(H, [=](int j, int n) __attribute__((always_inline)) {
      PackGates<A> gate[N];
      Pack<A> c_old[N];  // read before any is written: two rays may be one
      EACH(k, N) gate[k].i = load(gates[k] + 3 * j), gate[k].o = load(gates[k] + 3 * j + LANES);
      EACH(k, N) gate[k].g = load(gates[k] + 3 * j + 2 * LANES), c_old[k] = load(c[k] + j);
      activate_all(gate);
      EACH(k, N) store(gates[k] + 3 * j, gate[k].o);
      EACH(k, N) store(c[k] + j, c_old[k] + gate[k].g * gate[k].i);
      if (!keeps) return;
      EACH(k, N) store(activated[k] + j, gate[k].i, n);
      EACH(k, N) store(activated[k] + H + j, gate[k].o, n);
      EACH(k, N) store(activated[k] + 2 * H + j, gate[k].g, n);
      EACH(k, N) prefetch_to_write(activated[k], KEPT_ON_CPU * H + j);
      EACH(k, N) prefetch_to_write(activated[k], (KEPT_ON_CPU + 1) * H + j);
      EACH(k, N) prefetch_to_write(activated[k], (KEPT_ON_CPU + 2) * H + j);
    });
    for_units(H, [=](int j, int n) __attribute__((always_inline)) {
      Pack<A> t[N], h_new[N];
      EACH(k, N) t[k] = load(c[k] + j);
      hyperbolic_tangents(t);
      EACH(k, N) h_new[k] = t[k] * load(gates[k] + 3 * j);
      EACH(k, N) store(in[k] + j, h_new[k], n);
      EACH(k, N) store(h[k] + j, h_new[k], n);
      EACH(k, N) prefetch_to_write(h[k], H + j);
      if (!keeps) return;
      EACH(k, N) store(activated[k] + 3 * H + j, t[k], n);
      EACH(k, N) prefetch_to_write(activated[k], (KEPT_ON_CPU + 3) * H + j);
    });
  }

  const Arrays<T>& a_;
  const int H, I;
  PackVector<A> in_, gates_, c_;
};

}  // namespace

Status lltm(DType dtype, const void* input, const void* weight, const void* bias, const void* h0, const void* c0,
            void* h, void* h_n, void* c_n, void* activated, void*, void*, void*, const LltmShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    using A = acc_t<T>;
    const int H = s.n_state, depth = H + s.n_input, columns = 3 * round_up(H);
    // Unit `unit` of a gate is the weight's row gate * H + unit.
    auto at = [&](const void* from, int64_t width, int k, int column) {
      const int gate = column / LANES % 3, unit = column / (3 * LANES) * LANES + column % LANES;
      if (unit >= H) return A(0);
      return A(((const T*)from)[(int64_t(gate) * H + unit) * width + k]) * (gate == 2 ? 1 : GATE_SCALE<A>);
    };
    const auto panels = pack_panels<A>(depth, columns, [&](int k, int j) { return at(weight, depth, k, j); });
    const auto start = pack_panels<A>(1, columns, [&](int k, int j) { return at(bias, 1, k, j); });
    const Arrays<T> arrays{(const T*)input, (const T*)h0,  (const T*)c0,  (T*)h,       (T*)h_n,
                           (T*)c_n,         (T*)activated, panels.data(), start.data()};
    for_parts(s, parts_of(s, PARTS), [&](const Part& part, int64_t) {
      Walk<T> walk(arrays, s);
      Slots slots(s, part, false);
      walk_all(walk, slots);
    });
  });
  return 0;
}

}  // namespace nerfkit
