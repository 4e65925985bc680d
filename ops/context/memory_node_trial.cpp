#include "ops/context/memory_node_trial.h"

#include <hora/error.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/checked.h"
#include "core/base/log.h"
#include "core/control_block/node_progress.h"
#include "ops/context/memory_node.h"
#include "ops/hierarchy/memory_group.h"
#include "ops/hierarchy/memory_node_sum.h"

namespace hora::internal {
namespace {

constexpr std::int64_t kElements = std::int64_t{1} << 20;
constexpr int kRounds = 7;
/// What it must save, beyond what times of such runs differ by.
constexpr double kLeastGain = 0.05;

using Clock = std::chrono::steady_clock;

/// A float32 tensor in this rank's memory and behind it, of the first rank, the words of progress.
class TrialMemory {
 public:
  TrialMemory(Bootstrap& ranks, NodeMemory& memory) : memory_(memory) {
    signature_.shape = {kElements};
    const auto cells = static_cast<std::size_t>(ranks.size()) * sizeof(UnitProgressCell);
    bytes_ = signature_.bytes() + cells;
    Location own = kNowhere;
    try {
      const NodeMemory::MemoryBlock block = memory.allocate(bytes_);
      data_ = block.data;
      own = block.location;
      std::memset(data_, 0, bytes_);
    } catch (const Error&) {
      // The others learn of it.
    }
    const std::vector<Location> places = all_gather_values(ranks, own);
    if (std::ranges::count(places, kNowhere) > 0) return;
    const std::array decided{&std::as_const(signature_)};
    unit_.emplace().unit = plan(decided, {}).front();
    unit_->local_size = ranks.size();
    for (int r = 0; r < ranks.size(); ++r) {
      const Location place = places[static_cast<std::size_t>(r)];
      unit_->memory.push_back(r == ranks.rank() ? data_ : memory.address(r, place, bytes_));
    }
  }
  /// When no rank uses it any more. It is zero again, as what is allocated first must be.
  ~TrialMemory() {
    if (!data_) return;
    std::memset(data_, 0, bytes_);
    memory_.release(data_);
  }
  TrialMemory(const TrialMemory&) = delete;
  TrialMemory& operator=(const TrialMemory&) = delete;

  /// Null where a rank has none.
  BoundUnit* unit() { return unit_ ? &*unit_ : nullptr; }
  UnitProgress progress(int local_rank) {
    auto* const cells =
        reinterpret_cast<UnitProgressCell*>(unit_->memory.front() + signature_.bytes());
    return {cells, local_rank};
  }
  /// As backward does before a sum.
  void write(int value) { std::memset(data_, value, signature_.bytes()); }

 private:
  NodeMemory& memory_;
  Signature signature_;
  std::size_t bytes_ = 0;
  std::byte* data_ = nullptr;
  std::optional<BoundUnit> unit_;
};

/// The seconds until all ranks' `work` is complete; infinite where one's is not in time.
double seconds_of(Bootstrap& ranks, std::chrono::milliseconds patience,
                  const std::function<bool()>& work) {
  ranks.barrier();
  const auto begin = Clock::now();
  bool is_late = false;
  while (!work() && !is_late) {
    std::this_thread::yield();
    is_late = Clock::now() - begin >= patience;
  }
  const std::vector<int> late = all_gather_values(ranks, is_late ? 1 : 0);
  // All are done now, those that got a core late among them.
  const double own = std::chrono::duration<double>(Clock::now() - begin).count();
  const std::vector<double> all = all_gather_values(ranks, own);
  return std::ranges::count(late, 1) > 0 ? std::numeric_limits<double>::infinity()
                                         : *std::ranges::max_element(all);
}

}  // namespace

bool is_worth_it(double one_pass, double by_memory_nodes) {
  return by_memory_nodes < (1 - kLeastGain) * one_pass;
}

MemoryNodes tried_memory_nodes(Bootstrap& ranks, NodeMemory& memory, MemoryNodes nodes,
                               std::chrono::milliseconds patience) {
  if (nodes.count == 1) return nodes;
  TrialMemory trial(ranks, memory);
  BoundUnit* const unit = trial.unit();
  if (!unit) return {};
  std::vector<double> one_pass, by_memory_nodes;
  for (int round = 0; round < kRounds; ++round) {
    trial.write(round);
    one_pass.push_back(seconds_of(ranks, patience, [&] {
      return MemoryGroup(ranks.rank(), ranks.size()).run(*unit).poll();
    }));
    trial.write(round);
    ++unit->number;
    MemoryNodeSum sum(*unit, nodes, ranks.rank(), trial.progress(ranks.rank()));
    by_memory_nodes.push_back(seconds_of(ranks, patience, [&] { return sum.poll(); }));
    if (by_memory_nodes.back() == std::numeric_limits<double>::infinity()) return {};
  }
  const double at_once = median(std::move(one_pass));
  const double apart = median(std::move(by_memory_nodes));
  const bool chosen = is_worth_it(at_once, apart);
  if (ranks.rank() == 0) {
    constexpr double kMicroseconds = 1e6;
    log().info(
        "{} memory nodes of {} ranks each: a sum of {} bytes takes {:.0f} us in one pass, {:.0f} "
        "us "
        "by memory nodes, so sums {}go by them",
        nodes.count, nodes.ranks, kElements * 4, at_once * kMicroseconds, apart * kMicroseconds,
        chosen ? "" : "do not ");
  }
  return chosen ? nodes : MemoryNodes{};
}

std::vector<int> memory_nodes_of_sums(Bootstrap& world, const Topology& topology,
                                      NodeMemory& memory, std::vector<int> found, int setting) {
  if (setting > 0) return virtual_memory_nodes(topology, setting);
  const MemoryNodes nodes = MemoryNodes::of(topology, found);
  if (tried_memory_nodes(world, memory, nodes).count == 1) std::ranges::fill(found, kNoMemoryNode);
  return found;
}

}  // namespace hora::internal
