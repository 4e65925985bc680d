/// Messages between the members of a cross group that are threads of one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "ops/cross/point_to_point.h"

namespace hora::test {

/// Half of the messages are read when they are sent, the others when their receive is there, after
/// a random number of tests; memory is written then, and filled with garbage before. So a member
/// that sends before its memory is complete, or reads before a receive is, gets wrong bytes.
/// Thread rule: a member by one thread at a time, construction and destruction by one thread.
class ThreadNetwork {
 public:
  /// Called, by the member's thread, with the memory of each of its messages.
  using Inspect = std::function<void(int member, std::span<const std::byte>)>;
  ThreadNetwork(int members, std::uint64_t seed, Inspect inspect);
  ~ThreadNetwork();

  PointToPoint& member(int index);

 private:
  class Member;
  using Channel = std::tuple<int, int, int>;  ///< from, to, tag
  struct Message {
    std::span<const std::byte> source;
    std::vector<std::byte> copy;  ///< where it was read at once
    bool eager = false;
    int questions = 0;  ///< tests by the receiver before it completes
    std::shared_ptr<bool> sent;
  };
  bool arrive(const Channel& channel, std::span<std::byte> target);

  std::mutex mutex_;
  std::mt19937_64 random_;
  Inspect inspect_;
  std::map<Channel, std::deque<Message>> under_way_;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace hora::test
