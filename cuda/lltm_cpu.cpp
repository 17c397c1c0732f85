// SPDX-License-Identifier: Apache-2.0

#include "lltm_cpu.h"

namespace nerfkit {
namespace {

constexpr int PARTS = 64;  // at most

// As that of a single number. On numbers one by one the compiler would make cases of what the bounds give.
HD Pack<float> exponentials(Pack<float> x) {
  typedef uint32_t Bits __attribute__((vector_size(sizeof(x))));
  x = x < -87.f ? -87.f : x;
  x = x > 88.f ? 88.f : x;
  const Pack<float> shifted = x * 1.44269504f + 12582912.f;  // rounds to the nearest integer, in the lowest bits
  const Pack<float> n = shifted - 12582912.f;
  const Pack<float> r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Pack<float> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r + 1.f;
  p = p * r + 1.f;
  return (Pack<float>)((Bits)p + ((Bits)shifted << 23));  // times 2^n
}
HD Pack<float> hyperbolic_tangents(Pack<float> x) { return 1.f - 2.f / (exponentials(2.f * x) + 1.f); }
HD Pack<double> hyperbolic_tangents(Pack<double> x) {
  for (int j = 0; j < LANES; ++j) x[j] = hyperbolic_tangent(double(x[j]));
  return x;
}

HD void activate_all(Pack<float>& i, Pack<float>& o, Pack<float>& g) {
  i = 1.f / (1.f + exponentials(-i));
  o = 1.f / (1.f + exponentials(-o));
  g = g > 0.f ? g : exponentials(g) - 1.f;
}
HD void activate_all(Pack<double>& i, Pack<double>& o, Pack<double>& g) {
  for (int j = 0; j < LANES; ++j) {
    const Gates<double> gate = activate(double(i[j]), double(o[j]), double(g[j]));
    i[j] = gate.i, o[j] = gate.o, g[j] = gate.g;
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
    multiply_({in_.data(), depth, 1, a_.panels, LANES, int64_t(depth) * LANES, depth, a_.bias, 0, gates_.data(), columns},
              slots.taken, columns / LANES);
    for (int r = 0; r < slots.taken; ++r) units(r, slots.at[r].place++);
  }

 private:
  HD void foresee(int64_t place) {
    prefetch(a_.input, place, I);
    prefetch<T, 1>(a_.h, place, H);
    if (a_.activated) prefetch<T, 1>(a_.activated, place, 3 * H);
  }

  // In two passes: the processor has more packs under way where what one of them waits for is short.
  HD void units(int r, int64_t place) {
    A *gates = gates_.data() + 3 * r * padded(H), *c = c_.data() + r * padded(H);
    T* activated = a_.activated ? a_.activated + 3 * place * H : nullptr;
    const int H = this->H;
    for_units(H, [=](int j, int n) __attribute__((always_inline)) {
      Pack<A> i = load(gates + 3 * j), o = load(gates + 3 * j + LANES), g = load(gates + 3 * j + 2 * LANES);
      activate_all(i, o, g);
      store(gates + 3 * j, o);
      store(c + j, load(c + j) + g * i);
      if (!activated) return;
      store(activated + j, i, n);
      store(activated + H + j, o, n);
      store(activated + 2 * H + j, g, n);
    });
    A* in = in_.data() + r * (H + I);
    T* h = a_.h + place * H;
    for_units(H, [=](int j, int n) __attribute__((always_inline)) {
      const Pack<A> h_new = hyperbolic_tangents(load(c + j)) * load(gates + 3 * j);
      store(in + j, h_new, n);
      store(h + j, h_new, n);
    });
  }

  const Arrays<T>& a_;
  const Multiply<A> multiply_ = multiply_here<A>();
  const int H, I;
  std::vector<A> in_, gates_, c_;
};

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
