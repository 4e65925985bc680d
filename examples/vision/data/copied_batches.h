/// Batches that a device still reads.
#pragma once

#include <functional>
#include <list>
#include <memory>

#include "examples/vision/data/batch.h"

namespace vision {

/// Keeps each batch, and so its memory from the loader's workers, until the copy from it has ended.
///
/// Thread rule: one thread.
class CopiedBatches {
 public:
  /// Whether a copy has ended.
  using Ended = std::function<bool()>;

  CopiedBatches() = default;
  CopiedBatches(const CopiedBatches&) = delete;
  CopiedBatches& operator=(const CopiedBatches&) = delete;
  /// Waits for all copies; a batch of which `ended` throws is abandoned.
  ~CopiedBatches();

  void keep(std::shared_ptr<BatchData> batch, Ended ended);
  /// Gives back the batches whose copies have ended. Never waits. Throws what an `ended` throws;
  /// its batch stays.
  void release();
  /// The memory is never used again: for a copy of which nobody knows when it ends.
  static void abandon(std::shared_ptr<BatchData> batch);

 private:
  struct Copy {
    std::shared_ptr<BatchData> batch;
    Ended ended;
  };
  std::list<Copy> copies_;
};

}  // namespace vision
