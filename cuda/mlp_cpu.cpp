// SPDX-License-Identifier: Apache-2.0
// GROUP rows go through all layers together: a weight that was loaded serves all of them, and what lies between the
// layers stays in the first cache.

#include "mlp.h"

#include <vector>

#include "cpu.h"

namespace nerfkit {
namespace {

constexpr int GROUP = 8;
constexpr int64_t GRAIN = 16;  // groups that are worth a thread

int padded(int n) { return (n + LANES - 1) / LANES * LANES; }

// PACKS packs of columns from j on: out [GROUP, columns] = start [columns] + in [GROUP, depth] matrix [depth, columns].
template <int PACKS, class A>
HD void product_of_packs(const A* in, const A* matrix, const A* start, A* out, int depth, int columns, int j) {
  Pack<A> sum[GROUP][PACKS];
#pragma GCC unroll 8
  for (int r = 0; r < GROUP; ++r)
#pragma GCC unroll 2
    for (int p = 0; p < PACKS; ++p) sum[r][p] = start ? load(start + j + p * LANES) : Pack<A>{};
  for (int k = 0; k < depth; ++k) {
    Pack<A> row[PACKS];
#pragma GCC unroll 2
    for (int p = 0; p < PACKS; ++p) row[p] = load(matrix + int64_t(k) * columns + j + p * LANES);
#pragma GCC unroll 8
    for (int r = 0; r < GROUP; ++r)
#pragma GCC unroll 2
      for (int p = 0; p < PACKS; ++p) sum[r][p] += in[r * depth + k] * row[p];
  }
#pragma GCC unroll 8
  for (int r = 0; r < GROUP; ++r)
#pragma GCC unroll 2
    for (int p = 0; p < PACKS; ++p) store(out + r * columns + j + p * LANES, sum[r][p]);
}

// All columns, which are a multiple of LANES; two packs at a time where the registers hold them.
template <class A>
CLONES void product(const A* in, const A* matrix, const A* start, A* out, int depth, int columns, bool wide) {
  int j = 0;
  if (wide)
    for (; j + 2 * LANES <= columns; j += 2 * LANES) product_of_packs<2>(in, matrix, start, out, depth, columns, j);
  for (; j < columns; j += LANES) product_of_packs<1>(in, matrix, start, out, depth, columns, j);
}

// OUTS rows from o on and PACKS packs of columns from i on of `sums` [.., n_in] += transposed grad [GROUP, grad_stride]
// times in [GROUP, n_in].
template <int OUTS, int PACKS, class A>
HD void add_packs_of_outer(const A* grad, int grad_stride, const A* in, A* sums, int o, int i, int n_in) {
  Pack<A> sum[OUTS][PACKS];
#pragma GCC unroll 4
  for (int q = 0; q < OUTS; ++q)
#pragma GCC unroll 2
    for (int p = 0; p < PACKS; ++p) sum[q][p] = load(sums + int64_t(o + q) * n_in + i + p * LANES);
#pragma GCC unroll 1
  for (int r = 0; r < GROUP; ++r) {
    Pack<A> values[PACKS];
#pragma GCC unroll 2
    for (int p = 0; p < PACKS; ++p) values[p] = load(in + r * n_in + i + p * LANES);
#pragma GCC unroll 4
    for (int q = 0; q < OUTS; ++q)
#pragma GCC unroll 2
      for (int p = 0; p < PACKS; ++p) sum[q][p] += grad[r * grad_stride + o + q] * values[p];
  }
#pragma GCC unroll 4
  for (int q = 0; q < OUTS; ++q)
#pragma GCC unroll 2
    for (int p = 0; p < PACKS; ++p) store(sums + int64_t(o + q) * n_in + i + p * LANES, sum[q][p]);
}

// All columns of OUTS rows.
template <int OUTS, class A>
HD void add_rows_of_outer(const A* grad, int grad_stride, const A* in, A* sums, int o, int n_in, bool wide) {
  int i = 0;
  if (wide)
    for (; i + 2 * LANES <= n_in; i += 2 * LANES) add_packs_of_outer<OUTS, 2>(grad, grad_stride, in, sums, o, i, n_in);
  for (; i + LANES <= n_in; i += LANES) add_packs_of_outer<OUTS, 1>(grad, grad_stride, in, sums, o, i, n_in);
  for (; i < n_in; ++i)
    for (int q = 0; q < OUTS; ++q)
      for (int r = 0; r < GROUP; ++r) sums[int64_t(o + q) * n_in + i] += grad[r * grad_stride + o + q] * in[r * n_in + i];
}

// The same for all n_out rows, and sums_bias [n_out] += the sums of grad.
template <class A>
CLONES void add_outer(const A* grad, int grad_stride, const A* in, A* sums, A* sums_bias, int n_out, int n_in, bool wide) {
  int o = 0;
  for (; o + 4 <= n_out; o += 4) add_rows_of_outer<4>(grad, grad_stride, in, sums, o, n_in, wide);
  for (; o < n_out; ++o) add_rows_of_outer<1>(grad, grad_stride, in, sums, o, n_in, wide);
  for (int r = 0; r < GROUP; ++r)
    for (int k = 0; k < n_out; ++k) sums_bias[k] += grad[r * grad_stride + k];
}

// grad [GROUP, stride] is zero where what ReLU gave [GROUP, n] is.
template <class A>
CLONES void through_relu(const A* given, A* grad, int stride, int n) {
  for (int r = 0; r < GROUP; ++r)
#pragma omp simd
    for (int i = 0; i < n; ++i) {
      const A unchanged = grad[r * stride + i];
      grad[r * stride + i] = given[r * n + i] == 0 ? A(0) : unchanged;
    }
}

template <class A>
struct Layer {
  int n_in, n_out, columns, columns_back;  // columns: n_out padded; columns_back: n_in padded
  std::vector<A> matrix, start, matrix_back;  // [n_in, columns], [columns], [n_out, columns_back]
};

template <class T>
std::vector<Layer<acc_t<T>>> layers_of(const T* parameters, const MlpShape& s) {
  using A = acc_t<T>;
  std::vector<Layer<A>> layers;
  for (int l = 0; l < s.n_layers; ++l) {
    Layer<A> layer{s.width[l], s.width[l + 1], padded(s.width[l + 1]), padded(s.width[l]), {}, {}, {}};
    layer.matrix.resize(int64_t(layer.n_in) * layer.columns);
    layer.matrix_back.resize(int64_t(layer.n_out) * layer.columns_back);
    layer.start.resize(layer.columns);
    for (int o = 0; o < layer.n_out; ++o)
      for (int i = 0; i < layer.n_in; ++i, ++parameters)
        layer.matrix[int64_t(i) * layer.columns + o] = layer.matrix_back[int64_t(o) * layer.columns_back + i] = A(*parameters);
    for (int o = 0; o < layer.n_out; ++o) layer.start[o] = A(*parameters++);
    layers.push_back(std::move(layer));
  }
  return layers;
}

// What a group has in front of each layer, [GROUP, n_in], and behind the last one, [GROUP, columns].
template <class T>
struct Activations {
  using A = acc_t<T>;
  std::vector<std::vector<A>> in;
  std::vector<A> out;
  const bool wide = has_wide_registers();

