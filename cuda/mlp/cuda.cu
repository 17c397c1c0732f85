// SPDX-License-Identifier: Apache-2.0
// A warp takes 16 rows through all layers in registers: the sums of one layer are, lane for lane, the operands of the
// next. The backward pass computes them again, and keeps what a block's rows had at each layer in shared memory; from
// there the warps share out the products that sum over rows, the gradients of the weights, whose sums stay in registers
// to the end.

#include "mlp/layers.cuh"

namespace nerfkit {
namespace {

template <class T, int H, int HIDDEN>
__global__ void __launch_bounds__(32 * WARPS, 2) forward(const MlpArrays<T> a) {
  extern __shared__ __align__(16) unsigned char shared[];
  Weights<T, H, HIDDEN> weights(shared, a.n_in);
  weights.load(a.parameters, a.n_in, a.n_out);
  __syncthreads();
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (int64_t row = (int64_t(blockIdx.x) * WARPS + warp) * 16; row < a.n_rows; row += int64_t(gridDim.x) * ROWS) {
    float sum[H / 8][4];
    Rows<T, H> hidden;
    start_with(sum, weights.bias_in);
    first_layer<T, H>(a, row, weights.in, weights.in_stride, sum, nullptr);
    hidden.from_sums(sum, relu);
    if constexpr (HIDDEN == 2) {
      start_with(sum, weights.bias_middle);
      apply(sum, hidden, weights.middle, H + PAD);
      hidden.from_sums(sum, relu);
    }
    float result[OUT / 8][4];
    start_with(result, weights.bias_out);
    apply(result, hidden, weights.out, H + PAD);
#pragma unroll
    for (int i = 0; i < 4 * (OUT / 8); ++i) {
      const int64_t n = row + g + i / 2 % 2 * 8;
      const int column = i / 4 * 8 + 2 * t + i % 2;
      if (n < a.n_rows && column < a.n_out) a.out[n * a.n_out + column] = T(result[i / 4][i % 4]);
    }
  }
}

// grad [16, H] where what ReLU gave, `rows`, is not 0; adds it to the gradient of the bias.
template <class T, int H>
__device__ __forceinline__ Rows<T, H> through_relu(float (&grad)[H / 8][4], const Rows<T, H>& rows,
                                                   float (&bias)[H / 4]) {
#pragma unroll
  for (int n = 0; n < H / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned both = rows.part[n / 2][n % 2 * 2 + i / 2], mine = i % 2 ? both >> 16 : both;
      grad[n][i] = mine & 0x7fff ? grad[n][i] : 0.f;
      bias[2 * n + i % 2] += grad[n][i];
    }
  Rows<T, H> out;
  out.from_sums(grad, [](float x) { return x; });
  return out;
}

// Which products of the gradient of a weight a warp adds up: 16 rows of the weight, and every STEPth 16 columns.
template <int H>
struct Share {
  static constexpr int STEP = WARPS / (H / 16);
  int row, first;  // [units], in units of 16 columns
  __device__ __forceinline__ Share(int warp) : row(warp % (H / 16) * 16), first(warp / (H / 16)) {}
};

// sum += transposed grads [ROWS, 16 from `row` on] times values [ROWS, 16 from `column` on]
template <class T>
__device__ __forceinline__ void add_outer(float (&sum)[2][4], const T* grads, int grads_stride, int row,
                                          const T* values, int values_stride, int column) {
#pragma unroll
  for (int k = 0; k < ROWS; k += 16) {
    unsigned left[4], right[4];
    load_left(grads, grads_stride, k, row, left);
    load_right(values, values_stride, k, column, right);
    add_products<T>(sum[0], sum[1], left, right);
  }
}

__device__ __forceinline__ void store_outer(const float (&sum)[2][4], float* to, int width, int row, int column,
                                            int rows) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int r = row + g + i / 2 % 2 * 8;
    if (r < rows) to[int64_t(r) * width + column + i / 4 * 8 + 2 * t + i % 2] = sum[i / 4][i % 4];
  }
}

