// SPDX-License-Identifier: Apache-2.0

#include "lltm/cpu.h"

namespace nerfkit {
namespace {

constexpr int MAX_RANGES = 64;

// Rays whose units are computed in turns, to fill the latency of each other's instructions.
constexpr int INTERLEAVED = REGISTERS / 16;

template <class T>
struct CpuForward {
  const T* input;          // [N, I]
  const T* h0;             // [R, H]
  const T* c0;             // [R, H]
  T* h;                    // [N, H]
  T* h_n;                  // [R, H]
  T* c_n;                  // [R, H]
  T* activated;            // [N, SAVED_ON_CPU, H]: i, o, g, tanh(c'); or null
  T* saved_h0;             // [R, H], a copy of h0, which the caller may change before the backward pass; or null
  const acc_t<T>* panels;  // [H + I, columns], columns as [units / LANES, 3, LANES], in panels of LANES
  const acc_t<T>* bias;    // [columns]; as those of the panels, columns of the gates i and o are times GATE_SCALE
};

template <class T>
class ForwardPass {
 public:
  using A = acc_t<T>;

  ForwardPass(const CpuForward<T>& arrays, const LltmShape& s)
      : a_(arrays),
        H(s.n_state),
        I(s.n_input),
        in_(GROUP * (H + I)),
        gates_(GROUP * 3 * round_up(H)),
        c_(GROUP * round_up(H)) {}

  HD void begin(int64_t ray, int r) {
    copy(a_.h0 + ray * H, in_.data() + r * (H + I), H);
    copy(a_.c0 + ray * H, c_.data() + r * round_up(H), H);
    if (a_.saved_h0) copy(a_.h0 + ray * H, a_.saved_h0 + ray * H, H);
  }
  HD void end(int64_t ray, int r) {
    copy(in_.data() + r * (H + I), a_.h_n + ray * H, H);
    copy(c_.data() + r * round_up(H), a_.c_n + ray * H, H);
  }
  HD void move(int from, int to) {
    copy(in_.data() + from * (H + I), in_.data() + to * (H + I), H);
    copy(c_.data() + from * round_up(H), c_.data() + to * round_up(H), H);
  }

  HD void prefetch_ray(const Slot& slot) {
    prefetch_row(a_.h0, slot.ray, H);
    prefetch_row(a_.c0, slot.ray, H);
    prefetch_row(a_.input, slot.sample, I);
    prefetch_row_to_write(a_.h, slot.sample, H);
    if (a_.activated) prefetch_row_to_write(a_.activated, slot.sample, SAVED_ON_CPU * H);
  }

  HD void step(Slots& slots) {
    const int depth = H + I, columns = 3 * round_up(H);
    for (int r = 0; r < slots.taken; ++r) {
      const int64_t sample = slots.at[r].sample;
      copy(a_.input + sample * I, in_.data() + r * depth + H, I);
      prefetch_row(a_.input, sample + 1, I);
    }
    gemm<A>({{in_.data(), depth, 1},
             {a_.panels, LANES, int64_t(depth) * LANES},
             depth,
             {a_.bias, 0},
             {gates_.data(), columns}},
            slots.taken, columns / LANES);
    for (int r = 0; r < slots.taken; r += INTERLEAVED) units(r, slots);
    for (int r = 0; r < slots.taken; ++r) ++slots.at[r].sample;
  }

