/// Messages between the members of a cross group in one process; a random generator decides what
/// arrives when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "ops/cross/point_to_point.h"

namespace hora::internal::test {

/// Keeps the order of each (sender, receiver, tag), nothing else. Half of the sends are complete at
/// once, their bytes copied (MPI's eager protocol), the others when their receive is there.
///
/// Throws std::logic_error for what MPI forbids or leaves undefined: a send's memory that changes
/// or is received into while under way, two receives into one place, lengths that differ, a tag out
/// of range, a test of a request that is not open. Receives fill their memory with garbage when
/// posted.
///
/// Thread rule: each member by one thread at a time, everything else by one thread.
class MessageNetwork {
 public:
  enum class Delivery {
    by_hand,  ///< deliver_one() lets messages arrive
    by_tests  ///< a message arrives after a random number of its receiver's tests
  };
  /// Called, by the member's thread, with the memory of each of its messages.
  using Inspect = std::function<void(int member, std::span<const std::byte>)>;

  MessageNetwork(int members, std::uint64_t seed, Delivery delivery = Delivery::by_hand,
                 Inspect inspect = {});
  ~MessageNetwork();
  MessageNetwork(const MessageNetwork&) = delete;
  MessageNetwork& operator=(const MessageNetwork&) = delete;

  PointToPoint& member(int index);
  /// Lets one message arrive; false where none can.
  bool deliver_one();
  /// Requests that are open and messages that no member has received.
  std::size_t left_over() const;
  using Message = std::tuple<int, int, std::size_t>;  // from, to, bytes
  const std::multiset<Message>& sent() const { return sent_; }

 private:
  class Member;
  using Channel = std::tuple<int, int, int>;  // from, to, tag
  struct Transfer {
    int owner = 0;  // member, and its request: -1 where it is complete already
    PointToPoint::Request request = -1;
    std::span<const std::byte> source;
    std::span<std::byte> target;
    std::vector<std::byte> copy;
    std::uint64_t tests = 0;  ///< by the receiver before it arrives
  };
  struct Queues {
    bool can_deliver() const { return !sends.empty() && !receives.empty(); }
    std::deque<Transfer> sends;
    std::deque<Transfer> receives;
  };

  void forbid_overlap(int owner, std::span<const std::byte> memory, bool also_with_sends) const;
  /// Cancels a receive; false where a message is on its way to it, to arrive by deliver_one().
  bool cancel(const Channel& channel, PointToPoint::Request receive);
  void deliver_if_tested_enough(const Channel& channel, PointToPoint::Request receive);
  void deliver(std::map<Channel, Queues>::iterator channel);

  mutable std::mutex mutex_;  ///< of everything below
  std::mt19937_64 random_;
  Delivery delivery_;
  Inspect inspect_;
  std::vector<std::unique_ptr<Member>> members_;
  std::map<Channel, Queues> channels_;
  std::multiset<Message> sent_;
};

}  // namespace hora::internal::test