  explicit Activations(const std::vector<Layer<A>>& layers) {
    size_t widest = 0;
    for (const auto& layer : layers) {
      in.emplace_back(size_t(GROUP) * layer.n_in);
      widest = std::max(widest, size_t(GROUP) * layer.columns);
    }
    out.resize(widest);
  }

  // The first n_layers layers.
  void compute(const std::vector<Layer<A>>& layers, size_t n_layers, const MlpInputs& inputs, const MlpShape& s,
               int64_t first, int n) {
    for (int r = 0; r < n; ++r)
      for (int k = 0, column = 0; k < s.n_inputs; column += s.input_width[k++])
        for (int i = 0; i < s.input_width[k]; ++i)
          in[0][r * s.width[0] + column + i] = A(((const T*)inputs.rows[k])[(first + r) * s.input_width[k] + i]);
    for (size_t l = 0; l < n_layers; ++l) {
      const auto& layer = layers[l];
      product(in[l].data(), layer.matrix.data(), layer.start.data(), out.data(), layer.n_in, layer.columns, wide);
      if (l + 1 == layers.size()) return;
      for (int r = 0; r < GROUP; ++r)
        for (int o = 0; o < layer.n_out; ++o) {
          const A x = out[r * layer.columns + o];
          in[l + 1][r * layer.n_out + o] = x < 0 ? A(0) : x;
        }
    }
  }
};

template <class F>
void for_groups(int64_t n_rows, const F& f) {  // f(first group, last group)
  parallel((n_rows + GROUP - 1) / GROUP, GRAIN, f);
}

int rows_of(int64_t group, int64_t n_rows) { return int(std::min<int64_t>(GROUP, n_rows - group * GROUP)); }

template <class T>
void backward_group(const std::vector<Layer<acc_t<T>>>& layers, Activations<T>& at, std::vector<acc_t<T>> (&grad)[2],
                    const T* grad_out, const MlpInputGradients& grad_inputs, acc_t<T>* sums, const MlpShape& s,
                    int64_t first, int n) {
  using A = acc_t<T>;
  int stride = layers.back().n_out;
  for (int r = 0; r < GROUP; ++r)
    for (int o = 0; o < stride; ++o) grad[0][r * stride + o] = r < n ? A(grad_out[(first + r) * stride + o]) : A(0);
  acc_t<T>* end = sums + s.parameters();
  for (size_t l = layers.size(); l-- > 0;) {
    const auto& layer = layers[l];
    end -= int64_t(layer.n_in + 1) * layer.n_out;
    add_outer(grad[0].data(), stride, at.in[l].data(), end, end + int64_t(layer.n_in) * layer.n_out, layer.n_out, layer.n_in,
              at.wide);
    for (int r = 1; r < GROUP; ++r)  // without what pads the rows
      std::copy_n(grad[0].data() + r * stride, layer.n_out, grad[0].data() + r * layer.n_out);
    product(grad[0].data(), layer.matrix_back.data(), (const A*)nullptr, grad[1].data(), layer.n_out, layer.columns_back,
            at.wide);
    std::swap(grad[0], grad[1]);
    stride = layer.columns_back;
    if (l == 0) break;
    through_relu(at.in[l].data(), grad[0].data(), stride, layer.n_in);
  }
  for (int r = 0; r < n; ++r)
    for (int k = 0, column = 0; k < s.n_inputs; column += s.input_width[k++])
      if (T* to = (T*)grad_inputs.rows[k])
        for (int i = 0; i < s.input_width[k]; ++i) to[(first + r) * s.input_width[k] + i] = T(grad[0][r * stride + column + i]);
}

}  // namespace

Status mlp(DType dtype, const MlpInputs& inputs, const void* parameters, void* out, const MlpShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const auto layers = layers_of((const T*)parameters, s);
    const int n_out = s.width[s.n_layers];
    for_groups(s.n_rows, [&](int64_t begin, int64_t end) {
      Activations<T> at(layers);
      for (int64_t group = begin; group < end; ++group) {
        const int n = rows_of(group, s.n_rows);
        at.compute(layers, layers.size(), inputs, s, group * GROUP, n);
        for (int r = 0; r < n; ++r)
          for (int o = 0; o < n_out; ++o) ((T*)out)[(group * GROUP + r) * n_out + o] = T(at.out[r * layers.back().columns + o]);
      }
    });
  });
  return 0;
}