 private:
  // Of INTERLEAVED rays, the last of them twice where there are not so many. In two passes: the processor has more
  // packs under way where what one of them waits for is short. What the next sample's units write is fetched pack by
  // pack: all at once would be more than the processor fetches without waiting.
  HD void units(int first, const Slots& slots) {
    constexpr int N = INTERLEAVED;
    A *gates[N], *c[N], *in[N];
    T *activated[N], *h[N];
    EACH(k, N) {
      const int r = std::min(first + k, slots.taken - 1);
      const int64_t sample = slots.at[r].sample;
      gates[k] = gates_.data() + 3 * r * round_up(H), c[k] = c_.data() + r * round_up(H),
      in[k] = in_.data() + r * (H + I);
      activated[k] = a_.activated + (a_.activated ? SAVED_ON_CPU * sample * H : 0), h[k] = a_.h + sample * H;
    }
    const int H = this->H;
    const bool saves = a_.activated;
    for_units(H, [=](int j, int n) __attribute__((always_inline)) {
      SimdGates<A> gate[N];
      SimdVec<A> c_old[N];  // read before any is written: two rays may be one
      EACH(k, N) gate[k].i = load(gates[k] + 3 * j), gate[k].o = load(gates[k] + 3 * j + LANES);
      EACH(k, N) gate[k].g = load(gates[k] + 3 * j + 2 * LANES), c_old[k] = load(c[k] + j);
      activate_all(gate);
      EACH(k, N) store(gates[k] + 3 * j, gate[k].o);
      EACH(k, N) store(c[k] + j, c_old[k] + gate[k].g * gate[k].i);
      if (!saves) return;
      EACH(k, N) store(activated[k] + j, gate[k].i, n);
      EACH(k, N) store(activated[k] + H + j, gate[k].o, n);
      EACH(k, N) store(activated[k] + 2 * H + j, gate[k].g, n);
      EACH(k, N) prefetch_to_write(activated[k], SAVED_ON_CPU * H + j);
      EACH(k, N) prefetch_to_write(activated[k], (SAVED_ON_CPU + 1) * H + j);
      EACH(k, N) prefetch_to_write(activated[k], (SAVED_ON_CPU + 2) * H + j);
    });
    for_units(H, [=](int j, int n) __attribute__((always_inline)) {
      SimdVec<A> t[N], h_new[N];
      EACH(k, N) t[k] = load(c[k] + j);
      hyperbolic_tangents(t);
      EACH(k, N) h_new[k] = t[k] * load(gates[k] + 3 * j);
      EACH(k, N) store(in[k] + j, h_new[k], n);
      EACH(k, N) store(h[k] + j, h_new[k], n);
      EACH(k, N) prefetch_to_write(h[k], H + j);
      if (!saves) return;
      EACH(k, N) store(activated[k] + 3 * H + j, t[k], n);
      EACH(k, N) prefetch_to_write(activated[k], (SAVED_ON_CPU + 3) * H + j);
    });
  }

  const CpuForward<T>& a_;
  const int H, I;
  PackVector<A> in_, gates_, c_;
};

}  // namespace

Status lltm(DType dtype, const LltmForward<void>& arguments, Stream) {
  const LltmShape& s = arguments.shape;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    using A = acc_t<T>;
    const LltmForward<T> a = arguments.as<T>();
    const int H = s.n_state, depth = H + s.n_input, columns = 3 * round_up(H);
    // Unit `unit` of a gate is the weight's row gate * H + unit.
    auto at = [&](const T* from, int64_t width, int k, int column) {
      const int gate = column / LANES % 3, unit = column / (3 * LANES) * LANES + column % LANES;
      if (unit >= H) return A(0);
      return A(from[(int64_t(gate) * H + unit) * width + k]) * (gate == 2 ? 1 : GATE_SCALE<A>);
    };
    const auto panels = pack_panels<A>(depth, columns, [&](int k, int j) { return at(a.weight, depth, k, j); });
    const auto start = pack_panels<A>(1, columns, [&](int k, int j) { return at(a.bias, 1, k, j); });
    T* saved_h0 = a.workspace ? a.workspace + SAVED_ON_CPU * s.n_samples * H : nullptr;
    const CpuForward<T> arrays{a.input, a.h0,        a.c0,     a.h,           a.h_n,
                               a.c_n,   a.workspace, saved_h0, panels.data(), start.data()};
    for_ranges(s, range_count(s, MAX_RANGES), [&](const RayRange& range, int64_t) {
      ForwardPass<T> pass(arrays, s);
      Slots slots(s, range, false);
      run_all(pass, slots);
    });
  });
  return 0;
}

}  // namespace nerfkit
