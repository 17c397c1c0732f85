// SPDX-License-Identifier: Apache-2.0
// GROUP rays walk together: a step is one product for all of them, with the weight in panels of LANES columns, and then
// the arithmetic of the units, LANES at a time. On the way back the rows of a few steps gather in a block that stays in
// the first cache, for the products that give the gradients of weight and input.

#include "lltm.h"

#include <numeric>
#include <vector>

#include "cpu.h"

namespace nerfkit {
namespace {

constexpr int GROUP = 8;
constexpr int BLOCK = 32;  // rows of a few steps

int padded(int n, int to = LANES) { return (n + to - 1) / to * to; }

// A matrix [depth, columns] as panels [depth, LANES]; columns is a multiple of LANES.
template <class A, class F>
std::vector<A> in_panels(int depth, int columns, const F& at) {
  std::vector<A> panels(int64_t(depth) * columns);
  for (int j = 0; j < columns; ++j)
    for (int k = 0; k < depth; ++k) panels[(int64_t(j / LANES) * depth + k) * LANES + j % LANES] = at(k, j);
  return panels;
}

// out [rows, packs * LANES] = start + left [rows, depth] times right [depth, packs * LANES].
template <class A>
struct Product {
  const A* left;
  int64_t left_row, left_column;  // steps from one to the next
  const A* right;
  int64_t right_row, right_pack;
  int depth;
  const A* start;  // null for zero
  int64_t start_row;
  A* out;
  int64_t out_row;
};

template <int ROWS, int PACKS, class A>
HD void tile(const Product<A>& p, int r, int q) {  // ROWS rows from r on and PACKS packs from q on
  const A *left = p.left + r * p.left_row, *right = p.right + q * p.right_pack;
  const A* start = p.start + r * p.start_row + q * LANES;
  Pack<A> sum[ROWS][PACKS];
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 3
    for (int j = 0; j < PACKS; ++j) sum[i][j] = p.start ? load(start + i * p.start_row + j * LANES) : Pack<A>{};
  for (int k = 0; k < p.depth; ++k) {
    Pack<A> row[PACKS];
#pragma GCC unroll 3
    for (int j = 0; j < PACKS; ++j) row[j] = load(right + k * p.right_row + j * p.right_pack);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 3
      for (int j = 0; j < PACKS; ++j) sum[i][j] += left[i * p.left_row + k * p.left_column] * row[j];
  }
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 3
    for (int j = 0; j < PACKS; ++j) store(p.out + (r + i) * p.out_row + (q + j) * LANES, sum[i][j]);
}

template <int ROWS, class A>
HD void tiles(const Product<A>& p, int rows, int packs) {
  for (int q = 0; q < packs;) {
    const int left = packs - q, n = left == 4 || left == 2 ? 2 : left == 1 ? 1 : 3;
    for (int r = 0; r < rows; r += ROWS)
      if (n == 3)
        tile<ROWS, 3>(p, r, q);
      else if (n == 2)
        tile<ROWS, 2>(p, r, q);
      else
        tile<ROWS, 1>(p, r, q);
    q += n;
  }
}

constexpr int FEW = 2;

// ROWS is what the registers hold. Up to a multiple of it are read and written.
template <class A, int ROWS>
CLONES void multiply(const Product<A>& p, int rows, int packs) {
  if (rows > FEW)
    tiles<ROWS>(p, rows, packs);
  else
    tiles<FEW>(p, rows, packs);
}

template <class A>
using Multiply = void (*)(const Product<A>&, int rows, int packs);
template <class A>
Multiply<A> multiply_here() {
  return has_wide_registers() ? multiply<A, GROUP * sizeof(float) / sizeof(A)> : multiply<A, FEW>;
}

// f(j, n) for the units j .. j + n - 1; where n is LANES it is a constant, for loads and stores without a test.
template <class F>
HD void for_units(int n_state, const F& f) {
  int j = 0;
  for (; j + LANES <= n_state; j += LANES) f(j, LANES);
  if (j < n_state) f(j, n_state - j);
}

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

template <class A>
HD void cell_bwd(const A* gates, const A* h, const A* grad_h, A* grad_c, A* grad_gates) {
#pragma omp simd
  for (int j = 0; j < LANES; ++j) {
    Gates<A> grad;
    const Gates<A> gate{gates[j], gates[LANES + j], gates[2 * LANES + j]};
    const A t = gate.o > 0 ? h[j] / gate.o : A(0);  // the hyperbolic tangent of c; h is zero too where o is
    grad_c[j] = activate_bwd_at(gate, t, grad_h[j], grad_c[j], grad);
    grad_gates[j] = grad.i, grad_gates[LANES + j] = grad.o, grad_gates[2 * LANES + j] = grad.g;
  }
}

// Neighbouring rays that one thread walks. The number does not depend on that of threads, nor do then any sums.
struct Part {
  int64_t begin, end;
};

// At most so many parts, and none that fills no block.
int64_t parts_of(const LltmShape& s, int64_t most) {
  return std::clamp<int64_t>(std::min(s.n_rays / GROUP, s.n_samples / BLOCK), 1, most);
}

// f(part, its number)
template <class F>
void for_parts(const LltmShape& s, int64_t parts, const F& f) {
  parallel_each(parts, [&](int64_t i) { f(Part{s.n_rays * i / parts, s.n_rays * (i + 1) / parts}, i); });
}

constexpr int AHEAD = GROUP / 2;  // rays in front of which its first sample is asked for

struct Slot {
  int64_t ray, place, end;
};

// The rays of a part in GROUP slots. One that ends makes room for the next, so that all slots are taken almost to the
// end: the longest come first.
class Slots {
 public:
  int taken = 0;  // the first ones are
  Slot at[GROUP];

