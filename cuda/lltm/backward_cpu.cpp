// SPDX-License-Identifier: Apache-2.0
// The rows of a few steps gather in a block that stays in the L1 cache, for the product that gives the gradient of
// the weight.

#include "lltm/cpu.h"

namespace nerfkit {
namespace {

constexpr int MAX_RANGES = 32;  // each has partial sums of its own

template <class T>
struct CpuBackward {
  const T* grad_h;         // [N, H]
  const T* grad_h_n;       // [R, H]
  const T* grad_c_n;       // [R, H]
  const T* input;          // [N, I]
  const T* activated;      // [N, SAVED_ON_CPU, H]: i, o, g, tanh(c')
  const T* h0;             // [R, H]
  T* grad_input;           // [N, I]
  T* grad_h0;              // [R, H]
  T* grad_c0;              // [R, H]
  const acc_t<T>* panels;  // [3H, columns], columns as [padded H + padded I], in panels of LANES
};

// Over the samples of a range of rays.
template <class A>
struct PartialSums {
  PackVector<A> weight, bias;  // [3H padded to GROUP, H + I padded], [3H]
};

template <class T>
class BackwardPass {
 public:
  using A = acc_t<T>;

  BackwardPass(const CpuBackward<T>& arrays, const LltmShape& s, PartialSums<A>& sums)
      : a_(arrays),
        sums_(sums),
        H(s.n_state),
        I(s.n_input),
        columns_(round_up(H) + round_up(I)),
        grad_in_(GROUP * columns_),
        grad_c_(GROUP * round_up(H)),
        grad_gates_(BLOCK * 3 * H + GROUP),
        in_(BLOCK * round_up(H + I)) {
    sums.weight.resize(int64_t(round_up(3 * H, GROUP)) * round_up(H + I));
    sums.bias.resize(3 * H);
  }

  HD void begin(int64_t ray, int r) {
    copy(a_.grad_h_n + ray * H, grad_in_.data() + r * columns_, H);
    copy(a_.grad_c_n + ray * H, grad_c_.data() + r * round_up(H), H);
  }
  HD void end(int64_t ray, int r) {
    copy(grad_in_.data() + r * columns_, a_.grad_h0 + ray * H, H);
    copy(grad_c_.data() + r * round_up(H), a_.grad_c0 + ray * H, H);
  }
  HD void move(int from, int to) {
    copy(grad_in_.data() + from * columns_, grad_in_.data() + to * columns_, H);
    copy(grad_c_.data() + from * round_up(H), grad_c_.data() + to * round_up(H), H);
  }

  HD void prefetch_ray(const Slot& slot) {
    prefetch_row(a_.grad_h_n, slot.ray, H);
    prefetch_row(a_.grad_c_n, slot.ray, H);
    prefetch_row(a_.h0, slot.ray, H);
    prefetch_row(a_.grad_h, slot.sample, H);
    prefetch_row(a_.activated, slot.sample, SAVED_ON_CPU * H);
    prefetch_row(a_.activated, slot.sample - 1, SAVED_ON_CPU * H);
    prefetch_row(a_.input, slot.sample, I);
  }

  HD void step(Slots& slots) {
    for (int r = 0; r < slots.taken; ++r) {
      Slot& slot = slots.at[r];
      const int64_t sample = slot.sample--;
      prefetch_row(a_.input, slot.sample, I);
      A* in = in_.data() + (rows_ + r) * round_up(H + I);
      if (slot.sample == slot.end)
        copy(a_.h0 + slot.ray * H, in, H);
      else
        state_after(slot.sample, in);
      copy(a_.input + sample * I, in + H, I);
      units(r, sample);
    }
    gemm<A>({{grad_gates_.data() + rows_ * 3 * H, 3 * H, 1},
             {a_.panels, LANES, int64_t(3) * H * LANES},
             3 * H,
             {},
             {grad_in_.data(), columns_}},
            slots.taken, columns_ / LANES);
    for (int r = 0; r < slots.taken; ++r)
      copy(grad_in_.data() + r * columns_ + round_up(H), a_.grad_input + (slots.at[r].sample + 1) * I, I);
    rows_ += slots.taken;
    if (rows_ + GROUP > BLOCK) finish_block();
  }

  // Gradients of the weight and the bias, of the rows in the block.
  HD void finish_block() {
    const int width = round_up(H + I);
    for_units(3 * H, [=](int j, int n) __attribute__((always_inline)) {
      SimdVec<A> sum = load(sums_.bias.data() + j, n);
      for (int r = 0; r < rows_; ++r) sum += load(grad_gates_.data() + r * 3 * H + j, n);
      store(sums_.bias.data() + j, sum, n);
    });
    A* sums = sums_.weight.data();
    gemm<A>({{grad_gates_.data(), 1, 3 * H}, {in_.data(), width, LANES}, rows_, {sums, width}, {sums, width}}, 3 * H,
            width / LANES);
    rows_ = 0;
  }

