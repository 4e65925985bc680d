/// Ranks with fake GPUs whose buffers become windows of NCCL's.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/cuda/stream.h"
#include "tests/ops/nccl/gpu_world.h"
#include "tests/support/seed.h"

namespace hora::internal::test {

/// A hora::Buffer of floats, or without a world memory that is none. The fake's memory is the
/// host's.
class WindowBuffer {
 public:
  WindowBuffer() = default;
  WindowBuffer(GpuWorld& world, int rank, std::size_t count)
      : engine_(&world.engine(rank)), data_(engine_->allocate_on_device(count * sizeof(float))) {}
  WindowBuffer(WindowBuffer&& other) noexcept
      : engine_(other.engine_), data_(std::exchange(other.data_, nullptr)) {}
  WindowBuffer& operator=(WindowBuffer&& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~WindowBuffer() {
    if (data_) engine_->release_on_device(data_);
  }
  float* values() const { return reinterpret_cast<float*>(data_); }

 private:
  Engine* engine_ = nullptr;
  std::byte* data_ = nullptr;
};

inline GpuWorldOptions with_windows(int ranks) {
  GpuWorldOptions options{.node_sizes = {ranks}};
  options.settings.nccl_windows = true;
  options.settings.device_timeout = std::chrono::seconds(60);
  options.gpu.seed = seed();
  options.gpu.longest_delay = std::chrono::microseconds(100);
  return options;
}

/// One rank's thread.
class WindowRank {
 public:
  WindowRank(GpuWorld& world, int rank)
      : world_(world), rank_(rank), device_(chosen(world, rank)), stream_(device_.cuda(), 0) {}

  GpuWorld& world() const { return world_; }
  Engine& engine() const { return world_.engine(rank_); }
  FakeGpu& gpu() const { return device_; }
  int rank() const { return rank_; }
  void* stream() const { return stream_.get(); }
  WindowBuffer buffer(std::size_t count) const { return {world_, rank_, count}; }

  static Signature signature(std::size_t count, OperationKind kind = OperationKind::allreduce) {
    Signature result;
    result.kind = kind;
    result.device = DeviceKind::cuda;
    result.shape = {static_cast<std::int64_t>(count)};
    return result;
  }
  std::shared_ptr<Operation> submit(std::string_view name, float* values, std::size_t count,
                                    ProcessSet set = kWorld) const {
    return engine().submit(
        {name, signature(count), reinterpret_cast<std::byte*>(values), stream_.get()}, set);
  }
  void synchronize() const {
    EXPECT_EQ(device_.cuda().stream_synchronize(stream_.get()), cudaSuccess);
  }
  /// Of rank + 1 on every rank, which is looked at.
  void allreduce(std::string_view name, float* values, std::size_t count,
                 ProcessSet set = kWorld) const {
    std::fill_n(values, count, static_cast<float>(rank_ + 1));
    engine().wait(*submit(name, values, count, set));
    synchronize();
    const int ranks = world_.size();
    EXPECT_THAT(std::vector(values, values + count),
                testing::Each(static_cast<float>(ranks * (ranks + 1)) / 2))
        << name << " on rank " << rank_;
  }

 private:
  static FakeGpu& chosen(GpuWorld& world, int rank) {
    world.gpu(rank).choose();
    return world.gpu(rank);
  }

  GpuWorld& world_;
  int rank_;
  FakeGpu& device_;
  CudaStream stream_;
};

}  // namespace hora::internal::test
