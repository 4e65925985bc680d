/// The memory pools of a fake GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace hora::internal::test {

/// Thread rule: any thread.
class FakePools {
 public:
  void add(cudaMemPool_t pool);
  /// The others: false where there is no such pool.
  bool remove(cudaMemPool_t pool);
  bool keep(cudaMemPool_t pool, std::uint64_t bytes);
  bool knows(cudaMemPool_t pool) const;

  /// Bytes that each keeps when the device synchronises; CUDA's default is 0.
  std::vector<std::uint64_t> kept() const;

 private:
  mutable std::mutex mutex_;
  std::map<cudaMemPool_t, std::uint64_t> kept_;
};

}  // namespace hora::internal::test
