/// Owner of the memory of one flight record, as its guard makes it, and as the rank maps it.
#pragma once

#include <cstdint>
#include <string>
#include <tl/expected.hpp>

#include "core/flight/record.h"

namespace hora::internal {

/// Move-only. Thread rule: one thread; layout() from any.
class RecordMemory {
 public:
  /// The guard's: a sealed memfd, which cannot be made shorter. Its descriptor closes on exec; a
  /// rank opens path() while the guard lives.
  static tl::expected<RecordMemory, std::string> create();
  /// The rank's, of memory that create() has made. Refused, with the reason: what is missing, of
  /// another size or layout, or in use by another process that lives. Writes nothing.
  static tl::expected<RecordMemory, std::string> open(const std::string& path);
  /// This process's own.
  static tl::expected<RecordMemory, std::string> anonymous();

  RecordMemory(RecordMemory&& other) noexcept;
  RecordMemory& operator=(RecordMemory&& other) noexcept;
  ~RecordMemory();

  RecordLayout& layout() const noexcept { return *layout_; }
  /// Of create(): "/proc/<this process>/fd/<descriptor>", for kRecordVariable; else empty.
  std::string path() const;

 private:
  RecordMemory(RecordLayout* layout, int descriptor) : layout_(layout), descriptor_(descriptor) {}

  RecordLayout* layout_ = nullptr;
  int descriptor_ = -1;
};

}  // namespace hora::internal
