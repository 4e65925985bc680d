#include "ops/mpi/cross_group.h"

#include <hora/error.h>

#include <array>
#include <memory>
#include <string>

#include "ops/local/kernels.h"
#include "ops/mpi/binomial_broadcast.h"
#include "ops/mpi/direct_allreduce.h"
#include "ops/mpi/direct_exchange.h"
#include "ops/mpi/dissemination_allreduce.h"
#include "ops/mpi/ring_allreduce.h"

namespace hora {

Completion MessageCrossGroup::allreduce(DataType type, std::span<std::byte> staging, double scale,
                                        std::uint64_t sequence) {
  if (staging.size() % size_of(type) != 0) {
    throw Error(ErrorCode::invalid_argument, std::to_string(staging.size()) +
                                                 " bytes of staging are no whole number of " +
                                                 std::string(name_of(type)) + " elements");
  }
  if (staging.empty()) {
    return Completion();
  }
  if (resources_.link().size() == 1) {
    const std::array<const std::byte*, 1> input{staging.data()};
    const std::array<std::byte*, 1> output{staging.data()};
    reduce(type, input, output, staging.size() / size_of(type), scale);
    return Completion();
  }
  if (staging.size() <= options_.small_message) {
    return Completion(
        std::make_unique<DisseminationAllreduce>(resources_, type, staging, scale, sequence));
  }
  if (options_.algorithm == CrossAlgorithm::ring) {
    return Completion(std::make_unique<RingAllreduce>(resources_, type, staging, scale, sequence));
  }
  return Completion(std::make_unique<DirectAllreduce>(resources_, type, staging, scale, sequence));
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
  return Completion(std::make_unique<BinomialBroadcast>(resources_, staging, root, sequence));
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
  return Completion(std::make_unique<DirectExchange>(resources_, sends, receives, sequence));
}

}  // namespace hora