// bias: a lane's sums for columns 8 n + 2 t, + 1 of its rows -> to [8 N]; `scratch` [WARPS, 8 N]. The whole block calls
// it.
template <int N>
__device__ __forceinline__ void store_bias(float (&bias)[2 * N], float* scratch, float* to, int columns) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2 * N; ++i) {
    for (int offset = 4; offset < 32; offset *= 2) bias[i] += __shfl_xor_sync(FULL_MASK, bias[i], offset);
    if (lane < 4) scratch[warp * 8 * N + i / 2 * 8 + 2 * lane + i % 2] = bias[i];
  }
  __syncthreads();
  for (int column = threadIdx.x; column < columns; column += 32 * WARPS) {
    float sum = 0;
    for (int w = 0; w < WARPS; ++w) sum += scratch[w * 8 * N + column];
    to[column] = sum;
  }
}

template <class T, int H, int HIDDEN>
constexpr size_t backward_bytes(int n_in) {
  return Weights<T, H, HIDDEN>::bytes(n_in) +
         size_t(ROWS) * ((n_in + PAD) + 2 * HIDDEN * (H + PAD) + OUT + PAD) * sizeof(T);
}

template <class T, int H, int HIDDEN>
__global__ void __launch_bounds__(32 * WARPS, 1) backward(const MlpArrays<T> a) {
  constexpr int STRIDE = H + PAD, OUT_STRIDE = OUT + PAD, STEP = Share<H>::STEP;
  constexpr int IN_SHARES = (WIDEST / 16 + STEP - 1) / STEP, SHARES = (H / 16 + STEP - 1) / STEP;
  extern __shared__ __align__(16) unsigned char shared[];
  Weights<T, H, HIDDEN> weights(shared, a.n_in);
  const int in_stride = weights.in_stride;
  T* x = reinterpret_cast<T*>(shared + Weights<T, H, HIDDEN>::bytes(a.n_in));  // [ROWS, in_stride]
  T* hidden = x + ROWS * in_stride;                                            // [HIDDEN, ROWS, STRIDE]
  T* grads = hidden + HIDDEN * ROWS * STRIDE;                                  // the same, before the ReLU
  T* grads_out = grads + HIDDEN * ROWS * STRIDE;                               // [ROWS, OUT_STRIDE]
  weights.load(a.parameters, a.n_in, a.n_out);
  __syncthreads();
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const Share<H> share(warp);
  float of_in[IN_SHARES][2][4] = {}, of_middle[SHARES][2][4] = {}, of_out[2][4] = {};
  float bias_in[H / 4] = {}, bias_middle[H / 4] = {}, bias_out[OUT / 4] = {};

  for (int64_t first = int64_t(blockIdx.x) * ROWS; first < a.n_rows; first += int64_t(gridDim.x) * ROWS) {
    const int64_t row = first + warp * 16;
    float sum[H / 8][4];
    Rows<T, H> at[HIDDEN], grad;
    start_with(sum, weights.bias_in);
    first_layer<T, H>(a, row, weights.in, in_stride, sum, x + warp * 16 * in_stride);
    at[0].from_sums(sum, relu);
    at[0].to_shared(hidden + warp * 16 * STRIDE, STRIDE);
    if constexpr (HIDDEN == 2) {
      start_with(sum, weights.bias_middle);
      apply(sum, at[0], weights.middle, STRIDE);
      at[1].from_sums(sum, relu);
      at[1].to_shared(hidden + (ROWS + warp * 16) * STRIDE, STRIDE);
    }

    Rows<T, OUT> of_result;
    float result[OUT / 8][4];
#pragma unroll
    for (int i = 0; i < 4 * (OUT / 8); ++i) {
      const int64_t n = row + g + i / 2 % 2 * 8;
      const int column = i / 4 * 8 + 2 * t + i % 2;
      result[i / 4][i % 4] = n < a.n_rows && column < a.n_out ? float(a.grad_out[n * a.n_out + column]) : 0.f;
      bias_out[i / 4 * 2 + i % 2] += result[i / 4][i % 4];
    }
    of_result.from_sums(result, [](float v) { return v; });
    of_result.to_shared(grads_out + warp * 16 * OUT_STRIDE, OUT_STRIDE);

#pragma unroll
    for (int n = 0; n < H / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] = 0;
    apply_back(sum, of_result, weights.out, STRIDE, 0);
    if constexpr (HIDDEN == 2) {
      grad = through_relu<T, H>(sum, at[1], bias_middle);
      grad.to_shared(grads + (ROWS + warp * 16) * STRIDE, STRIDE);
#pragma unroll
      for (int n = 0; n < H / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[n][i] = 0;
      apply_back(sum, grad, weights.middle, STRIDE, 0);
    }
    grad = through_relu<T, H>(sum, at[0], bias_in);
    grad.to_shared(grads + warp * 16 * STRIDE, STRIDE);
    for_columns(a, [&](int k, int column, int all) {
      if (!a.grad_inputs[k]) return;
      float of_x[2][4] = {};
      apply_back(of_x, grad, weights.in, in_stride, all);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t n = row + g + i % 2 * 8;
        T* to = a.grad_inputs[k] + n * a.input_width[k] + column + i / 2 * 8 + 2 * t;
        if (n < a.n_rows)
          *reinterpret_cast<unsigned*>(to) = pack<T>(of_x[i / 2][i % 2 * 2], of_x[i / 2][i % 2 * 2 + 1]);
      }
    });
    __syncthreads();

#pragma unroll
    for (int i = 0; i < IN_SHARES; ++i)
      if ((share.first + i * STEP) * 16 < a.n_in)
        add_outer(of_in[i], grads, STRIDE, share.row, x, in_stride, (share.first + i * STEP) * 16);
    if constexpr (HIDDEN == 2) {
#pragma unroll
      for (int i = 0; i < SHARES; ++i)
        if ((share.first + i * STEP) * 16 < H)
          add_outer(of_middle[i], grads + ROWS * STRIDE, STRIDE, share.row, hidden, STRIDE,
                    (share.first + i * STEP) * 16);
    }
    if (warp < H / 16)
      add_outer(of_out, grads_out, OUT_STRIDE, 0, hidden + (HIDDEN - 1) * ROWS * STRIDE, STRIDE, 16 * warp);
    __syncthreads();
  }

  float* to =
      a.grad_parameters + blockIdx.x * (int64_t(a.n_in + 1) * H + (HIDDEN - 1) * (H + 1) * H + (H + 1) * a.n_out);
  float* scratch = reinterpret_cast<float*>(x);
#pragma unroll
  for (int i = 0; i < IN_SHARES; ++i)
    if ((share.first + i * STEP) * 16 < a.n_in)
      store_outer(of_in[i], to, a.n_in, share.row, (share.first + i * STEP) * 16, H);
  store_bias<H / 8>(bias_in, scratch, to + a.n_in * H, H);
  to += (a.n_in + 1) * H;
  if constexpr (HIDDEN == 2) {
#pragma unroll
    for (int i = 0; i < SHARES; ++i)
      if ((share.first + i * STEP) * 16 < H)
        store_outer(of_middle[i], to, H, share.row, (share.first + i * STEP) * 16, H);
    store_bias<H / 8>(bias_middle, scratch, to + H * H, H);
    to += (H + 1) * H;
  }
  if (warp < H / 16) store_outer(of_out, to, H, 0, 16 * warp, a.n_out);
  store_bias<OUT / 8>(bias_out, scratch, to + H * a.n_out, a.n_out);
}

