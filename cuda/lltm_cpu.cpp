// SPDX-License-Identifier: Apache-2.0

#include "lltm_cpu.h"

namespace nerfkit {
namespace {

constexpr int PARTS = 64;  // at most

// Rays whose units are computed side by side: what one has to wait for, another fills.
constexpr int TOGETHER = REGISTERS / 16;

#define EACH(k, n) _Pragma("GCC unroll 8") for (int k = 0; k < n; ++k)

// As that of a single number, of N packs at every step: the processor looks ahead no further than one exponential.
template <int N>
HD void exponentials(Pack<float> (&x)[N]) {
  typedef uint32_t Bits __attribute__((vector_size(sizeof(*x))));
  Pack<float> shifted[N], r[N], p[N];
  EACH(k, N) x[k] = x[k] < -87.f ? -87.f : x[k];
  EACH(k, N) x[k] = x[k] > 88.f ? 88.f : x[k];
  EACH(k, N) shifted[k] = x[k] * 1.44269504f + 12582912.f;  // rounds to the nearest integer, in the lowest bits
  EACH(k, N) r[k] = x[k] - (shifted[k] - 12582912.f) * 0.693359375f;
  EACH(k, N) r[k] = r[k] + (shifted[k] - 12582912.f) * 2.12194440e-4f;
  EACH(k, N) p[k] = r[k] * 1.381458376e-3f + 8.368723954e-3f;
  EACH(k, N) p[k] = p[k] * r[k] + 4.166838874e-2f;
  EACH(k, N) p[k] = p[k] * r[k] + 1.666652057e-1f;
  EACH(k, N) p[k] = p[k] * r[k] + 4.999999344e-1f;
  EACH(k, N) p[k] = p[k] * r[k] + 1.f;
  EACH(k, N) p[k] = p[k] * r[k] + 1.f;
  EACH(k, N) x[k] = (Pack<float>)((Bits)p[k] + ((Bits)shifted[k] << 23));  // times 2^n
}

template <int N>
HD void hyperbolic_tangents(Pack<float> (&x)[N]) {
  EACH(k, N) x[k] = 2.f * x[k];
  exponentials(x);
  EACH(k, N) x[k] = 1.f - 2.f / (x[k] + 1.f);
}
template <int N>
HD void hyperbolic_tangents(Pack<double> (&x)[N]) {
  for (auto& pack : x)
    for (int j = 0; j < LANES; ++j) pack[j] = hyperbolic_tangent(double(pack[j]));
}

// As activate() of a single number, of N rays.
template <int N>
HD void activate_all(PackGates<float> (&gate)[N]) {
  Pack<float> x[3 * N];
  EACH(k, N) x[k] = -gate[k].i, x[N + k] = -gate[k].o, x[2 * N + k] = gate[k].g;
  exponentials(x);
  EACH(k, N) gate[k].i = 1.f / (1.f + x[k]);
  EACH(k, N) gate[k].o = 1.f / (1.f + x[N + k]);
  EACH(k, N) gate[k].g = gate[k].g > 0.f ? gate[k].g : x[2 * N + k] - 1.f;
}
template <int N>
HD void activate_all(PackGates<double> (&gates)[N]) {
  for (auto& gate : gates)
    for (int j = 0; j < LANES; ++j) {
      const Gates<double> one = activate(double(gate.i[j]), double(gate.o[j]), double(gate.g[j]));
      gate.i[j] = one.i, gate.o[j] = one.o, gate.g[j] = one.g;
    }
}

template <class T>
struct Arrays {
  const T *input, *h0, *c0;
  T *h, *h_n, *c_n, *activated;
  const acc_t<T>*panels, *bias;  // columns as [units / LANES, 3, LANES]
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
        gates_(GROUP * 3 * padded(H)),
        c_(GROUP * padded(H)) {}

