#include <hora/error.h>
#include <hora/printable.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "core/control_block/node_control_block.h"
#include "core/messages/messages.h"

namespace hora::internal {
namespace {

constexpr std::size_t kMaxDimensions = 64;

/// Remembers the first problem.
class Check {
 public:
  explicit Check(const MessageLimits& limits) : limits_(limits) {}

  std::string problem() && { return std::move(problem_); }

  void message(const Mail& mail) { signature(mail.signature); }

  void message(const Up& up) {
    ids(up.ready);
    ids(up.resized);
    for (const Report& report : up.reports) {
      for (const ReportedSignature& value : report.values) {
        signature(value.signature);
        ranks(value.ranks);
      }
      if (report.counted) id(*report.counted);
    }
    for (const Presence& presence : up.presence) {
      ranks(presence.ready);
      ranks(presence.missing);
      if (!presence.remarks.empty() && presence.remarks.size() != presence.missing.size()) {
        fail(std::to_string(presence.remarks.size()) + " remarks on " +
             std::to_string(presence.missing.size()) + " ranks");
      }
    }
    ranks(up.departed);
    ranks(up.joined);
    for (const Elsewhere& elsewhere : up.elsewhere) rank(elsewhere.rank);
    for (const Expiring& expiring : up.expiring) rank(expiring.rank);
    if (!up.last.empty() && up.last.size() != up.ready.size()) {
      fail(std::to_string(up.last.size()) + " last ranks of " + std::to_string(up.ready.size()) +
           " ids");
    }
    for (const LastReady& last : up.last) {
      if (last.rank != -1) rank(last.rank);
    }
  }

  void message(const Decision& decision) {
    ids(decision.retired);
    for (const Failed& failed : decision.failed) {
      if (failed.has_id) id(failed.id);
    }
    std::set<std::string_view> names;
    std::set<int> slots;
    for (const Assigned& assigned : decision.assigned) {
      id(assigned.id);
      if (!names.insert(assigned.name).second) fail("two ids for " + in_quotes(assigned.name));
      if (!slots.insert(slot_of(assigned.id)).second) {
        fail("id " + std::to_string(assigned.id) + " for two names");
      }
      if (assigned.signature) signature(*assigned.signature);
      if (assigned.locations.size() != limits_.locations) {
        fail(std::to_string(assigned.locations.size()) + " locations of " +
             in_quotes(assigned.name) + ", not " + std::to_string(limits_.locations));
      }
    }
    ids(decision.run);
    ids(decision.resized);
    ranks(decision.departed);
    if (decision.all_joined) rank(decision.last_joined);
  }

  void message(const JobEnd& end) {
    if (end.rank != -1) rank(end.rank);
  }

 private:
  void id(Id id) {
    if (slot_of(id) >= limits_.id_capacity) {
      fail("id " + std::to_string(id) + ", of slot " + std::to_string(slot_of(id)) + " of " +
           std::to_string(limits_.id_capacity));
    }
  }
  void ids(const std::vector<Id>& ids) {
    for (const Id each : ids) id(each);
  }
  void rank(int rank) {
    if (!std::binary_search(limits_.ranks.begin(), limits_.ranks.end(), rank)) {
      fail("rank " + std::to_string(rank) + ", which is not in the process set");
    }
  }
  void ranks(const std::vector<int>& ranks) {
    for (const int each : ranks) rank(each);
  }

  void signature(const Signature& signature) {
    if (signature.kind == OperationKind::broadcast) rank(signature.root);
    if (signature.kind == OperationKind::add_process_set) {
      for (const std::int64_t each : signature.shape) {
        if (!std::in_range<int>(each)) return fail("a set with rank " + std::to_string(each));
        rank(static_cast<int>(each));
      }
      return;
    }
    Shape shape = signature.shape;
    const bool differs = extents_may_differ(signature.kind);
    if (differs && (shape.empty() || shape.front() != kAnyExtent)) {
      return fail("an exchange whose first extent is given");
    }
    if (signature.kind == OperationKind::reduce_scatter && shape.empty()) {
      return fail("a scalar to scatter");
    }
    if (signature.kind == OperationKind::remove_process_set && shape.size() != 1) {
      return fail("a removal of no process set");
    }
    if (differs) shape.front() = 1;
    if (shape.size() > kMaxDimensions) return fail(std::to_string(shape.size()) + " dimensions");
    try {
      static_cast<void>(TensorView{nullptr, signature.type, std::move(shape), {}}.bytes());
    } catch (const Error& error) {
      fail(error.what());
    }
  }

  void fail(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }

  const MessageLimits& limits_;
  std::string problem_;
};

}  // namespace

MessageLimits message_limits(const Topology& topology, int id_capacity, std::size_t locations) {
  MessageLimits limits{id_capacity, {}, locations};
  for (const auto& ranks : topology.ranks_of_node) {
    limits.ranks.insert(limits.ranks.end(), ranks.begin(), ranks.end());
  }
  std::sort(limits.ranks.begin(), limits.ranks.end());
  return limits;
}

std::string problem_in(const Message& message, const MessageLimits& limits) {
  Check check(limits);
  std::visit([&](const auto& m) { check.message(m); }, message);
  return std::move(check).problem();
}

std::string problem_in(const Decision& decision, const MessageLimits& limits) {
  Check check(limits);
  check.message(decision);
  return std::move(check).problem();
}

tl::expected<Message, std::string> decode(std::span<const std::byte> bytes,
                                          const MessageLimits& limits) {
  auto message = decode(bytes);
  if (!message) return message;
  std::string problem = problem_in(*message, limits);
  if (!problem.empty()) return tl::unexpected("it names " + problem);
  return message;
}

}  // namespace hora::internal