// Calls f with the element type, the width of the hidden layers and their number, as constants.
template <class F>
bool with_kernel(DType dtype, const MlpShape& s, const F& f) {
  const int hidden = s.n_layers - 1;
  const auto with_depth = [&](auto element, auto width) {
    hidden == 2 ? f(element, width, std::integral_constant<int, 2>())
                : f(element, width, std::integral_constant<int, 1>());
  };
  const auto with_width = [&](auto element) {
    switch (s.width[1]) {
      case 16:
        return with_depth(element, std::integral_constant<int, 16>());
      case 32:
        return with_depth(element, std::integral_constant<int, 32>());
      case 64:
        return with_depth(element, std::integral_constant<int, 64>());
    }
  };
  bool fits = (hidden == 1 || hidden == 2) && (s.width[1] == 16 || s.width[1] == 32 || s.width[1] == 64);
  fits = fits && (hidden == 1 || s.width[2] == s.width[1]) && s.width[0] <= WIDEST && s.width[s.n_layers] <= OUT;
  for (int k = 0; k < s.n_inputs; ++k) fits = fits && s.input_width[k] % 16 == 0;
  if (!fits || current_gpu().major < TENSOR_CORES_MAJOR) return false;
  if (dtype == DType::f16)
    with_width(__half());
  else if (dtype == DType::bf16)
    with_width(__nv_bfloat16());
  else
    return false;
  return true;
}

