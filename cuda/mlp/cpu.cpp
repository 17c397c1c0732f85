// SPDX-License-Identifier: Apache-2.0
// GROUP rows go through all layers together: a weight that was loaded serves all of them, and the activations between
// the layers stay in L1 and L2.

#include "mlp/args.h"

#include <algorithm>
#include <vector>

#include "common/gemm_cpu.h"

namespace nerfkit {
namespace {

constexpr int GROUP = 4 * GEMM_ROWS;  // 32 rows: 64 columns of float32 are 8 KB of activations per layer
constexpr int64_t GRAIN = 4;          // groups per task of a thread, at least

template <class A>
struct Layer {
  int n_in, n_out;
  PackVector<A> panels;       // weight transposed [n_in, padded n_out], in panels of LANES columns
  PackVector<A> start;        // bias [padded n_out]
  PackVector<A> panels_back;  // weight [n_out, padded n_in], in panels
};

template <class T>
std::vector<Layer<acc_t<T>>> layers_of(const T* parameters, const MlpShape& s) {
  using A = acc_t<T>;
  std::vector<Layer<A>> layers;
  for (int l = 0; l < s.n_layers; ++l) {
    const int n_in = s.width[l], n_out = s.width[l + 1];
    const T *weight = parameters, *bias = weight + int64_t(n_in) * n_out;
    const auto at = [&](int o, int i) { return o < n_out && i < n_in ? A(weight[int64_t(o) * n_in + i]) : A(0); };
    layers.push_back({n_in, n_out, pack_panels<A>(n_in, round_up(n_out), [&](int i, int o) { return at(o, i); }),
                      pack_panels<A>(1, round_up(n_out), [&](int, int o) { return o < n_out ? A(bias[o]) : A(0); }),
                      pack_panels<A>(n_out, round_up(n_in), [&](int o, int i) { return at(o, i); })});
    parameters = bias + n_out;
  }
  return layers;
}

// [n_layers + 1] activations of a group in front of each layer and behind the last: [GROUP, padded width] each, zeros
// beyond the width.
template <class A>
using Values = std::vector<PackVector<A>>;

template <class A>
Values<A> values_of(const MlpShape& s) {
  Values<A> values;
  for (int l = 0; l <= s.n_layers; ++l) values.emplace_back(size_t(GROUP) * round_up(s.width[l]));
  return values;
}

// The first n_layers layers, of the rows first .. first + n - 1.
template <class T>
void compute(const std::vector<Layer<acc_t<T>>>& layers, size_t n_layers, const MlpInputs& inputs, const MlpShape& s,
             int64_t first, int n, Values<acc_t<T>>& values) {
  using A = acc_t<T>;
  const int width = round_up(s.width[0]);
  for (int k = 0, column = 0; k < s.n_inputs; column += s.input_width[k++])
    for (int r = 0; r < n; ++r)
      for (int i = 0; i < s.input_width[k]; ++i)
        values[0][r * width + column + i] = A(((const T*)inputs.rows[k])[(first + r) * s.input_width[k] + i]);
  for (size_t l = 0; l < n_layers; ++l) {
    const auto& layer = layers[l];
    const int in = round_up(layer.n_in), out = round_up(layer.n_out);
    A* const to = values[l + 1].data();
    gemm<A>({{values[l].data(), in, 1},
             {layer.panels.data(), LANES, int64_t(layer.n_in) * LANES},
             layer.n_in,
             {layer.start.data(), 0},
             {to, out}},
            n, out / LANES);
    if (l + 1 == layers.size()) return;
#pragma omp simd
    for (int i = 0; i < n * out; ++i) to[i] = to[i] < 0 ? A(0) : to[i];
  }
}

// Gradients of a layer, summed over the rows of a task.
template <class A>
struct LayerGradient {
  PackVector<A> weight;  // [n_out padded to GEMM_ROWS, padded n_in]
  PackVector<A> bias;    // [n_out]