  Slots(const LltmShape& s, const Part& part, bool backward) : s_(s), backward_(backward), rays_(part.end - part.begin) {
    std::iota(rays_.begin(), rays_.end(), part.begin);
    auto length = [&](int64_t ray) { return s.ray_offsets[ray + 1] - s.ray_offsets[ray]; };
    std::stable_sort(rays_.begin(), rays_.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });
  }

  // Calls walk.end(slot) where a ray has ended, walk.begin(slot) where one begins, walk.move(from, to) where none is left.
  template <class W>
  HD void refill(W& walk) {
    for (int r = 0; r < GROUP;)
      if (r < taken && at[r].place != at[r].end) {
        ++r;
      } else {
        if (r < taken) walk.end(at[r].ray, r);
        if (next_ < rays_.size()) {
          at[r] = slot_of(rays_[next_++]);
          taken = std::max(taken, r + 1);
          walk.begin(at[r].ray, r);
          if (next_ + AHEAD < rays_.size()) walk.foresee(slot_of(rays_[next_ + AHEAD]));
        } else if (r >= taken) {
          return;
        } else if (r < --taken) {
          at[r] = at[taken];
          walk.move(taken, r);
        }
      }
  }

 private:
  Slot slot_of(int64_t ray) const {
    const int64_t first = s_.ray_offsets[ray], behind = s_.ray_offsets[ray + 1];
    return backward_ ? Slot{ray, behind - 1, first - 1} : Slot{ray, first, behind};
  }

  const LltmShape& s_;
  bool backward_;
  std::vector<int64_t> rays_;
  size_t next_ = 0;
};

template <class W>
CLONES void walk_all(W& walk, Slots& slots) {
  for (slots.refill(walk); slots.taken; slots.refill(walk)) walk.step(slots);
}

template <class T, class A>
HD void copy(const T* from, A* to, int n) {
  for (int i = 0; i < n; ++i) to[i] = A(from[i]);
}

// The row [n] of a matrix, which may lie outside of it. The processor does not foresee where the next sample of each of
// GROUP rays lies.
template <class T, int WRITE = 0>
HD void prefetch(const T* matrix, int64_t row, int n) {
  const uintptr_t from = uintptr_t(matrix) + row * n * sizeof(T);
  for (uintptr_t i = 0; i < n * sizeof(T); i += 64) __builtin_prefetch((const void*)(from + i), WRITE);
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
    multiply_({grad_gates_.data() + rows_ * 3 * H, 3 * H, 1, a_.panels, LANES, int64_t(3) * H * LANES, 3 * H, nullptr, 0,
               grad_h_.data(), padded(H)},
              slots.taken, padded(H) / LANES);
    rows_ += slots.taken;
    if (rows_ + GROUP > BLOCK) finish_block();
  }

  // Gradients of the block's input, and of the weight.
  HD void finish_block() {
    const int width = padded(H + I);
    multiply_({grad_gates_.data(), 3 * H, 1, a_.panels + int64_t(padded(H)) * 3 * H, LANES, int64_t(3) * H * LANES, 3 * H,
               nullptr, 0, grad_input_.data(), padded(I)},
              rows_, padded(I) / LANES);
    for (int r = 0; r < rows_; ++r) copy(grad_input_.data() + r * padded(I), a_.input_out + place_[r] * I, I);
    A* sums = sums_.weight.data();
    multiply_({grad_gates_.data(), 1, 3 * H, in_.data(), width, LANES, rows_, sums, width, sums, width}, 3 * H,
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
    for_units(H, [&](int j, int n) __attribute__((always_inline)) {
      A gates[3 * LANES], h[LANES], grads[3 * LANES], *grad_h = grad_h_.data() + r * padded(H) + j;
      for (int gate = 0; gate < 3; ++gate) store(gates + gate * LANES, load(a_.activated + (3 * place + gate) * H + j, n));
      store(h, load(a_.h_all + place * H + j, n));
      store(grad_h, load(grad_h) + load(a_.h + place * H + j, n));
      cell_bwd(gates, h, grad_h, grad_c_.data() + r * padded(H) + j, grads);
      for (int gate = 0; gate < 3; ++gate) {
        const Pack<A> grad = load(grads + gate * LANES);
        A* bias = sums_.bias.data() + gate * H + j;
        store(grad_gates_.data() + (rows_ + r) * 3 * H + gate * H + j, grad, n);
        store(bias, load(bias, n) + grad, n);
      }
    });
  }

  const Gradients<T>& a_;
  const Multiply<A> multiply_ = multiply_here<A>();
  Sums<A>& sums_;
  const int H, I;
  std::vector<A> grad_h_, grad_c_, grad_gates_, in_, grad_input_;
  int64_t place_[BLOCK];
  int rows_ = 0;  // of the block
};

// The parts' sums in their order, rows begin .. end - 1 of the weight.
template <class T>
CLONES void add_up(const std::vector<Sums<acc_t<T>>>& parts, T* grad_weight, int64_t begin, int64_t end, int width) {
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

constexpr int PARTS = 64, PARTS_BACK = 32;  // at most; on the way back each has sums of its own

}  // namespace

Status lltm(DType dtype, const void* input, const void* weight, const void* bias, const void* h0, const void* c0, void* h,
            void* h_n, void* c_n, void* activated, void*, void*, const LltmShape& s, Stream) {
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
    std::vector<Sums<A>> sums(parts_of(s, PARTS_BACK));
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
