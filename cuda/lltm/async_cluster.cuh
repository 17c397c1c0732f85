// SPDX-License-Identifier: Apache-2.0
// Clusters: blocks that run at the same time and write to each other's shared memory, from compute capability 9.0 on.
// For older GPUs a kernel that calls these functions is compiled without a body, and has_clusters() keeps it from being
// launched.

#pragma once

#include "common/gpu.cuh"

namespace nerfkit {

constexpr int MOST_OF_CLUSTER = 8;  // blocks, that a whole GPU takes; a part of one may take fewer

__device__ __forceinline__ int rank_in_cluster() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ int blocks_of_cluster() {
  int size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

// All threads of all blocks. It waits for all that they wrote to memory, too, which takes long: once, not at every
// step.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

// The address, in the block of this rank, of what lies at `address` in one's own shared memory.
__device__ __forceinline__ unsigned address_in_block(unsigned address, int rank) {
  asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
  return address;
}

// ---- what arrives ----
//
// A barrier in shared memory counts bytes: its phase ends when as many have come as a thread said that it expects.
// Bytes may come before that was said.

struct alignas(8) Arrivals {
  uint64_t state;
};

// By all threads; seen by the other blocks after sync_cluster(). A loop instead of a condition: racecheck ignores
// predicates, and takes all threads for those that begin a barrier.
__device__ __forceinline__ void start_arrivals(Arrivals* arrivals, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x)
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(arrivals + i)) : "memory");
}

// By one thread, once a phase.
__device__ __forceinline__ void expect(Arrivals& arrivals, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(&arrivals)), "r"(bytes)
               : "memory");
}

// Until the phase ends; `phase` is the parity of its number.
__device__ __forceinline__ void await(Arrivals& arrivals, int phase) {
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "AGAIN:\n\t"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n\t"
      "@!done bra AGAIN;\n\t}" ::"r"(shared_address(&arrivals)),
      "r"(phase)
      : "memory");
}

// 16 bytes to a place in another block, by its address there and that of its barrier, which counts them.
__device__ __forceinline__ void send(unsigned to, const uint4& words, unsigned arrivals) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(arrivals)
               : "memory");
}

// The words of four neighbouring lanes, which lie together from `place` of the first on, to all of `count` blocks: a
// lane sends them to every fourth. All lanes call it.
__device__ __forceinline__ void send_to_all(const void* place, unsigned word, const Arrivals& arrivals, int count) {
  const int lane = threadIdx.x % 32, first = lane & ~3;
  const unsigned to = shared_address(place) - 4 * (lane - first), counter = shared_address(&arrivals);
  const auto of = [&](int k) { return __shfl_sync(FULL_MASK, word, first + k); };
  const uint4 words = make_uint4(of(0), of(1), of(2), of(3));
#pragma unroll
  for (int rank = lane - first; rank < MOST_OF_CLUSTER; rank += 4)
    if (rank < count) send(address_in_block(to, rank), words, address_in_block(counter, rank));
}

// ---- launches ----

// Whether this GPU has clusters, and `kernel` is compiled for it.
template <class Kernel>
bool has_clusters(Kernel* kernel, const Gpu& gpu) {
  constexpr int MAJOR = 9;
  cudaFuncAttributes compiled;
  return gpu.major >= MAJOR && cudaFuncGetAttributes(&compiled, kernel) == cudaSuccess &&
         compiled.ptxVersion >= 10 * MAJOR;
}

class ClusterLaunch {
 public:
  ClusterLaunch(int blocks, int threads, size_t shared, cudaStream_t stream) : blocks_(blocks) {
    size_.id = cudaLaunchAttributeClusterDimension;
    size_.val.clusterDim = {unsigned(blocks), 1, 1};
    config_.gridDim = unsigned(blocks), config_.blockDim = unsigned(threads);
    config_.dynamicSmemBytes = shared, config_.stream = stream;
    config_.attrs = &size_, config_.numAttrs = 1;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;  // config_ points to size_

  // Clusters that run at the same time.
  template <class Kernel>
  int at_once(Kernel* kernel) const {
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config_) == cudaSuccess) return clusters;
    cudaGetLastError();  // too many blocks here: no fault of the launch that follows
    return 0;
  }
  template <class... Parameters, class... Arguments>
  void run(void (*kernel)(Parameters...), int64_t clusters, const Arguments&... arguments) {
    config_.gridDim = unsigned(clusters * blocks_);
    cudaLaunchKernelEx(&config_, kernel, Parameters(arguments)...);
  }

 private:
  int blocks_;
  cudaLaunchAttribute size_{};
  cudaLaunchConfig_t config_{};
};

}  // namespace nerfkit
