/// All communicators of a process: the world's, and those of other process sets.
#pragma once

#include <list>

#include "ops/nccl/communicator.h"

namespace hora {

/// Thread rule: as NcclCommunicator.
class NcclCommunicators {
 public:
  /// A place for one; it stays where it is. The first one is the world's.
  NcclCommunicator& add() { return open_.emplace_back(); }
  NcclCommunicator& world() { return open_.front(); }

  /// Throws where NCCL reports an error of any.
  void check_async() const;
  /// Ends all collectives of this rank.
  void abort() noexcept;

  /// Frees one, whose launches have all begun, when its collectives are done: collective over
  /// its members, continued by advance(). Throws Error(transport).
  void retire(NcclCommunicator& communicator);
  /// True while retired ones are left.
  bool advance();
  /// Frees all: collective over the members of each, which may have them in any order. Throws
  /// Error(transport) where that fails or is not done by the deadline.
  void close(NcclCommunicator::Deadline deadline);

 private:
  std::list<NcclCommunicator> open_;
  std::list<NcclCommunicator> closing_;
};

}  // namespace hora
