#include "ops/cross/cross_group.h"

#include <hora/error.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "ops/cross/adasum_allreduce.h"

namespace hora::internal {

const AllreduceAlgorithm& allreduce_algorithm(CrossAlgorithm setting) {
  switch (setting) {
    case CrossAlgorithm::automatic:
    case CrossAlgorithm::direct:
      return kDirectAllreduce;
    case CrossAlgorithm::ring:
      return kRingAllreduce;
  }
  throw Error(ErrorCode::invalid_argument,
              "there is no cross algorithm " + std::to_string(static_cast<int>(setting)));
}

CrossOptions cross_options(const Settings& settings) {
  return {.algorithm = settings.cross_algorithm, .small_message = settings.small_message};
}

void MessageCrossGroup::reserve(std::size_t operations, std::size_t staging_bytes) {
  const int members = resources_.link().size();
  const std::size_t gathered =
      kDisseminationAllreduce.work_bytes(std::min(staging_bytes, small_message_), members);
  resources_.reserve(operations, std::max(gathered, algorithm_.work_bytes(staging_bytes, members)));
}

Completion MessageCrossGroup::allreduce(const Reduction& reduction, std::span<std::byte> staging,
                                        std::uint64_t sequence) {
  if (staging.size() % size_of(reduction.type) != 0) {
    throw Error(ErrorCode::invalid_argument,
                std::to_string(staging.size()) + " bytes of staging are no whole number of " +
                    std::string(name_of(reduction.type)) + " elements");
  }
  if (staging.empty()) {
    return Completion();
  }
  if (resources_.link().size() == 1) {
    const std::array<const std::byte*, 1> input{staging.data()};
    return resources_.space().reduce(reduction, input, staging.data(),
                                     staging.size() / size_of(reduction.type));
  }
  const bool is_small = staging.size() <= small_message_;
  return (is_small ? kDisseminationAllreduce : algorithm_)
      .start(resources_, reduction, staging, sequence);
}

Completion MessageCrossGroup::adasum(DataType type, std::span<std::byte> staging,
                                     std::vector<Range> tensors, std::uint64_t sequence) {
  return Completion(
      std::make_unique<AdasumAllreduce>(resources_, type, staging, std::move(tensors), sequence));
}

Completion MessageCrossGroup::broadcast(std::span<std::byte> staging, int root,
                                        std::uint64_t sequence) {
  const int members = resources_.link().size();
  if (root < 0 || root >= members) {
    throw Error(ErrorCode::invalid_argument, "broadcast from node " + std::to_string(root) +
                                                 ", but there are nodes 0 to " +
                                                 std::to_string(members - 1));
  }
  if (staging.empty() || members == 1) {
    return Completion();
  }
  return start_broadcast(resources_, staging, root, sequence);
}

Completion MessageCrossGroup::exchange(std::span<const std::span<const std::byte>> sends,
                                       std::span<const std::span<std::byte>> receives,
                                       std::uint64_t sequence) {
  const auto members = static_cast<std::size_t>(resources_.link().size());
  if (sends.size() != members || receives.size() != members) {
    throw Error(ErrorCode::invalid_argument, "an exchange among " + std::to_string(members) +
                                                 " nodes got " + std::to_string(sends.size()) +
                                                 " sends and " + std::to_string(receives.size()) +
                                                 " receives: give one of each for each node");
  }
  if (members == 1) {
    return Completion();
  }
  return start_exchange(resources_, sends, receives, sequence);
}

}  // namespace hora::internal