Status mlp_bwd(DType dtype, const void* grad_out, const MlpInputs& inputs, const void* parameters,
               const MlpInputGradients& grad_inputs, void* grad_parameters, const MlpShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    using A = acc_t<T>;
    const auto layers = layers_of((const T*)parameters, s);
    int widest = 0;
    for (int l = 0; l <= s.n_layers; ++l) widest = std::max(widest, padded(s.width[l]));
    // The parts do not depend on the number of threads, nor do then the sums.
    const int64_t groups = (s.n_rows + GROUP - 1) / GROUP, per_part = (groups + MLP_CPU_PARTS - 1) / MLP_CPU_PARTS;
    parallel(MLP_CPU_PARTS, 1, [&](int64_t begin, int64_t end) {
      Activations<T> at(layers);
      std::vector<A> grad[2] = {std::vector<A>(size_t(GROUP) * widest), std::vector<A>(size_t(GROUP) * widest)};
      for (int64_t part = begin; part < end; ++part)
        for (int64_t group = part * per_part; group < std::min(groups, (part + 1) * per_part); ++group) {
          const int n = rows_of(group, s.n_rows);
          at.compute(layers, layers.size() - 1, inputs, s, group * GROUP, n);
          backward_group<T>(layers, at, grad, (const T*)grad_out, grad_inputs, (A*)grad_parameters + part * s.parameters(), s,
                            group * GROUP, n);
        }
    });
  });
  return 0;
}

}  // namespace nerfkit
