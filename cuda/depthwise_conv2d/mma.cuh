// SPDX-License-Identifier: Apache-2.0
// The arguments of both ways for half types on tensor cores, planes and channels last.

#pragma once

#include "common/async_copy.cuh"
#include "common/mma.cuh"
#include "common/reduce_partials.cuh"
#include "depthwise_conv2d/args.h"

namespace nerfkit {

template <class T>
struct HalfConv {
  const T* in;      // x, or grad_out for the backward pass
  const T* weight;  // [C, KH * KW]
  const T* bias;
  T* out;           // null if only the weight's gradient is wanted
  const T* x;       // backward: to be multiplied with the window
  float* partials;  // [parts, C, KH * KW + 1], or null
  Conv2dShape::Strides strides;
  int64_t units;  // of work: planes or, channels last, groups of channels; times strips and pieces
  int channels, height, width;
  int strips, pieces, rows;  // across a row; down a column; rows of a strip
  // Channels last.
  int pictures, period;            // rows from a picture to the next, with zeros between
  int quads;                       // four channels each, of a block
  int paired_pieces, paired_rows;  // of the strip that two pictures share, if there is one
};

}  // namespace nerfkit
