/// Staging in the host's memory.
#pragma once

#include "ops/hierarchy/exchange_memory.h"

namespace hora {

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

}  // namespace hora
