/// The messages of one simulated rank, over SMPI's MPI calls, and how it waits for them.
#pragma once

#include <smpi/smpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/engine/interfaces.h"
#include "ops/cross/point_to_point.h"

namespace bench::scale {

/// Messages that a rank has sent and received.
struct MessageCount {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
};

/// The tags of one rank's messages; those below are PointToPoint's.
enum Tag : int { kTreeTag = 40000, kWakeTag, kCoordinatorTag };

/// Every request that a rank has open. A simulated rank never polls, since that would cost the
/// simulation an event each time: it blocks until one of them completes, as a rank that spins.
/// Thread rule: the simulated rank that owns it.
class OpenRequests {
 public:
  using Number = int;

  Number add(MPI_Request request);
  /// True once, when the request has completed; the number is free from then on. Completions are
  /// noted by await().
  bool take(Number number, MPI_Status* status = nullptr);
  /// Blocks until a request completes. There is one.
  void await();

 private:
  struct Slot {
    bool done = false;
    MPI_Status status;
  };
  std::vector<MPI_Request> requests_;
  std::vector<Number> numbers_;  ///< of requests_
  std::vector<Slot> slots_;      ///< by number
  std::vector<Number> free_;
};

/// A receive that is posted again whenever it has completed.
class StandingReceive {
 public:
  struct Message {
    int source = 0;
    std::span<const std::byte> bytes;  ///< until the next call
  };
  StandingReceive(OpenRequests& requests, MessageCount& count, int tag, std::size_t longest);
  std::optional<Message> take();

 private:
  void post();

  OpenRequests& requests_;
  MessageCount& count_;
  int tag_;
  std::size_t longest_;
  std::unique_ptr<std::byte[]> memory_;
  std::size_t half_ = 0;  ///< of the memory: the one that receives
  OpenRequests::Number number_ = 0;
};

/// Negotiation between leaders, one MPI message each.
class SmpiTreeLink final : public hora::internal::TreeLink {
 public:
  static constexpr std::size_t kLongest = std::size_t{1} << 20;

  /// The leader of node i is rank i * ranks_per_node.
  SmpiTreeLink(OpenRequests& requests, MessageCount& count, int ranks_per_node);
  void send(int node, std::span<const std::byte> message) override;
  std::optional<Received> receive() override;
  bool flushed() override;

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    OpenRequests::Number number;
  };
  OpenRequests& requests_;
  MessageCount& count_;
  int ranks_per_node_;
  StandingReceive heads_;
  std::vector<Outgoing> outgoing_;
};

/// Messages among members[0], members[1], ...
class SmpiPointToPoint final : public hora::internal::PointToPoint {
 public:
  SmpiPointToPoint(OpenRequests& requests, MessageCount& count, int index,
                   std::vector<int> members);
  Request send(int to, int tag, std::span<const std::byte> bytes) override;
  Request receive(int from, int tag, std::span<std::byte> bytes) override;
  bool test(Request request) override { return requests_.take(request); }
  /// A simulation that fails ends.
  bool withdraw(Request receive) override { return requests_.take(receive); }

 private:
  OpenRequests& requests_;
  MessageCount& count_;
  std::vector<int> members_;
};

}  // namespace bench::scale
