// SPDX-License-Identifier: Apache-2.0
// The rows of a few steps gather in a block that stays in the first cache, for the products that give the gradients of
// weight and input.

#include "lltm_cpu.h"

namespace nerfkit {
namespace {

constexpr int PARTS = 32;  // at most: each has sums of its own

// As activate_bwd_at() of a single number: of gates before activation, from the gradients of h and c.
template <class A>
HD PackGates<A> activate_bwd_all(const PackGates<A>& gate, Pack<A> h, Pack<A> grad_h, Pack<A>& grad_c) {
  const Pack<A> t = gate.o > 0 ? h / gate.o : Pack<A>{};  // the hyperbolic tangent of c; h is zero too where o is
  grad_c += grad_h * gate.o * (1 - t * t);
  const Pack<A> slope = gate.g > 0 ? repeated(A(1)) : gate.g + 1;
  return {grad_c * gate.g * gate.i * (1 - gate.i), grad_h * t * gate.o * (1 - gate.o), grad_c * gate.i * slope};
}

template <class T>
struct Gradients {
  const T *h, *h_n, *c_n;
  const T *input, *h0, *h_all, *activated;
  T *input_out, *h0_out, *c0_out;
  const acc_t<T>* panels;  // columns as [padded H + padded I]
};

// Over the samples of a part.
template <class A>
struct Sums {
  std::vector<A> weight, bias;  // [3H padded to GROUP, H + I padded], [3H]
};

template <class T>
class WalkBack {
 public:
  using A = acc_t<T>;

  WalkBack(const Gradients<T>& arrays, const LltmShape& s, Sums<A>& sums)
      : a_(arrays),
        sums_(sums),
        H(s.n_state),
        I(s.n_input),
        grad_h_(GROUP * padded(H)),
        grad_c_(GROUP * padded(H)),
        grad_gates_(BLOCK * 3 * H + GROUP),
        in_(BLOCK * padded(H + I)),
        grad_input_(BLOCK * padded(I)) {
    sums.weight.resize(int64_t(padded(3 * H, GROUP)) * padded(H + I));
    sums.bias.resize(3 * H);
  }

  HD void begin(int64_t ray, int r) {
    copy(a_.h_n + ray * H, grad_h_.data() + r * padded(H), H);
    copy(a_.c_n + ray * H, grad_c_.data() + r * padded(H), H);
  }
  HD void end(int64_t ray, int r) {
    copy(grad_h_.data() + r * padded(H), a_.h0_out + ray * H, H);
    copy(grad_c_.data() + r * padded(H), a_.c0_out + ray * H, H);
  }
  HD void move(int from, int to) {
    copy(grad_h_.data() + from * padded(H), grad_h_.data() + to * padded(H), H);
    copy(grad_c_.data() + from * padded(H), grad_c_.data() + to * padded(H), H);
  }

  HD void foresee(const Slot& slot) {
    prefetch(a_.h_n, slot.ray, H);
    prefetch(a_.c_n, slot.ray, H);
    prefetch(a_.h0, slot.ray, H);
    prefetch(a_.h_all, slot.place, H);
    foresee(slot.place);
  }

  HD void step(Slots& slots) {
    for (int r = 0; r < slots.taken; ++r) {
      Slot& slot = slots.at[r];
      const int64_t place = slot.place--;
      foresee(slot.place);
      A* in = in_.data() + (rows_ + r) * padded(H + I);
      copy(slot.place == slot.end ? a_.h0 + slot.ray * H : a_.h_all + slot.place * H, in, H);
      copy(a_.input + place * I, in + H, I);
      place_[rows_ + r] = place;
      units(r, place);
    }
    multiply<A>({{grad_gates_.data() + rows_ * 3 * H, 3 * H, 1},
                 {a_.panels, LANES, int64_t(3) * H * LANES},
                 3 * H,
                 {},
                 {grad_h_.data(), padded(H)}},
                slots.taken, padded(H) / LANES);
    rows_ += slots.taken;
    if (rows_ + GROUP > BLOCK) finish_block();
  }