  HD void begin(int64_t ray, int r) {
    copy(a_.h0 + ray * H, in_.data() + r * (H + I), H);
    copy(a_.c0 + ray * H, c_.data() + r * padded(H), H);
  }
  HD void end(int64_t ray, int r) {
    copy(in_.data() + r * (H + I), a_.h_n + ray * H, H);
    copy(c_.data() + r * padded(H), a_.c_n + ray * H, H);
  }
  HD void move(int from, int to) {
    copy(in_.data() + from * (H + I), in_.data() + to * (H + I), H);
    copy(c_.data() + from * padded(H), c_.data() + to * padded(H), H);
  }

  HD void foresee(const Slot& slot) {
    prefetch(a_.h0, slot.ray, H);
    prefetch(a_.c0, slot.ray, H);
    foresee(slot.place);
  }

  HD void step(Slots& slots) {
    const int depth = H + I, columns = 3 * padded(H);
    for (int r = 0; r < slots.taken; ++r) {
      const int64_t place = slots.at[r].place;
      copy(a_.input + place * I, in_.data() + r * depth + H, I);
      foresee(place + 1);
    }
    multiply<A>({{in_.data(), depth, 1},
                 {a_.panels, LANES, int64_t(depth) * LANES},
                 depth,
                 {a_.bias, 0},
                 {gates_.data(), columns}},
                slots.taken, columns / LANES);
    for (int r = 0; r < slots.taken; r += TOGETHER) units(r, slots);
    for (int r = 0; r < slots.taken; ++r) ++slots.at[r].place;
  }

 private:
  HD void foresee(int64_t place) {
    prefetch(a_.input, place, I);
    prefetch<T, 1>(a_.h, place, H);
    if (a_.activated) prefetch<T, 1>(a_.activated, place, 3 * H);
  }

  // Of TOGETHER rays, the last of them twice where there are not so many. In two passes: the processor has more packs under
  // way where what one of them waits for is short.
  HD void units(int first, const Slots& slots) {
    constexpr int N = TOGETHER;
    A *gates[N], *c[N], *in[N];
    T *activated[N], *h[N];
    EACH(k, N) {
      const int r = std::min(first + k, slots.taken - 1);
      const int64_t place = slots.at[r].place;
      gates[k] = gates_.data() + 3 * r * padded(H), c[k] = c_.data() + r * padded(H), in[k] = in_.data() + r * (H + I);
      activated[k] = a_.activated + (a_.activated ? 3 * place * H : 0), h[k] = a_.h + place * H;
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
    });
    for_units(H, [=](int j, int n) __attribute__((always_inline)) {
      Pack<A> h_new[N];
      EACH(k, N) h_new[k] = load(c[k] + j);
      hyperbolic_tangents(h_new);
      EACH(k, N) h_new[k] *= load(gates[k] + 3 * j);
      EACH(k, N) store(in[k] + j, h_new[k], n);
      EACH(k, N) store(h[k] + j, h_new[k], n);
    });
  }

  const Arrays<T>& a_;
  const int H, I;
  std::vector<A> in_, gates_, c_;
};

#undef EACH

}  // namespace

Status lltm(DType dtype, const void* input, const void* weight, const void* bias, const void* h0, const void* c0, void* h,
            void* h_n, void* c_n, void* activated, void*, void*, void*, const LltmShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    using A = acc_t<T>;
    const int H = s.n_state, depth = H + s.n_input, columns = 3 * padded(H);
    // Unit `unit` of a gate is the weight's row gate * H + unit.
    auto at = [&](const void* from, int64_t width, int k, int column) {
      const int gate = column / LANES % 3, unit = column / (3 * LANES) * LANES + column % LANES;
      return unit < H ? A(((const T*)from)[(int64_t(gate) * H + unit) * width + k]) : A(0);
    };
    const auto panels = in_panels<A>(depth, columns, [&](int k, int j) { return at(weight, depth, k, j); });
    const auto start = in_panels<A>(1, columns, [&](int k, int j) { return at(bias, 1, k, j); });
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
