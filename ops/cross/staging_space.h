/// The memory that the cross group's algorithms work on, and how it is summed there.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <memory>
#include <span>

#include "core/plan/plan.h"
#include "ops/hierarchy/groups.h"

namespace hora::internal {

/// The host's memory, or a GPU's. Thread rule: the thread that holds the engine's lock.
class StagingSpace {
 public:
  virtual ~StagingSpace() = default;
  /// 64-byte aligned, not initialised. May wait for all that the device does: call it when no
  /// operation is under way. Throws Error(out_of_memory).
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* data) noexcept = 0;
  /// Starts output = the inputs taken together in their order, with the bits of ops/local's
  /// reduce(), of which one input without scale is a copy. The memory, not the list, is in use
  /// until completion; then it holds the result, ready to be read by MPI and by the device's
  /// streams.
  virtual Completion reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
                            std::byte* output, std::size_t count) = 0;
  /// Likewise starts output = the input's values in another floating-point type, with the bits of
  /// ops/local's convert(). The two do not overlap.
  virtual Completion convert(DataType source, const std::byte* input, DataType target,
                             std::byte* output, std::size_t count) = 0;
};

/// Everything is complete when the call returns. Thread rule: any thread.
class HostSpace final : public StagingSpace {
 public:
  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* data) noexcept override;
  Completion reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
                    std::byte* output, std::size_t count) override;
  Completion convert(DataType source, const std::byte* input, DataType target, std::byte* output,
                     std::size_t count) override;
};

/// One for all: it has no state.
HostSpace& host_space() noexcept;

/// 64-byte aligned memory of a staging space, which grows and is not initialised.
class WorkBuffer {
 public:
  /// `space` outlives it.
  explicit WorkBuffer(StagingSpace& space) : space_(space), data_(nullptr, Free{space}) {}
  /// At least this many bytes; what was in it before is lost.
  std::byte* reserve(std::size_t bytes);

 private:
  struct Free {
    StagingSpace& space;
    void operator()(std::byte* data) const noexcept { space.release(data); }
  };
  StagingSpace& space_;
  std::unique_ptr<std::byte, Free> data_;
  std::size_t capacity_ = 0;
};

}  // namespace hora::internal
