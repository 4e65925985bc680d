/// Start-up's collectives over MPI.
#pragma once

#include "ops/cross/bootstrap.h"
#include "ops/mpi/communicator.h"
#include "ops/mpi/roll_call.h"

namespace hora {

/// Ranks call the roll before each blocking call (roll_call.h), so that missing ones are named and
/// timed out. Thread rule: one thread at a time.
class MpiBootstrap final : public Bootstrap {
 public:
  /// `communicator` carries no other messages meanwhile.
  explicit MpiBootstrap(Communicator communicator, Patience patience = {});

  const Communicator& communicator() const noexcept { return communicator_; }

  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override;
  std::vector<std::byte> broadcast(std::span<const std::byte> bytes, int root) override;
  void barrier() override;
  std::unique_ptr<Bootstrap> of_host() override;

 private:
  void meet(const char* call) const;

  Communicator communicator_;
  Patience patience_;
};

}  // namespace hora
