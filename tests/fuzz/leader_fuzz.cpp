// Any events that passed the checks of messages: a leader, root or not, never throws, whatever
// peers send; what it sends is within the limits, too.
#include <set>
#include <string>
#include <vector>

#include "core/messages/messages.h"
#include "core/negotiation/leader.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

namespace {

using namespace hora;
using namespace hora::internal;
using test::FuzzInput;

constexpr int kCapacity = 16;

/// Messages whose numbers are mostly possible.
class Events {
 public:
  Events(FuzzInput& input, const Topology& topology) : input_(input) {
    for (const auto& ranks : topology.ranks_of_node) {
      ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
    }
  }

  std::string name() { return std::string(1, static_cast<char>('a' + input_.below(6))); }
  Id id() {
    return make_id(static_cast<int>(input_.below(8)), static_cast<std::uint32_t>(input_.below(3)));
  }
  std::vector<Id> ids() {
    return many<Id>([&] { return id(); });
  }
  std::vector<int> ranks() {
    return many<int>([&] { return ranks_[input_.below(ranks_.size())]; });
  }
  Signature signature() {
    Signature result;
    result.kind = static_cast<OperationKind>(input_.below(9));
    result.shape = {static_cast<std::int64_t>(input_.below(3))};
    if (result.kind == OperationKind::allgather || result.kind == OperationKind::alltoall) {
      result.shape.front() = kAnyExtent;
    }
    return result;
  }
  Expiry expiry() {
    return {std::chrono::milliseconds(input_.below(4)),
            std::chrono::milliseconds(input_.below(500)), input_.below(2) == 0};
  }
  Mail mail() {
    return {.kind = static_cast<MailKind>(input_.below(5)),
            .name = name(),
            .signature = signature(),
            .location = {},
            .expiry = expiry()};
  }
  Up up() {
    Up result;
    result.ready = ids();
    result.reports = many<Report>([&] {
      Report report{name(), {{signature(), ranks()}}};
      if (input_.below(4) == 0) report.values.push_back({signature(), ranks()});
      return report;
    });
    result.presence = many<Presence>([&] {
      return Presence{name(), ranks(), ranks(), {}, input_.below(2) == 0};
    });
    result.departed = ranks();
    result.joined = ranks();
    result.disputed = ids();
    result.expiring = many<Expiring>([&] { return Expiring{name(), ranks_.front(), expiry()}; });
    return result;
  }
  Decision decision() {
    Decision result;
    result.retired = ids();
    result.failed = many<Failed>([&] { return Failed{name(), "why"}; });
    result.assigned = many<Assigned>([&] {
      Assigned assigned{name(), id(), {}};
      if (input_.below(2) == 0) assigned.signature = signature();
      return assigned;
    });
    result.run = ids();
    result.departed = ranks();
    result.finished = input_.below(8) == 0;
    result.all_joined = input_.below(8) == 0;
    result.asked = many<std::string>([&] { return name(); });
    return result;
  }

 private:
  template <class T, class Make>
  std::vector<T> many(Make&& make) {
    std::vector<T> result;
    const std::size_t draw = input_.below(8);
    for (std::size_t left = draw < 4 ? 0 : draw - 3; left > 0; --left) result.push_back(make());
    return result;
  }

  FuzzInput& input_;
  std::vector<int> ranks_;
};

const std::vector<Topology> kTopologies{{{{0}}}, {{{0, 1}, {2}}}, {{{0}, {1, 3}, {2}, {4}}}};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  const Topology& topology = kTopologies[input.below(kTopologies.size())];
  const int node = static_cast<int>(input.below(static_cast<std::size_t>(topology.nodes())));
  const auto& local = topology.ranks_of_node[static_cast<std::size_t>(node)];
  const std::vector<int> children = tree_children(node, topology.nodes(), topology.radix);
  const MessageLimits limits = message_limits(topology, kCapacity, 0);
  const auto is_possible = [&](const auto& message) {
    return decode(encode(Message(message)), &limits).has_value();
  };
  Leader leader(
      topology, node, kCapacity,
      {.retire = [&](Id, bool) { return input.below(4) != 0; },
       .ready_ranks = [&](Id) { return LocalRanks(input.below(std::size_t{1} << local.size())); }});
  Events events(input, topology);
  Duration now{};
  while (!input.empty()) {
    now += std::chrono::milliseconds(100);
    switch (input.below(8)) {
      case 0:
      case 1: {
        const int rank = static_cast<int>(input.below(local.size()));
        const Mail mail = events.mail();
        if (is_possible(mail)) leader.on_mail(rank, mail, now);
        break;
      }
      case 2:
      case 3: {
        if (children.empty()) break;
        const int child = children[input.below(children.size())];
        const Up up = events.up();
        if (is_possible(up)) leader.on_up(child, up, now);
        break;
      }
      case 4: {
        if (node == 0) break;
        const Decision decision = events.decision();
        if (is_possible(decision) && leader.problem_in(decision).empty()) {
          leader.on_decision(decision);
        }
        break;
      }
      case 5:
        leader.on_node_ready(events.id());
        break;
      case 6:
        leader.on_joined_arrivals();
        break;
      default: {
        const LeaderOutput output = leader.take(now);
        HORA_REQUIRE(is_possible(output.up));
        static_cast<void>(leader.deadline());
        break;
      }
    }
  }
  static_cast<void>(leader.take(now));
  return 0;
}