  // Gradients of the block's input, and of the weight.
  HD void finish_block() {
    const int width = padded(H + I);
    multiply<A>({{grad_gates_.data(), 3 * H, 1},
                 {a_.panels + int64_t(padded(H)) * 3 * H, LANES, int64_t(3) * H * LANES},
                 3 * H,
                 {},
                 {grad_input_.data(), padded(I)}},
                rows_, padded(I) / LANES);
    for (int r = 0; r < rows_; ++r) copy(grad_input_.data() + r * padded(I), a_.input_out + place_[r] * I, I);
    for_units(3 * H, [=](int j, int n) __attribute__((always_inline)) {
      Pack<A> sum = load(sums_.bias.data() + j, n);
      for (int r = 0; r < rows_; ++r) sum += load(grad_gates_.data() + r * 3 * H + j, n);
      store(sums_.bias.data() + j, sum, n);
    });
    A* sums = sums_.weight.data();
    multiply<A>({{grad_gates_.data(), 1, 3 * H}, {in_.data(), width, LANES}, rows_, {sums, width}, {sums, width}}, 3 * H,
                width / LANES);
    rows_ = 0;
  }

 private:
  HD void foresee(int64_t place) {
    prefetch(a_.h, place, H);
    prefetch(a_.activated, place, 3 * H);
    prefetch(a_.h_all, place - 1, H);
    prefetch(a_.input, place, I);
  }

  HD void units(int r, int64_t place) {
    const T *activated = a_.activated + 3 * place * H, *h = a_.h_all + place * H, *grad_out = a_.h + place * H;
    A *grad_h = grad_h_.data() + r * padded(H), *grad_c = grad_c_.data() + r * padded(H);
    A* grad_gates = grad_gates_.data() + (rows_ + r) * 3 * H;
    const int H = this->H;
    for_units(H, [=](int j, int n) __attribute__((always_inline)) {
      const PackGates<A> gate{load(activated + j, n), load(activated + H + j, n), load(activated + 2 * H + j, n)};
      Pack<A> c = load(grad_c + j);
      const auto grad = activate_bwd_all<A>(gate, load(h + j, n), load(grad_h + j) + load(grad_out + j, n), c);
      store(grad_c + j, c);
      store(grad_gates + j, grad.i, n);
      store(grad_gates + H + j, grad.o, n);
      store(grad_gates + 2 * H + j, grad.g, n);
    });
  }

  const Gradients<T>& a_;
  Sums<A>& sums_;
  const int H, I;
  std::vector<A> grad_h_, grad_c_, grad_gates_, in_, grad_input_;
  int64_t place_[BLOCK];
  int rows_ = 0;  // of the block
};

// The parts' sums in their order, rows begin .. end - 1 of the weight.
template <class T>
void add_up(const std::vector<Sums<acc_t<T>>>& parts, T* grad_weight, int64_t begin, int64_t end, int width) {
  using A = acc_t<T>;
  std::vector<A> sum(padded(width));
  for (int64_t row = begin; row < end; ++row) {
    std::fill(sum.begin(), sum.end(), A(0));
    for (const auto& part : parts)
      for (int i = 0; i < padded(width); i += LANES)
        store(&sum[i], load(&sum[i]) + load(&part.weight[row * padded(width) + i]));
    copy(sum.data(), grad_weight + row * width, width);
  }
}

}  // namespace

Status lltm_cpu_bwd(DType dtype, const void* grad_h, const void* grad_h_n, const void* grad_c_n, const void* input,
                    const void* weight, const void* h0, const void* h, const void* activated, void* grad_input,
                    void* grad_weight, void* grad_bias, void* grad_h0, void* grad_c0, const LltmShape& s) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    using A = acc_t<T>;
    const int H = s.n_state, I = s.n_input, width = H + I;
    const auto panels = in_panels<A>(3 * H, padded(H) + padded(I), [&](int k, int j) {
      const int column = j < padded(H) ? j : j - padded(H) + H;
      return column < (j < padded(H) ? H : width) ? A(((const T*)weight)[int64_t(k) * width + column]) : A(0);
    });
    const Gradients<T> arrays{(const T*)grad_h, (const T*)grad_h_n,  (const T*)grad_c_n, (const T*)input,
                              (const T*)h0,     (const T*)h,         (const T*)activated, (T*)grad_input,
                              (T*)grad_h0,      (T*)grad_c0,         panels.data()};
    std::vector<Sums<A>> sums(parts_of(s, PARTS));
    for_parts(s, sums.size(), [&](const Part& part, int64_t i) {
      WalkBack<T> walk(arrays, s, sums[i]);
      Slots slots(s, part, true);
      walk_all(walk, slots);
      walk.finish_block();
    });
    parallel(3 * H, GROUP, [&](int64_t begin, int64_t end) {
      add_up<T>(sums, (T*)grad_weight, begin, end, width);
      for (int64_t row = begin; row < end; ++row) {
        A sum = 0;
        for (const auto& part : sums) sum += part.bias[row];
        ((T*)grad_bias)[row] = T(sum);
      }
    });
  });
  return 0;
}

}  // namespace nerfkit