 private:
  HD void state_after(int64_t sample, A* to) {
    const T* activated = a_.activated + SAVED_ON_CPU * sample * H;
    const int H = this->H;
    for_units(H, [=](int j, int n) __attribute__((always_inline)) {
      store(to + j, load(activated + 3 * H + j, n) * load(activated + H + j, n), n);
    });
  }

  // What the next two steps read is fetched pack by pack: all at once would be more than the processor fetches without
  // waiting.
  HD void units(int r, int64_t sample) {
    const T *activated = a_.activated + SAVED_ON_CPU * sample * H, *grad_out = a_.grad_h + sample * H;
    A *grad_h = grad_in_.data() + r * columns_, *grad_c = grad_c_.data() + r * round_up(H);
    A* grad_gates = grad_gates_.data() + (rows_ + r) * 3 * H;
    const int H = this->H;
    for_units(H, [=](int j, int n) __attribute__((always_inline)) {
      const SimdGates<A> gate{load(activated + j, n), load(activated + H + j, n), load(activated + 2 * H + j, n)};
      SimdVec<A> c = load(grad_c + j);
      const SimdVec<A> t = load(activated + 3 * H + j, n);
      const auto grad = activate_bwd_all<A>(gate, t, load(grad_h + j) + load(grad_out + j, n), c);
      store(grad_c + j, c);
      store(grad_gates + j, grad.i, n);
      store(grad_gates + H + j, grad.o, n);
      store(grad_gates + 2 * H + j, grad.g, n);
      prefetch(activated, j - 4 * H), prefetch(activated, j - 2 * H), prefetch(grad_out, j - H);
      prefetch(activated, j - 7 * H), prefetch(activated, j - 5 * H);  // of the state
    });
  }

  const CpuBackward<T>& a_;
  PartialSums<A>& sums_;
  const int H, I, columns_;
  PackVector<A> grad_in_, grad_c_, grad_gates_, in_;  // grad_in_ [GROUP, padded H + padded I]
  int rows_ = 0;                                      // of the block
};

// The partial sums in their order, rows begin .. end - 1 of the weight.
template <class T>
void add_up(const std::vector<PartialSums<acc_t<T>>>& partials, T* grad_weight, int64_t begin, int64_t end, int width) {
  using A = acc_t<T>;
  PackVector<A> sum(round_up(width));
  for (int64_t row = begin; row < end; ++row) {
    std::fill(sum.begin(), sum.end(), A(0));
    for (const auto& partial : partials)
      for (int i = 0; i < round_up(width); i += LANES)
        store(&sum[i], load(&sum[i]) + load(&partial.weight[row * round_up(width) + i]));
    copy(sum.data(), grad_weight + row * width, width);
  }
}

}  // namespace

Status lltm_bwd(DType dtype, const LltmBackward<void>& arguments, Stream) {
  const LltmShape& s = arguments.shape;
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    using A = acc_t<T>;
    const LltmBackward<T> a = arguments.as<T>();
    const int H = s.n_state, I = s.n_input, width = H + I;
    const auto panels = pack_panels<A>(3 * H, round_up(H) + round_up(I), [&](int k, int j) {
      const int column = j < round_up(H) ? j : j - round_up(H) + H;
      return column < (j < round_up(H) ? H : width) ? A(a.weight[int64_t(k) * width + column]) : A(0);
    });
    const T* h0 = a.workspace + SAVED_ON_CPU * s.n_samples * H;
    const CpuBackward<T> arrays{a.grad_h, a.grad_h_n,   a.grad_c_n, a.input,   a.workspace,
                                h0,       a.grad_input, a.grad_h0,  a.grad_c0, panels.data()};
    std::vector<PartialSums<A>> sums(range_count(s, MAX_RANGES));
    for_ranges(s, sums.size(), [&](const RayRange& range, int64_t i) {
      BackwardPass<T> pass(arrays, s, sums[i]);
      Slots slots(s, range, true);
      run_all(pass, slots);
      pass.finish_block();
    });
    parallel(3 * H, GROUP, [&](int64_t begin, int64_t end) {
      add_up<T>(sums, a.grad_weight, begin, end, width);
      for (int64_t row = begin; row < end; ++row) {
        A sum = 0;
        for (const auto& partial : sums) sum += partial.bias[row];
        a.grad_bias[row] = T(sum);
      }
    });
  });
  return 0;
}

}  // namespace nerfkit
