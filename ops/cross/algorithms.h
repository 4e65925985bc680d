/// The algorithms of the cross group: each is a class of its own source, where its comment says
/// steps, bytes and messages a node. Adasum's, which tests drive by itself, has a header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "core/plan/plan.h"
#include "ops/cross/cross_work.h"
#include "ops/hierarchy/groups.h"

namespace hora {

/// A way to add up the members' stagings: of at least 2 members, not empty, whole elements.
struct AllreduceAlgorithm {
  std::string_view name;
  /// Memory that one operation works in, beside its staging; of any type.
  std::size_t (*work_bytes)(std::size_t staging_bytes, int members);
  Completion (*start)(CrossResources& resources, const Reduction& reduction,
                      std::span<std::byte> staging, std::uint64_t sequence);
};

extern const AllreduceAlgorithm kDirectAllreduce;         ///< direct_allreduce.cpp
extern const AllreduceAlgorithm kDisseminationAllreduce;  ///< dissemination_allreduce.cpp
extern const AllreduceAlgorithm kRingAllreduce;           ///< ring_allreduce.cpp

/// `start` of an algorithm that is this CrossWork.
template <class Work>
Completion start_allreduce(CrossResources& resources, const Reduction& reduction,
                           std::span<std::byte> staging, std::uint64_t sequence) {
  return Completion(std::make_unique<Work>(resources, reduction, staging, sequence));
}

/// Among at least 2 members; `root` is one of them (binomial_broadcast.cpp).
Completion start_broadcast(CrossResources& resources, std::span<std::byte> staging, int root,
                           std::uint64_t sequence);

/// Each member's own bytes to each other member (direct_exchange.cpp). `sends`, `receives`: by
/// member; the own ones are ignored.
Completion start_exchange(CrossResources& resources,
                          std::span<const std::span<const std::byte>> sends,
                          std::span<const std::span<std::byte>> receives, std::uint64_t sequence);

}  // namespace hora
