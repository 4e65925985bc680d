#include "core/engine/waits.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/log.h"
#include "core/base/text.h"
#include "core/flight/flight_recorder.h"

namespace hora::internal {
namespace {

/// The lowest of a node's ranks that wait logs for all of them; if it stops meanwhile, another one
/// does after this time.
constexpr Duration kTurn = std::chrono::seconds(1);
/// A process that ends is noticed this late, where nothing else shows it.
constexpr Duration kProcessCheck = std::chrono::seconds(1);
/// Between two looks at stopped processes; of two that are further apart this process may itself
/// have been stopped between them.
constexpr Duration kLook = std::chrono::seconds(1);
constexpr Duration kLongestLook = std::chrono::seconds(2);
/// From horarun's limit to this one.
constexpr Duration kLauncherFirst = std::chrono::seconds(2);

/// Between two looks of those who watch.
constexpr std::chrono::nanoseconds kRecordInterval = std::chrono::milliseconds(500);

/// " is stopped (SIGSTOP)", " has ended" and the like; empty where the state says nothing of the
/// kind.
std::string_view state_text(ProcessState state) {
  switch (state) {
    case ProcessState::gone:
      return " has ended";
    case ProcessState::stopped:
      return " is stopped (SIGSTOP)";
    case ProcessState::traced:
      return " is stopped by a debugger";
    case ProcessState::blocked:
      return " is blocked inside the kernel (a disk, or a network file system)";
    default:
      return {};
  }
}

/// Describes a rank whose threads do not wait in hora.
std::string_view own_code_text(ProcessState state) {
  switch (state) {
    case ProcessState::running:
      return " runs its own code";
    case ProcessState::sleeping:
      return " is in its own code, asleep (it waits for a lock, a file, input or a process)";
    default:
      return " is in its own code";
  }
}

std::string duration_text(std::chrono::milliseconds length) {
  if (length.count() % 1000 != 0) return fmt::format("{} ms", length.count());
  return fmt::format("{} s", length.count() / 1000);
}

std::string unknown_text(const WaitReport& report) {
  const std::string text =
      fmt::format("whether {} is not known on this one", ranks_have(report.unknown));
  if (report.reporter == report.root) return text + ": nothing has come from their nodes";
  if (!report.root_is_silent) {
    return fmt::format("{}: see the warnings of rank {} (HORA_STALL_WARNING)", text, report.root);
  }
  return fmt::format("{}: rank {}, which would know, does not answer", text, report.root);
}

std::string unfinished_text(const WaitReport& report) {
  const std::string text = "every rank has submitted it, and it is under way: ";
  if (report.unfinished.empty()) return text + "its result is about to be taken over";
  return fmt::format("{}of this node {} not finished it{}", text, ranks_have(report.unfinished),
                     report.has_other_nodes ? ", and data of other nodes may be missing" : "");
}

/// `waited`: how long it is not complete. Begins with the ranks that lack it.
std::string incomplete_text(const WaitReport& report, const std::string& waited) {
  const std::string tensor = tensor_text(report.name, report.set);
  std::string text, remarks = remarks_text(report.remarks);
  if (report.decided) {
    text = unfinished_text(report);
  } else if (!report.unknown.empty()) {
    text = unknown_text(report);
  } else if (report.missing.empty()) {
    text = fmt::format("every rank has submitted it, and rank {} has not decided it", report.root);
  }
  if (report.decided || report.missing.empty()) {
    text = fmt::format("{} is not complete {} after rank {} has submitted it: {}", tensor, waited,
                       report.rank, text);
  } else {
    std::string who = named_ranks(report.missing);
    // The one rank is named once, with its process.
    if (report.remarks.size() == 1 && text.empty() && remarks.starts_with(who + " (")) {
      who = remarks.substr(0, remarks.find(')') + 1);
      remarks.replace(0, who.size(), "it");
    }
    text = fmt::format("{} did not come to {} within {} of rank {}{}{}", who, tensor, waited,
                       report.rank, text.empty() ? "" : ", and ", text);
  }
  return fmt::format("{}{}{}{} Is one of them slow, stopped or gone?", text,
                     remarks.empty() ? "" : "; ", remarks,
                     report.decided ? "." : ". Do all ranks call the same collectives?");
}

/// Adds what other nodes have reported, and what of this node no look of its own has added.
void add_heard(WaitReport& report, const Presence& presence) {
  std::ranges::copy_if(presence.remarks, std::back_inserter(report.remarks),
                       [](const std::string& remark) { return !remark.empty(); });
}

}  // namespace

std::string rank_state_text(const ProcessIdentity& process, ProcessState state,
                            const std::optional<SharedNote::Note>& submitted,
                            const std::optional<SharedNote::Note>& waits_for, Duration now) {
  std::string text = to_string(process);
  if (const std::string_view known = state_text(state); !known.empty()) {
    text += known;
  } else if (waits_for) {
    text +=
        fmt::format(" waits in hora for {}, for {}", tensor_text(waits_for->text, waits_for->set),
                    seconds_text(now - waits_for->time));
  } else {
    text += own_code_text(state);
  }
  if (!submitted) return text + ", and has submitted nothing yet";
  return fmt::format("{}, and has last submitted {}, {} ago", text,
                     tensor_text(submitted->text, submitted->set),
                     seconds_text(now - submitted->time));
}

std::string stall_text(const WaitReport& report, Duration waited) {
  return incomplete_text(report, seconds_text(waited));
}

std::string timeout_text(const WaitReport& report) {
  return fmt::format(
      "{} Where a rank may work alone for longer (a validation, a checkpoint), raise {}",
      incomplete_text(report, duration_text(report.limit.length)),
      report.limit.is_of_call ? "the timeout of this call (0: HORA_TIMEOUT)"
                              : "HORA_TIMEOUT (0: never), or give the call a timeout");
}

/// World ranks by local rank.
const std::vector<int>& Waits::ranks_of_node() const {
  const int node = parts_.topology.node_of(engine_.rank);
  return parts_.topology.ranks_of_node[static_cast<std::size_t>(node)];
}

bool Waits::is_of_node(int rank) const {
  return std::ranges::binary_search(ranks_of_node(), rank);
}

ProcessIdentity Waits::identity_of(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return r < engine_.processes.size() ? engine_.processes[r] : ProcessIdentity{.rank = rank};
}

std::string Waits::state_of(int local_rank) const {
  const int rank = ranks_of_node()[static_cast<std::size_t>(local_rank)];
  const ProcessIdentity process = identity_of(rank);
  const NodeControlBlock& of_world = *engine_.world.control_block;
  const RankStatus& status = of_world.status(engine_.world.topology.local_rank_of(rank));
  return rank_state_text(process, process_state(process.pid), status.submitted.read(),
                         status.waits_for.read(), now());
}

WaitReport Waits::report_on(const Operation& operation, std::uint64_t unit,
                            const std::optional<Presence>& known) const {
  WaitReport report = known_of(operation.name, operation.limit, engine_.rank);
  report.decided = operation.decided;
  if (report.decided) {
    for (const int r : parts_.control_block->behind(unit)) {
      report.unfinished.push_back(ranks_of_node()[static_cast<std::size_t>(r)]);
    }
    add_remarks(report, report.unfinished);
    return report;
  }
  const Presence presence = known ? *known : presence_of(operation);
  note_absent(report, presence);
  report.root_is_silent = report.rank != report.root && operation.root_is_silent(now());
  std::vector<int> absent = report.missing;
  absent.insert(absent.end(), report.unknown.begin(), report.unknown.end());
  // Its leader may be what keeps the root's answer away, whether it has submitted the name or not.
  if (report.root_is_silent) absent.push_back(ranks_of_node().front());
  add_remarks(report, absent);
  add_heard(report, presence);
  return report;
}

WaitReport Waits::report_on(const Expired& expired) const {
  const Expiry& expiry = expired.expiring.expiry;
  WaitReport report =
      known_of(expired.expiring.name, {expiry.limit, expiry.is_of_call}, expired.expiring.rank);
  note_absent(report, expired.presence);
  add_heard(report, expired.presence);
  return report;
}

/// The part of a report that holds whatever has become of it; `rank`: who has submitted it.
WaitReport Waits::known_of(const std::string& name, const TimeLimit& limit, int rank) const {
  const Topology& topology = parts_.topology;
  return {.name = name,
          .set = id_,
          .limit = limit,
          .rank = rank,
          .root = topology.ranks_of_node.front().front(),
          .reporter = engine_.rank,
          .has_other_nodes = topology.nodes() > 1};
}

/// Adds a remark on each of `ranks` that is on this node.
void Waits::add_remarks(WaitReport& report, const std::vector<int>& ranks) const {
  for (std::size_t r = 0; r < ranks_of_node().size(); ++r) {
    const int rank = ranks_of_node()[r];
    if (rank == report.rank || std::ranges::find(ranks, rank) == ranks.end()) continue;
    report.remarks.push_back(state_of(static_cast<int>(r)));
  }
}

void Waits::note_absent(WaitReport& report, const Presence& presence) const {
  for (const int rank : parts_.topology.ranks()) {
    if (rank == report.rank || std::ranges::count(presence.ready, rank) > 0) continue;
    const bool is_missing = std::ranges::count(presence.missing, rank) > 0;
    (is_missing ? report.missing : report.unknown).push_back(rank);
  }
}

/// By the ready bits of this node.
Presence Waits::presence_of(const Operation& operation) const {
  Presence presence{operation.name, {}, {}};
  if (!operation.id) return presence;
  const NodeControlBlock& control_block = *parts_.control_block;
  const LocalRanks ready = control_block.ready_ranks(*operation.id);
  // Cleared when all have become ready.
  const bool all = !ready[static_cast<std::size_t>(control_block.local_rank())];
  for (std::size_t r = 0; r < ranks_of_node().size(); ++r) {
    (all || ready[r] ? presence.ready : presence.missing).push_back(ranks_of_node()[r]);
  }
  return presence;
}

std::optional<std::string> Waits::look(Duration time, const std::optional<Stall>& stall) {
  next_look_ = time + std::min<Duration>(kOverdueTick, warning_ / 4);
  StallBoard& board = parts_.control_block->stall_board();
  const int local_rank = parts_.control_block->local_rank();
  board.set_waiting(local_rank, stall.has_value());
  if (!stall) {
    waits_since_ = {};
    return std::nullopt;
  }
  // Other ranks that wait, too, set their flags until the next look.
  if (waits_since_ == Duration{}) {
    waits_since_ = time;
    return std::nullopt;
  }
  const Duration head_start = board.is_lowest(local_rank) ? Duration{} : kTurn;
  if (time - waits_since_ < head_start) return std::nullopt;
  const Duration interval = std::max<Duration>(warning_, stall->age);
  if (!board.claim(time, interval, head_start)) return std::nullopt;
  return stall->text();
}

/// This rank has waited in a call for `missing`, which have not called it, as far as is known.
Waits::Stall Waits::call_stall(std::string_view call, Duration waited,
                               std::vector<int> missing) const {
  return {waited, [=, this, missing = std::move(missing)] {
            bool is_hearsay = false;
            std::vector<std::string> remarks;
            for (const int rank : missing) {
              if (is_of_node(rank)) {
                remarks.push_back(state_of(parts_.topology.local_rank_of(rank)));
                continue;
              }
              is_hearsay = true;
              const ProcessIdentity process = identity_of(rank);
              remarks.push_back(fmt::format(
                  "{}{}", to_string(process),
                  is_of_host(rank) ? state_text(process_state(process.pid)) : std::string_view()));
            }
            return fmt::format(
                "{} has waited {} in {} for ranks that have not called it{}: {}. Is one of them "
                "slow, stopped or gone?",
                to_string(own_identity()), seconds_text(waited), call,
                is_hearsay ? ", as far as this node knows" : "", remarks_text(remarks));
          }};
}

std::optional<Waits::Stall> Waits::join_stall(Duration age) const {
  if (age < warning_) return std::nullopt;
  const LocalRanks joined = parts_.control_block->joined_ranks();
  std::vector<int> missing;
  for (std::size_t r = 0; r < ranks_of_node().size(); ++r) {
    if (!joined[r]) missing.push_back(ranks_of_node()[r]);
  }
  if (missing.empty()) return std::nullopt;
  return call_stall("join()", age, std::move(missing));
}

/// Zero: this rank does not wait in shutdown().
Duration Waits::departed_at() const {
  if (id_ != kWorld) return {};
  const NodeControlBlock& node = *parts_.control_block;
  return Duration(node.status(node.local_rank()).departed.load());
}

/// Known of this node from the control block, of other nodes from decisions. Ascending.
std::vector<int> Waits::not_departed() const {
  std::vector<int> ranks = parts_.topology.ranks();
  std::erase_if(ranks, [this](int rank) {
    const int local_rank = parts_.topology.local_rank_of(rank);
    const bool has_called =
        is_of_node(rank) && parts_.control_block->status(local_rank).departed.load() != 0;
    return has_called || departed_.contains(rank);
  });
  return ranks;
}

std::optional<Waits::Stall> Waits::departure_stall(Duration time) const {
  const Duration waited = time - departed_at();
  if (departed_at().count() == 0 || waited < warning_) return std::nullopt;
  std::vector<int> missing = not_departed();
  const auto is_own = [this](int rank) { return is_of_node(rank); };
  if (!missing.empty() && !std::ranges::any_of(missing, is_own)) {
    int lowest = 0;  // that has called it
    while (std::ranges::binary_search(missing, lowest)) ++lowest;
    if (!is_of_node(lowest)) return std::nullopt;
  }
  if (!missing.empty()) return call_stall("shutdown()", waited, std::move(missing));
  return Stall{waited, [=, this] {
                 return fmt::format(
                     "{} has waited {} in shutdown(), which all ranks have called, for its last "
                     "messages to leave: is a rank stopped, or the network between their hosts "
                     "blocked?",
                     to_string(own_identity()), seconds_text(waited));
               }};
}

std::optional<Error> Waits::stopped_rank(Duration time) {
  const Duration limit = engine_.settings.timeout;
  if (limit.count() == 0 || departed_at().count() == 0 || time - last_stop_look_ < kLook) {
    return std::nullopt;
  }
  const Duration passed = last_stop_look_.count() == 0 ? Duration() : time - last_stop_look_;
  last_stop_look_ = time;
  for (const ProcessIdentity& process : engine_.processes) {
    if (process.rank == engine_.rank || !is_of_host(process.rank)) continue;
    if (process_state(process.pid) != ProcessState::stopped) {
      stopped_for_.erase(process.rank);
      continue;
    }
    Duration& length = stopped_for_[process.rank];
    length += std::min(passed, kLongestLook);
    if (length < limit + kLauncherFirst) continue;
    return Error(ErrorCode::timeout,
                 fmt::format("{} is stopped (SIGSTOP), and has been for {} while other ranks wait "
                             "for it in shutdown(), longer than HORA_TIMEOUT allows: kill -CONT "
                             "lets a stopped process go on",
                             to_string(process), seconds_text(length)),
                 process.rank);
  }
  return std::nullopt;
}

std::optional<Error> Waits::gone_rank(Duration time, bool any_waits) {
  next_check_ = time + kProcessCheck;
  if (!any_waits) return std::nullopt;
  for (std::size_t r = 0; r < ranks_of_node().size(); ++r) {
    const int rank = ranks_of_node()[r];
    if (rank == engine_.rank || process_state(identity_of(rank).pid) != ProcessState::gone) {
      continue;
    }
    return Error(ErrorCode::transport,
                 state_of(static_cast<int>(r)) +
                     ". It has not called shutdown(): was it killed (by the kernel where memory "
                     "ran out: see dmesg), or has it left by exit()?",
                 rank);
  }
  return std::nullopt;
}

Stragglers::Stragglers(const SetParts& set, const EngineParts& engine, ProcessSet id)
    : engine_(engine),
      ledger_(set.topology.ranks(), set.control_block->id_capacity()),
      last_of_(static_cast<std::size_t>(set.control_block->id_capacity())),
      record_(engine.flight && id == kWorld ? engine.flight->writer() : RecordWriter()),
      rows_(std::min(ledger_.ranks().size(), kRecordedArrivals)) {}

void Stragglers::note_names(const Decision& decision) {
  for (const Assigned& assigned : decision.assigned) {
    ledger_.assign(static_cast<std::size_t>(slot_of(assigned.id)), assigned.name);
  }
}

void Stragglers::count(Id id, const LastArrival& last) {
  const auto slot = static_cast<std::size_t>(slot_of(id));
  if (slot < last_of_.size()) last_of_[slot] = last;
  const auto slow = ledger_.add(slot, last);
  RecordArrivals* const watched = record_.watched_arrivals();
  if (watched && last.at - recorded_at_ >= kRecordInterval) {
    recorded_at_ = last.at;
    const std::size_t shown = ledger_.most_often_last(rows_);
    write_arrivals(*watched, last.at, ledger_.decisions(), ledger_.steps(),
                   std::span(rows_).first(shown));
  }
  if (slow) log().warn("{}", slow_rank_text(*slow, engine_.processes));
}

std::string Stragglers::text() const {
  return arrivals_text(ledger_, engine_.processes);
}

}  // namespace hora::internal