template <class T>
MlpArrays<T> arrays_of(const MlpInputs& inputs, const void* parameters, const MlpShape& s) {
  MlpArrays<T> a{};
  for (int k = 0; k < s.n_inputs; ++k) a.inputs[k] = (const T*)inputs.rows[k], a.input_width[k] = s.input_width[k];
  a.parameters = (const T*)parameters;
  a.n_rows = s.n_rows, a.n_in = s.width[0], a.n_out = s.width[s.n_layers];
  return a;
}

template <class Kernel, class Arrays>
Status launch(Kernel kernel, const Arrays& arrays, size_t shared, int most_blocks, Stream stream) {
  const Gpu gpu = current_gpu();
  allow_shared(kernel, gpu);
  int resident = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, 32 * WARPS, shared);
  const int64_t tiles = (arrays.n_rows + ROWS - 1) / ROWS;
  const int64_t blocks =
      std::min<int64_t>(std::min<int64_t>(tiles, most_blocks), int64_t(std::max(resident, 1)) * gpu.processors);
  kernel<<<unsigned(blocks), 32 * WARPS, shared, (cudaStream_t)stream>>>(arrays);
  return launched();
}

}  // namespace

Status mlp(DType dtype, const MlpInputs& inputs, const void* parameters, void* out, const MlpShape& s, Stream stream) {
  if (s.n_rows == 0) return 0;
  Status status = 0;
  const bool done = with_kernel(dtype, s, [&](auto element, auto width, auto depth) {
    using T = decltype(element);
    constexpr int H = width.value, HIDDEN = depth.value;
    MlpArrays<T> a = arrays_of<T>(inputs, parameters, s);
    a.out = (T*)out;
    status = launch(forward<T, H, HIDDEN>, a, Weights<T, H, HIDDEN>::bytes(a.n_in), 1 << 30, stream);
  });
  return done ? status : Status(cudaErrorInvalidValue);
}

Status mlp_bwd(DType dtype, const void* grad_out, const MlpInputs& inputs, const void* parameters,
               const MlpInputGradients& grad_inputs, void* grad_parameters, const MlpShape& s, Stream stream) {
  if (s.n_rows == 0) return 0;
  Status status = 0;
  const bool done = with_kernel(dtype, s, [&](auto element, auto width, auto depth) {
    using T = decltype(element);
    constexpr int H = width.value, HIDDEN = depth.value;
    MlpArrays<T> a = arrays_of<T>(inputs, parameters, s);
    a.grad_out = (const T*)grad_out;
    a.grad_parameters = (float*)grad_parameters;
    for (int k = 0; k < s.n_inputs; ++k) a.grad_inputs[k] = (T*)grad_inputs.rows[k];
    status = launch(backward<T, H, HIDDEN>, a, backward_bytes<T, H, HIDDEN>(a.n_in), MLP_PARTS, stream);
  });
  return done ? status : Status(cudaErrorInvalidValue);
}

}  // namespace nerfkit
