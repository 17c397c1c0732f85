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

// out [GROUP, columns] = start [columns] + in [GROUP, depth] matrix [depth, columns]; columns are a multiple of LANES.
template <class A>
CLONES void product(const A* in, const A* matrix, const A* start, A* out, int depth, int columns) {
  for (int j = 0; j < columns; j += LANES) {
    Pack<A> sum[GROUP];
#pragma GCC unroll 8
    for (int r = 0; r < GROUP; ++r) sum[r] = start ? load(start + j) : Pack<A>{};
    for (int k = 0; k < depth; ++k) {
      const Pack<A> row = load(matrix + int64_t(k) * columns + j);
#pragma GCC unroll 8
      for (int r = 0; r < GROUP; ++r) sum[r] += in[r * depth + k] * row;
    }
#pragma GCC unroll 8
    for (int r = 0; r < GROUP; ++r) store(out + r * columns + j, sum[r]);
  }
}

// sums [n_out, n_in] += transposed grad [GROUP, grad_stride] times in [GROUP, n_in], and sums_bias [n_out] those of grad.
template <class A>
CLONES void add_outer(const A* grad, int grad_stride, const A* in, A* sums, A* sums_bias, int n_out, int n_in) {
  for (int o = 0; o < n_out; ++o) {
    A* row = sums + int64_t(o) * n_in;
    int i = 0;
    for (; i + LANES <= n_in; i += LANES) {
      Pack<A> sum = load(row + i);
#pragma GCC unroll 8
      for (int r = 0; r < GROUP; ++r) sum += grad[r * grad_stride + o] * load(in + r * n_in + i);
      store(row + i, sum);
    }
    for (; i < n_in; ++i)
      for (int r = 0; r < GROUP; ++r) row[i] += grad[r * grad_stride + o] * in[r * n_in + i];
    for (int r = 0; r < GROUP; ++r) sums_bias[o] += grad[r * grad_stride + o];
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
    layers.push_back(layer);
  }
  return layers;
}

// What a group has in front of each layer, [GROUP, n_in], and behind the last one, [GROUP, columns].
template <class T>
struct Activations {
  using A = acc_t<T>;
  std::vector<std::vector<A>> in;
  std::vector<A> out;

  explicit Activations(const std::vector<Layer<A>>& layers) {
    size_t widest = 0;
    for (const auto& layer : layers) {
      in.emplace_back(size_t(GROUP) * layer.n_in);
      widest = std::max(widest, size_t(GROUP) * layer.columns);
    }
    out.resize(widest);
  }

  void compute(const std::vector<Layer<A>>& layers, const MlpInputs& inputs, const MlpShape& s, int64_t first, int n) {
    for (int r = 0; r < n; ++r)
      for (int k = 0, column = 0; k < s.n_inputs; column += s.input_width[k++])
        for (int i = 0; i < s.input_width[k]; ++i)
          in[0][r * s.width[0] + column + i] = A(((const T*)inputs.rows[k])[(first + r) * s.input_width[k] + i]);
    for (size_t l = 0; l < layers.size(); ++l) {
      const auto& layer = layers[l];
      product(in[l].data(), layer.matrix.data(), layer.start.data(), out.data(), layer.n_in, layer.columns);
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
    add_outer(grad[0].data(), stride, at.in[l].data(), end, end + int64_t(layer.n_in) * layer.n_out, layer.n_out, layer.n_in);
    std::vector<A> packed(size_t(GROUP) * layer.n_out);
    for (int r = 0; r < GROUP; ++r) std::copy_n(&grad[0][r * stride], layer.n_out, &packed[r * layer.n_out]);
    product(packed.data(), layer.matrix_back.data(), (const A*)nullptr, grad[1].data(), layer.n_out, layer.columns_back);
    std::swap(grad[0], grad[1]);
    stride = layer.columns_back;
    if (l == 0) break;
    for (int r = 0; r < GROUP; ++r)
      for (int i = 0; i < layer.n_in; ++i)
        if (at.in[l][r * layer.n_in + i] == 0) grad[0][r * stride + i] = 0;
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
        at.compute(layers, inputs, s, group * GROUP, n);
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
          at.compute(layers, inputs, s, group * GROUP, n);
          backward_group<T>(layers, at, grad, (const T*)grad_out, grad_inputs, (A*)grad_parameters + part * s.parameters(), s,
                            group * GROUP, n);
        }
    });
  });
  return 0;
}

}  // namespace nerfkit
