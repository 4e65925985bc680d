/// Ranks as threads, each with a fake GPU.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "ops/nccl/communicator.h"
#include "tests/support/fake_gpu/fake_gpu.h"

namespace hora::internal::test {

inline NcclCommunicator::Deadline in_milliseconds(int milliseconds) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
}
/// Longer than any test should take.
inline NcclCommunicator::Deadline far_away() {
  return in_milliseconds(60000);
}

class Ranks {
 public:
  explicit Ranks(int size, FakeGpuOptions options = {}) {
    for (int rank = 0; rank < size; ++rank) {
      gpus_.push_back(std::make_unique<FakeGpu>(world, options));
    }
    gpu(0).nccl().get_unique_id(&id);
  }

  int size() const { return static_cast<int>(gpus_.size()); }
  FakeGpu& gpu(int rank) { return *gpus_[static_cast<std::size_t>(rank)]; }
  /// Not ready yet.
  NcclCommunicator communicator(int rank) { return {gpu(rank).nccl(), id, size(), rank}; }

  /// Calls body(rank) on a thread for each rank; throws the first rank's exception, if any.
  template <class Body>
  void run(Body body) {
    std::vector<std::future<void>> ends;
    for (int rank = 0; rank < size(); ++rank) {
      ends.push_back(std::async(std::launch::async, [&, rank] {
        gpu(rank).choose();
        body(rank);
      }));
    }
    for (std::future<void>& end : ends) end.get();
  }

  FakeNcclWorld world;
  ncclUniqueId id{};

 private:
  std::vector<std::unique_ptr<FakeGpu>> gpus_;
};

}  // namespace hora::internal::test
