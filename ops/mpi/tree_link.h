/// The messages of negotiation over MPI.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "core/engine/interfaces.h"
#include "ops/mpi/communicator.h"

namespace hora::internal {

/// Each message is one MPI message of at most 4032 bytes (head: its length, then its first bytes),
/// and for longer ones a second that carries the rest.
///
/// One receive for heads, from any source, is always posted. Asking it costs one round of MPI's
/// progress, whatever the number of nodes, where MPI_Iprobe from any source looks at every rank.
/// Thread rule: one thread at a time.
class MpiTreeLink : public TreeLink {
 public:
  static constexpr std::size_t kMaximumBytes = std::size_t{16} << 20;

  /// `leaders[node]`: the leader's rank in `communicator`, which must outlive this link and carry
  /// no other messages.
  MpiTreeLink(const Communicator& communicator, std::vector<int> leaders, int node);
  MpiTreeLink(const MpiTreeLink&) = delete;
  MpiTreeLink& operator=(const MpiTreeLink&) = delete;
  ~MpiTreeLink() override;

  void send(int node, std::span<const std::byte> message) override;
  std::optional<Received> receive() override;
  bool flushed() override;

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;  // head, then rest
    MPI_Request head = MPI_REQUEST_NULL;
    MPI_Request rest = MPI_REQUEST_NULL;
  };
  struct Arriving {
    Received message;
    MPI_Request rest = MPI_REQUEST_NULL;
  };

  std::size_t take_free_slot();
  bool sent(Outgoing& outgoing);
  void take_heads();
  Arriving take_head(int source, std::size_t bytes);

  const Communicator& communicator_;
  std::vector<int> leaders_;
  std::vector<int> node_of_rank_;  // -1: no leader
  int node_;

  // A deque, because MPI knows the addresses of the buffers and of nothing else; slots are reused.
  std::deque<Outgoing> outgoing_;
  std::vector<std::size_t> in_flight_;  // indices in outgoing_
  std::vector<std::size_t> free_;

  std::vector<std::byte> head_;
  MPI_Request head_request_ = MPI_REQUEST_NULL;  // persistent
  std::deque<Arriving> arriving_;                // in order of their heads
};

}  // namespace hora::internal
