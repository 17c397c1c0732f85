// SPDX-License-Identifier: Apache-2.0
// Which kernel takes which size. On tensor cores: a state of 16 units in the registers of a warp (state16), others with
// 16 rays a group (mma16). In plain arithmetic one warp per ray (generic): float64, GPUs without such tensor cores, no
// inputs.

#include "lltm/launchers.cuh"

namespace nerfkit {
namespace {

bool has_mma(DType dtype, const Gpu& gpu) { return dtype != DType::f64 && gpu.major >= TENSOR_CORES_MAJOR; }

bool is_state16(DType dtype, int64_t n_state, int64_t n_input, const Gpu& gpu) {
  return has_mma(dtype, gpu) && dtype != DType::f32 && n_state == 16 && (n_input == 16 || n_input == 32);
}

bool launch_on_tensor_cores(const LltmLaunch& on, const LltmForward<void>& a) {
  if (a.shape.n_input == 0) return false;
  if (on.dtype == DType::f32) return launch_mma16_forward<float>(on, a);
  return on.dtype == DType::f16 ? launch_mma16_forward<__half>(on, a) : launch_mma16_forward<__nv_bfloat16>(on, a);
}

Status finish(Status status) { return status ? status : launched(); }

}  // namespace

bool lltm_is_state16(DType dtype, int64_t n_state, int64_t n_input) {
  return is_state16(dtype, n_state, n_input, current_gpu());
}

Status lltm(DType dtype, const LltmForward<void>& a, Stream stream) {
  const LltmShape& s = a.shape;
  if (s.n_rays == 0 || s.n_state == 0) return 0;
  const LltmLaunch on{dtype, current_gpu(), (cudaStream_t)stream};
  if (is_state16(dtype, s.n_state, s.n_input, on.gpu)) return finish(launch_state16_forward(on, a));
  if (has_mma(dtype, on.gpu) && launch_on_tensor_cores(on, a)) return launched();
  launch_generic_forward(on, a);
  return launched();
}

Status lltm_bwd(DType dtype, const LltmBackward<void>& a, Stream stream) {
  const LltmLaunch on{dtype, current_gpu(), (cudaStream_t)stream};
  if (!is_state16(dtype, a.shape.n_state, a.shape.n_input, on.gpu)) return cudaErrorNotSupported;
  return finish(launch_state16_backward(on, a));
}

Status lltm_gates_bwd(DType dtype, const LltmGateBackward<void>& a, Stream stream) {
  if (a.shape.n_rays == 0 || a.shape.n_state == 0) return 0;
  const LltmLaunch on{dtype, current_gpu(), (cudaStream_t)stream};
  if (has_mma(dtype, on.gpu) && launch_mma16_backward(on, a)) return launched();
  launch_generic_backward(on, a);
  return launched();
}

}  // namespace nerfkit
