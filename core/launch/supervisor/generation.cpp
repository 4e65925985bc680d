#include "core/launch/supervisor/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace hora::launch {
namespace {

constexpr int kMostFailuresOfARank = 3, kMostFailures = 10;

Moment set_aside_until(const std::string& host, std::span<const GenerationEnd> ended,
                       const ElasticOptions& options) {
  Moment until{0}, pause = options.shortest_pause;
  for (const GenerationEnd& end : ended) {
    if (std::ranges::find(end.loss.hosts, host) == end.loss.hosts.end()) continue;
    until = end.time + pause;
    pause = std::min(2 * pause, options.longest_pause);
  }
  return until;
}

/// Those of `running` first, in its order.
std::vector<HostSlots> in_order(std::span<const HostSlots> hosts, const Generation& running) {
  std::vector<HostSlots> result(hosts.begin(), hosts.end());
  std::ranges::stable_sort(result, {}, [&](const HostSlots& host) {
    return std::ranges::find(running.hosts, host.name, &HostRanks::name) - running.hosts.begin();
  });
  return result;
}

/// Why the program, not a machine, is at fault: it fails without getting on.
std::optional<std::string> fault_of_program(std::span<const GenerationEnd> ended) {
  const GenerationEnd& last = ended.back();
  int failures = 0, of_rank = 0;
  for (auto end = ended.rbegin(); end != ended.rend(); ++end) {
    if (!end->loss.hosts.empty() || end->loss.step != last.loss.step) break;
    if (end->loss.rank == last.loss.rank && of_rank == failures) ++of_rank;
    ++failures;
  }
  const std::string where =
      last.loss.step < 0 ? "without a checkpoint" : fmt::format("from step {} on", last.loss.step);
  if (last.loss.rank >= 0 && of_rank >= kMostFailuresOfARank) {
    return fmt::format("rank {} has failed {} times {}: the program is at fault, not a machine",
                       last.loss.rank, of_rank, where);
  }
  if (failures < kMostFailures) return std::nullopt;
  return fmt::format("the job has failed {} times {}: the program is at fault, not a machine",
                     failures, where);
}

}  // namespace

std::variant<Generation, WaitForHosts, GiveUp> next_generation(Moment now,
                                                               std::span<const HostSlots> hosts,
                                                               std::span<const GenerationEnd> ended,
                                                               const ElasticOptions& options) {
  if (!ended.empty()) {
    if (auto fault = fault_of_program(ended)) return GiveUp{std::move(*fault)};
    if (options.reset_limit && std::ssize(ended) > *options.reset_limit) {
      return GiveUp{fmt::format("it has begun anew {} times, which --reset-limit allows",
                                *options.reset_limit)};
    }
  }
  const Moment deadline = (ended.empty() ? now : ended.back().time) + options.timeout;
  WaitForHosts wait{.until = deadline, .text = {}};
  std::vector<HostSlots> usable;
  for (HostSlots& host : in_order(hosts, ended.empty() ? Generation() : ended.back().generation)) {
    const Moment until = set_aside_until(host.name, ended, options);
    if (until > now) {
      wait.until = std::min(wait.until, until);
    } else {
      usable.push_back(std::move(host));
    }
  }
  const bool has_limit = !options.oversubscribe && std::ranges::all_of(usable, &HostSlots::counted);
  const int np = has_limit ? std::min(options.max_np, total_slots(usable)) : options.max_np;
  if (!usable.empty() && np >= options.min_np) {
    return Generation{static_cast<int>(ended.size()) + 1,
                      *lay_out_ranks(usable, np, options.oversubscribe)};
  }
  wait.text =
      fmt::format("{} of the {} ranks that --min-np asks for have a host", np, options.min_np);
  if (now >= deadline) {
    return GiveUp{
        fmt::format("{}, for {} s (--elastic-timeout)", wait.text, options.timeout.count() / 1000)};
  }
  return wait;
}

std::string reason_to_give_way(const Generation& running, Moment begun, Moment now,
                               std::span<const HostSlots> hosts,
                               std::span<const GenerationEnd> ended,
                               const ElasticOptions& options) {
  std::vector<GenerationEnd> all(ended.begin(), ended.end());
  all.push_back({.generation = running, .time = now, .loss = {}});
  std::vector<HostSlots> never_lost;
  std::ranges::copy_if(hosts, std::back_inserter(never_lost), [&](const HostSlots& host) {
    return std::ranges::find(running.hosts, host.name, &HostRanks::name) != running.hosts.end() ||
           set_aside_until(host.name, ended, options) == Moment(0);
  });
  const auto next = next_generation(now, never_lost, all, options);
  const auto* const generation = std::get_if<Generation>(&next);
  if (generation == nullptr) return "";
  const auto names_without = [](const auto& some, const auto& others) {
    std::vector<std::string> names;
    for (const auto& host : some) {
      if (std::ranges::none_of(others, [&](const auto& each) { return each.name == host.name; })) {
        names.push_back(host.name);
      }
    }
    return names;
  };
  if (const auto gone = names_without(running.hosts, hosts); !gone.empty()) {
    return fmt::format("{} is to be used no more", fmt::join(gone, ", "));
  }
  const auto ranks = [](const Generation& of) {
    return of.hosts.back().first + of.hosts.back().ranks;
  };
  if (ranks(*generation) <= ranks(running) || now - begun < options.shortest_pause) return "";
  const auto come = names_without(generation->hosts, running.hosts);
  return come.empty() ? "there are more slots" : fmt::format("{} has come", fmt::join(come, ", "));
}

}  // namespace hora::launch
