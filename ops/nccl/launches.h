/// What a process set gives the stream that NCCL runs on, and the order in which its calls begin.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "core/board/launch_turns.h"
#include "ops/hierarchy/completion.h"
#include "ops/nccl/site.h"

namespace hora {

/// Launches begin in the order in which they are made, each when the communicator has accepted the
/// one before (it never blocks), and in a turn among the process sets where it is said to take one.
/// Thread rule: the thread that holds the engine's lock; outlives the completions.
class NcclLaunches {
 public:
  using Step = std::function<void()>;
  using LastStep = std::function<const Event*()>;

  /// How the communicator is made, if it is not there yet: as the first launch, in a turn.
  struct Connection {
    Step announce;  ///< before the turn is asked for
    Step begin;
  };

  /// References outlive it.
  NcclLaunches(NcclSite& site, NcclCommunicator& communicator, LaunchTurns turns,
               Connection connection = {})
      : site_(site),
        communicator_(communicator),
        turns_(turns),
        connection_(std::move(connection)) {}

  /// `enqueue` calls NCCL; `enqueued` follows once NCCL has accepted that; then the event that it
  /// returns, if any, is waited for. Both with the device as the current one.
  Completion launch(bool takes_turn, Step enqueue, LastStep enqueued);
  /// What was put on the stream so far is watched: see DeviceWatch.
  void watch() { site_.watch.add(stream()); }

  NcclSite& site() const { return site_; }
  const CudaFunctions& cuda() const { return site_.cuda; }
  const NcclFunctions& nccl() const { return site_.nccl; }
  ncclComm_t communicator() const { return communicator_.get(); }
  cudaStream_t stream() const { return site_.stream.get(); }

 private:
  class Launch;

  bool is_next(std::uint64_t ticket);

  NcclSite& site_;
  NcclCommunicator& communicator_;
  LaunchTurns turns_;
  Connection connection_;
  Completion connecting_;
  std::uint64_t next_ = 0;  ///< tickets
  std::uint64_t launched_ = 0;
};

}  // namespace hora
