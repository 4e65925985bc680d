/// Operations between nodes on all members of a group, in one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <vector>

#include "ops/cross/cross_group.h"
#include "tests/support/message_network.h"
#include "tests/support/reference/reference.h"

namespace hora::internal::test {

struct CrossOperation {
  std::optional<int> broadcast_root;  // else an allreduce
  DataType type = DataType::float32;
  double scale = 1.0;
  std::vector<Bytes> inputs;  // of each member

  Bytes expected() const {
    return broadcast_root ? inputs[static_cast<std::size_t>(*broadcast_root)]
                          : reduced(type, ReduceOp::sum, inputs, {.post = scale});
  }
};

/// All members of a group.
class CrossMembers {
 public:
  CrossMembers(int count, const CrossOptions& options, std::mt19937_64& random,
               StagingSpace& space = host_space())
      : random_(random), network_(count, random()) {
    for (int index = 0; index < count; ++index) {
      members_.push_back(std::make_unique<Member>(network_.member(index), options, space));
    }
  }

  void reserve(std::size_t operations, std::size_t staging_bytes) {
    for (auto& member : members_) member->group.reserve(operations, staging_bytes);
  }

  const MessageNetwork& network() const { return network_; }

  /// Runs the operations on every member, each member at its own pace and with up to `at_once`
  /// open; returns [operation][member] what is in the staging in the end.
  std::vector<std::vector<Bytes>> run(const std::vector<CrossOperation>& operations,
                                      std::size_t at_once, std::uint64_t first_sequence = 0) {
    results_.clear();
    for (const CrossOperation& operation : operations) results_.push_back(operation.inputs);
    for (auto& member : members_) member->started = 0;
    std::size_t idle_steps = 0;
    while (!complete(operations.size())) {
      const bool moved = step(operations, at_once, first_sequence);
      idle_steps = moved ? 0 : idle_steps + 1;
      if (idle_steps > 1000 * members_.size() && !network_.deliver_one()) {
        throw std::logic_error("deadlock");
      }
    }
    EXPECT_EQ(network_.left_over(), 0U);
    return results_;
  }

 private:
  struct Member {
    Member(PointToPoint& link, const CrossOptions& options, StagingSpace& space)
        : group(link, options, space) {}
    MessageCrossGroup group;
    std::size_t started = 0;
    std::deque<Completion> open;
  };

  bool complete(std::size_t operations) const {
    return std::all_of(members_.begin(), members_.end(), [&](const auto& member) {
      return member->started == operations && member->open.empty();
    });
  }

  /// One random thing; true where something moved.
  bool step(const std::vector<CrossOperation>& operations, std::size_t at_once,
            std::uint64_t first_sequence) {
    if (random_() % 3 == 0) return network_.deliver_one();
    const std::size_t index = random_() % members_.size();
    Member& member = *members_[index];
    if (random_() % 2 == 0) {
      if (member.started == operations.size() || member.open.size() >= at_once) return false;
      const std::size_t number = member.started++;
      member.open.push_back(start(member.group, operations[number], results_[number][index],
                                  first_sequence + number));
      return true;
    }
    if (member.open.empty()) return false;
    const auto which = static_cast<std::ptrdiff_t>(random_() % member.open.size());
    const auto completion = member.open.begin() + which;
    if (!completion->poll()) return false;
    member.open.erase(completion);
    return true;
  }

  static Completion start(MessageCrossGroup& group, const CrossOperation& operation, Bytes& staging,
                          std::uint64_t sequence) {
    return operation.broadcast_root
               ? group.broadcast(staging, *operation.broadcast_root, sequence)
               : group.allreduce({.type = operation.type, .scale = operation.scale}, staging,
                                 sequence);
  }

  std::mt19937_64& random_;
  MessageNetwork network_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::vector<Bytes>> results_;
};

inline CrossOperation allreduce_of(int members, DataType type, std::size_t bytes, double scale,
                                   std::mt19937_64& random) {
  CrossOperation operation{std::nullopt, type, scale, {}};
  for (int member = 0; member < members; ++member) {
    operation.inputs.push_back(random_values(type, bytes, random));
  }
  return operation;
}

inline void expect_results(const std::vector<CrossOperation>& operations,
                           const std::vector<std::vector<Bytes>>& results) {
  for (std::size_t number = 0; number < operations.size(); ++number) {
    const Bytes expected = operations[number].expected();
    for (std::size_t member = 0; member < results[number].size(); ++member) {
      ASSERT_TRUE(results[number][member] == expected)
          << "operation " << number << " of " << expected.size() << " bytes of "
          << name_of(operations[number].type) << ", scale " << operations[number].scale
          << (operations[number].broadcast_root ? ", a broadcast" : "") << ", member " << member;
    }
  }
}

}  // namespace hora::internal::test
