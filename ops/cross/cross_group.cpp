#include "ops/cross/cross_group.h"

#include <fmt/format.h>
#include <hora/error.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "ops/cross/cross_work.h"

namespace hora::internal {
namespace {

constexpr int kDown = 0;

/// Down a binomial tree that is rooted at `root`: ceil(log2 n) hops, each member receives the data
/// once. Long data is cut into chunks by the caller, whose broadcasts then follow each other down
/// the tree. Thread rule: as CrossGroup.
class BinomialBroadcast : public CrossWork {
 public:
  // The parent of position p is p without its lowest set bit; its children are p + 2^k for every
  // 2^k below that bit (for the root: below n).
  BinomialBroadcast(CrossResources& resources, std::span<std::byte> staging, int root,
                    std::uint64_t sequence)
      : CrossWork(resources, sequence),
        staging_(staging),
        root_(root),
        position_((link().index() - root + link().size()) % link().size()),
        members_(link().size()) {
    if (position_ != 0) {
      const int parent = position_ & (position_ - 1);
      receive(workspace().receives, (parent + root_) % members_, kDown, staging_);
    }
  }
  bool poll() override {
    if (!workspace().receives.drained(link())) return false;
    if (!sent_) {
      send_to_children();
      sent_ = true;
    }
    return workspace().sends.drained(link()) && finish();
  }

 private:
  void send_to_children() {
    const int lowest_bit = position_ & -position_;
    int bit = 1;
    while (bit < members_ && (position_ == 0 || bit < lowest_bit)) bit *= 2;
    // The child with the deepest subtree first.
    for (bit /= 2; bit > 0; bit /= 2) {
      if (position_ + bit < members_) {
        send(workspace().sends, (position_ + bit + root_) % members_, kDown, staging_);
      }
    }
  }

  std::span<std::byte> staging_;
  int root_;
  int position_;  // counted from the root
  int members_;
  bool sent_ = false;
};

constexpr int kExchange = 0;

/// One message for each pair of members that have something for each other, at most n - 1 out of
/// and n - 1 into a member, all at once and each member beginning with another peer. Both ends know
/// the lengths, and nothing is sent for an empty span. Thread rule: as CrossGroup.
class DirectExchange : public CrossWork {
 public:
  /// `sends`, `receives`: by member; the own ones are ignored.
  DirectExchange(CrossResources& resources, std::span<const std::span<const std::byte>> sends,
                 std::span<const std::span<std::byte>> receives, std::uint64_t sequence)
      : CrossWork(resources, sequence) {
    const int own_index = link().index();
    const int members = link().size();
    for (int k = 1; k < members; ++k) {
      const int from =
          (own_index + members - k) % members;  // the peer that begins with this member comes first
      receive(workspace().receives, from, kExchange, receives[static_cast<std::size_t>(from)]);
    }
    for (int k = 1; k < members; ++k) {
      const int to = (own_index + k) % members;
      send(workspace().sends, to, kExchange, sends[static_cast<std::size_t>(to)]);
    }
  }
  bool poll() override {
    return workspace().receives.drained(link()) && workspace().sends.drained(link()) && finish();
  }
};

}  // namespace

Completion start_broadcast(CrossResources& resources, std::span<std::byte> staging, int root,
                           std::uint64_t sequence) {
  return Completion(std::make_unique<BinomialBroadcast>(resources, staging, root, sequence));
}

Completion start_exchange(CrossResources& resources,
                          std::span<const std::span<const std::byte>> sends,
                          std::span<const std::span<std::byte>> receives, std::uint64_t sequence) {
  return Completion(std::make_unique<DirectExchange>(resources, sends, receives, sequence));
}

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
                fmt::format("{} bytes of staging are no whole number of {} elements",
                            staging.size(), name_of(reduction.type)));
  }
  if (staging.empty()) return Completion();
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
  return start_adasum(resources_, type, staging, std::move(tensors), sequence);
}

Completion MessageCrossGroup::broadcast(std::span<std::byte> staging, int root,
                                        std::uint64_t sequence) {
  const int members = resources_.link().size();
  if (root < 0 || root >= members) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("broadcast from node {}, but there are nodes 0 to {}", root, members - 1));
  }
  if (staging.empty() || members == 1) return Completion();
  return start_broadcast(resources_, staging, root, sequence);
}

Completion MessageCrossGroup::exchange(std::span<const std::span<const std::byte>> sends,
                                       std::span<const std::span<std::byte>> receives,
                                       std::uint64_t sequence) {
  const auto members = static_cast<std::size_t>(resources_.link().size());
  if (sends.size() != members || receives.size() != members) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("an exchange among {} nodes got {} sends and {} receives: give one of each "
                    "for each node",
                    members, sends.size(), receives.size()));
  }
  if (members == 1) return Completion();
  return start_exchange(resources_, sends, receives, sequence);
}

}  // namespace hora::internal
