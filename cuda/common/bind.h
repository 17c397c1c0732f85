// SPDX-License-Identifier: Apache-2.0
// For bind.cpp: tensors, checks and allocation through LibTorch's stable ABI, for the CPU or, with USE_CUDA, the GPU.

#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/launch.h"

#ifdef USE_CUDA
#define NERFKIT_DEVICE CUDA
#else
#define NERFKIT_DEVICE CPU
#endif

namespace nerfkit {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Shape = std::vector<int64_t>;

constexpr int64_t ANY = -1;  // a size that may be anything

// Makes the device of `reference` the current one and finds its current stream.
class OnDevice {
 public:
  explicit OnDevice(const Tensor& reference)
#ifdef USE_CUDA
      : guard_(reference.get_device_index()) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(reference.get_device_index(), &stream));
  }
  Stream stream = nullptr;

 private:
  torch::stable::accelerator::DeviceGuard guard_;
#else
  {
  }
  Stream stream = nullptr;
#endif
};

inline DType dtype_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return DType::f32;
    case ScalarType::Double:
      return DType::f64;
    case ScalarType::Half:
      return DType::f16;
    case ScalarType::BFloat16:
      return DType::bf16;
    default:
      break;
  }
  STD_TORCH_CHECK(false, "nerfkit: the kernels take float32, float64, float16 or bfloat16");
  return DType::f32;
}

// The dtype of accumulators: float64 for float64, else float32. Positions have it, too.
inline ScalarType acc_type(ScalarType type) {
  return type == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline std::string shape_string(const Shape& shape) {
  std::string out = "[";
  for (int64_t size : shape) out += (out.size() > 1 ? ", " : "") + (size == ANY ? "*" : std::to_string(size));
  return out + "]";
}

inline Shape shape_of(const Tensor& tensor) {
  Shape shape;
  for (int64_t i = 0; i < tensor.dim(); ++i) shape.push_back(tensor.size(i));
  return shape;
}

// Requires shape and dtype, and the device of `reference`: a kernel must never get a pointer of another device.
// Returns the tensor, or a contiguous copy.
inline Tensor check_contiguous(const char* name, const Tensor& tensor, const Tensor& reference, ScalarType type,
                               const Shape& shape) {
  STD_TORCH_CHECK(tensor.is_cpu() == reference.is_cpu() && tensor.get_device_index() == reference.get_device_index(),
                  "nerfkit: ", name, " is on another device than the other tensors");
  STD_TORCH_CHECK(tensor.scalar_type() == type, "nerfkit: ", name, " must be ", torch::headeronly::toString(type),
                  ", got ", torch::headeronly::toString(tensor.scalar_type()));
  bool fits = tensor.dim() == int64_t(shape.size());
  for (size_t i = 0; fits && i < shape.size(); ++i) fits = shape[i] == ANY || shape[i] == tensor.size(i);
  STD_TORCH_CHECK(fits, "nerfkit: ", name, " must have shape ", shape_string(shape), ", got ",
                  shape_string(shape_of(tensor)));
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

inline Tensor check_contiguous(const char* name, const Tensor& tensor, const Tensor& reference, const Shape& shape) {
  return check_contiguous(name, tensor, reference, reference.scalar_type(), shape);
}

// On the device of `like`. Not torch::stable::new_empty, which finds its op by name and then goes through the
// dispatcher: of a small op that is half the time.
inline Tensor empty(const Tensor& like, const Shape& shape, ScalarType type) {
  int32_t device = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device));
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
  const auto number = torch::stable::detail::to<int32_t>(torch::stable::detail::from(type));
  AtenTensorHandle handle = nullptr;
  const auto failed = aoti_torch_empty_strided(int64_t(shape.size()), shape.data(), strides.data(), number, device,
                                               like.get_device_index(), &handle);
  STD_TORCH_CHECK(!failed, "nerfkit: can't allocate memory for a tensor of shape ", shape_string(shape));
  return Tensor(handle);
}
inline Tensor empty(const Tensor& like, const Shape& shape) { return empty(like, shape, like.scalar_type()); }
inline Tensor zeros(const Tensor& like, const Shape& shape, ScalarType type) {
  return torch::stable::new_zeros(like, shape, type);
}
// For a result that is not asked for.
inline Tensor empty0(const Tensor& like) { return empty(like, {0}); }

inline const void* const_ptr(const Tensor& tensor) { return tensor.const_data_ptr(); }
// Null for a tensor without elements: an output that is not asked for.
inline void* mutable_ptr(Tensor& tensor) { return tensor.numel() ? tensor.mutable_data_ptr() : nullptr; }
// CSR row pointers of packed samples, [R + 1]. On the CPU they are checked; on the GPU a check would synchronize, so
// there they are a precondition. allow_padding: there may be more rows than the rays have samples.
inline const int64_t* offsets(const Tensor& tensor, int64_t n_rows, bool allow_padding = false) {
  const auto* values = static_cast<const int64_t*>(tensor.const_data_ptr());
#ifndef USE_CUDA
  const int64_t last = tensor.numel() - 1;
  bool rises = values[0] == 0 && (allow_padding ? values[last] <= n_rows : values[last] == n_rows);
  for (int64_t i = 0; rises && i < last; ++i) rises = values[i] <= values[i + 1];
  STD_TORCH_CHECK(rises, "nerfkit: row pointers must rise from 0 to ", allow_padding ? "at most " : "",
                  "the number of rows, ", n_rows);
#endif
  return values;
}

inline void check_launch(const char* op, Status status) {
  STD_TORCH_CHECK(status == 0, "nerfkit: ", op, " did not launch: ", status_text(status));
}

}  // namespace nerfkit
