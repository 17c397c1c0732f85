// SPDX-License-Identifier: Apache-2.0
// The kernels of the GPU, for cuda.cu to choose from: their arguments, and a launcher for each family. Every family is
// a translation unit or two of its own, so that they compile side by side.

#pragma once

#include "common/gpu.cuh"
#include "depthwise_conv2d/args.h"

namespace nerfkit {

enum class Pass { forward, backward };
enum class Layout { planes, channels_last };  // [B, C, H, W]; [B, H, W, C]

// The arrays of one pass. The gradient of x is a convolution of grad_out, so that both passes have the same arrays.
template <class T>
struct Conv2dArrays {
  const T* in;  // forward x [B, C, H, W]; backward grad_out [B, C, H_out, W_out]; channels last if the shape says so
  const T* weight;     // [C, KH * KW]
  const T* bias;       // forward [C] or null; backward null
  T* out;              // forward out [B, C, H_out, W_out]; backward grad_x [B, C, H, W], or null: not wanted
  const T* x;          // backward x [B, C, H, W]; forward null
  acc_t<T>* partials;  // backward [parts, C, KH * KW + 1], the last of a row is the bias's, or null: not wanted
};

// Each launches its kernel if that is made for the case and returns how many partial sums of the weight's gradient a
// channel then has: the first dimension of `partials`, forward any number but 0. Returns 0 if another has to take it.
template <class T, Pass PASS>
int64_t try_launch_mma_planes(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);  // half types
template <class T, Pass PASS>
int64_t try_launch_mma_channels(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);  // half types
template <class T, Pass PASS>
int64_t try_launch_strips(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);  // float32 and half types
template <class T>
int64_t try_launch_generic_forward(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);
template <class T>
int64_t try_launch_generic_backward(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);
template <class T>
void launch_naive_forward(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);
template <class T>
void launch_naive_backward(const Conv2dArrays<T>&, const Conv2dShape&, cudaStream_t);  // one partial sum

// The partial sums that the launchers of the backward pass may write for a channel; `bytes` are those of an element.
int64_t mma_planes_parts(const Conv2dShape&);
int64_t mma_channels_parts(const Conv2dShape&);
int64_t strips_parts(const Conv2dShape&, int bytes);
int64_t generic_parts(const Conv2dShape&, int bytes);

// What the launchers ask.

inline bool is_empty(const Conv2dShape& s) { return s.batch * s.channels * s.y.size * s.x.size == 0; }

// Whether outputs are as many as inputs, each in the middle of its window.
inline bool is_same_size(const Axis& axis) {
  return axis.stride == 1 && axis.dilation == 1 && axis.kernel % 2 == 1 && axis.padding == axis.kernel / 2;
}

// The side of a square kernel that leaves height and width as they are; 0 for any other.
inline int same_size_side(const Conv2dShape& s) {
  constexpr int64_t MOST = INT32_MAX / 2;  // so that rows and columns somewhat outside the image are int too
  if (std::max({s.batch, s.channels, int64_t(s.y.size), int64_t(s.x.size)}) > MOST) return 0;
  return is_same_size(s.y) && is_same_size(s.x) && s.y.kernel == s.x.kernel ? s.x.kernel : 0;
}

// Whether all arrays begin at a multiple of `bytes`.
template <class T>
bool all_aligned(const Conv2dArrays<T>& a, size_t bytes) {
  return aligned(a.in, bytes) && aligned(a.out, bytes) && aligned(a.x, bytes);
}

}  // namespace nerfkit
