/// Members of a cross group in one thread; a random generator decides what arrives when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "ops/cross/point_to_point.h"

namespace hora::test {

/// Keeps the order of each (sender, receiver, tag), nothing else. Half of the sends are complete at
/// once, their bytes copied (MPI's eager protocol), the others when their receive is there.
///
/// Throws std::logic_error for what MPI forbids or leaves undefined: a send's memory that changes
/// or is received into while under way, two receives into one place, lengths that differ, a tag out
/// of range, a test of a request that is not open. Receives fill their memory with garbage when
/// posted.
class FakeNetwork {
 public:
  FakeNetwork(int members, std::mt19937_64& random);
  ~FakeNetwork();
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  PointToPoint& member(int index);
  /// Lets one message arrive; false where none can.
  bool deliver_one();
  /// Requests open and messages nobody received.
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
  };
  struct Queues {
    std::deque<Transfer> sends;
    std::deque<Transfer> receives;
  };

  void forbid_overlap(int owner, std::span<const std::byte> memory, bool also_with_sends) const;

  std::mt19937_64& random_;
  std::vector<std::unique_ptr<Member>> members_;
  std::map<Channel, Queues> channels_;
  std::multiset<Message> sent_;
};

}  // namespace hora::test