  explicit LayerGradient(const Layer<A>& layer)
      : weight(size_t(round_up(layer.n_out, GEMM_ROWS)) * round_up(layer.n_in)), bias(layer.n_out) {}
};

// Takes `grad` [GROUP, padded n_out] back through the layers of a group, adding to `sums`, until it is the gradient of
// the input [GROUP, padded n_in]. `other` is a second buffer of the same size.
template <class A>
void backward_group(const std::vector<Layer<A>>& layers, const Values<A>& values, int n,
                    std::vector<LayerGradient<A>>& sums, PackVector<A>& grad, PackVector<A>& other) {
  for (size_t l = layers.size(); l-- > 0;) {
    const auto& layer = layers[l];
    const int in = round_up(layer.n_in), out = round_up(layer.n_out);
    A* const weight = sums[l].weight.data();
    gemm<A>({{grad.data(), 1, out}, {values[l].data(), in, LANES}, n, {weight, in}, {weight, in}}, layer.n_out,
            in / LANES);
    for (int r = 0; r < n; ++r)
      for (int o = 0; o < layer.n_out; ++o) sums[l].bias[o] += grad[r * out + o];
    gemm<A>({{grad.data(), out, 1},
             {layer.panels_back.data(), LANES, int64_t(layer.n_out) * LANES},
             layer.n_out,
             {},
             {other.data(), in}},
            n, in / LANES);
    std::swap(grad, other);
    if (l == 0) break;
    A* const to = grad.data();
    const A* activated = values[l].data();  // the output of the ReLU
#pragma omp simd
    for (int i = 0; i < n * in; ++i) to[i] = activated[i] == 0 ? A(0) : to[i];
  }
}

// The rows first .. last - 1 of a task; `sums` begin as zeros.
template <class T>
void backward_task(const std::vector<Layer<acc_t<T>>>& layers, const T* grad_out, const MlpInputs& inputs,
                   const MlpInputGradients& grad_inputs, const MlpShape& s, int64_t first, int64_t last,
                   std::vector<LayerGradient<acc_t<T>>>& sums) {
  using A = acc_t<T>;
  const int n_out = s.width[s.n_layers], out = round_up(n_out), in = round_up(s.width[0]);
  const int widest = round_up(*std::max_element(s.width, s.width + s.n_layers + 1));
  auto values = values_of<A>(s);
  PackVector<A> grad(size_t(GROUP) * widest + GEMM_ROWS),
      other(grad);  // + GEMM_ROWS: gemm reads columns of the last row up to a multiple of it
  for (; first < last; first += GROUP) {
    const int n = int(std::min<int64_t>(GROUP, last - first));
    compute<T>(layers, layers.size() - 1, inputs, s, first, n, values);
    for (int r = 0; r < n; ++r)
      for (int o = 0; o < out; ++o) grad[r * out + o] = o < n_out ? A(grad_out[(first + r) * n_out + o]) : A(0);
    backward_group(layers, values, n, sums, grad, other);
    for (int k = 0, column = 0; k < s.n_inputs; column += s.input_width[k++])
      if (T* to = (T*)grad_inputs.rows[k])
        for (int r = 0; r < n; ++r)
          for (int i = 0; i < s.input_width[k]; ++i)
            to[(first + r) * s.input_width[k] + i] = T(grad[r * in + column + i]);
  }
}

// to [P], in the order of the parameters.
template <class A>
void write_sums(const std::vector<Layer<A>>& layers, const std::vector<LayerGradient<A>>& sums, A* to) {
  for (size_t l = 0; l < layers.size(); ++l) {
    const int n_in = layers[l].n_in;
    for (int o = 0; o < layers[l].n_out; ++o, to += n_in)
      std::copy_n(&sums[l].weight[int64_t(o) * round_up(n_in)], n_in, to);
    to = std::copy(sums[l].bias.begin(), sums[l].bias.end(), to);
  }
}

}  // namespace

Status mlp(DType dtype, const MlpInputs& inputs, const void* parameters, void* out, const MlpShape& s, Stream) {
  dispatch(dtype, [&](auto element) {
    using T = decltype(element);
    const auto layers = layers_of((const T*)parameters, s);
    const int n_out = s.width[s.n_layers], stride = round_up(n_out);
    parallel((s.n_rows + GROUP - 1) / GROUP, GRAIN, [&](int64_t begin, int64_t end) {
      auto values = values_of<acc_t<T>>(s);
      for (int64_t first = begin * GROUP; first < std::min(s.n_rows, end * GROUP); first += GROUP) {
        const int n = int(std::min<int64_t>(GROUP, s.n_rows - first));
        compute<T>(layers, layers.size(), inputs, s, first, n, values);
        for (int r = 0; r < n; ++r)
          for (int o = 0; o < n_out; ++o) ((T*)out)[(first + r) * n_out + o] = T(values.back()[r * stride + o]);
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
    // A fixed number of tasks: neither they nor the sums depend on the number of threads.
    const int64_t groups = (s.n_rows + GROUP - 1) / GROUP, rows = (groups + MLP_CPU_PARTS - 1) / MLP_CPU_PARTS * GROUP;
    parallel(MLP_CPU_PARTS, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task * rows, last = std::min(s.n_rows, first + rows);
        if (first >= last) break;
        std::vector<LayerGradient<A>> sums(layers.begin(), layers.end());
        backward_task<T>(layers, (const T*)grad_out, inputs, grad_inputs, s, first, last, sums);
        write_sums(layers, sums, (A*)grad_parameters + task * s.parameters());
      }
    });
  });
  return 0;
}

}  // namespace nerfkit
