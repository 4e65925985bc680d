#include "core/negotiation/arrivals.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <utility>

namespace hora::internal {
namespace {

using std::chrono::nanoseconds;

/// At most so many ranks in the report's table.
constexpr std::size_t kRowsShown = 32;
/// Windows between two warnings of one rank.
constexpr std::uint32_t kLongestInterval = 1024;

std::string milliseconds_text(nanoseconds length) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g ms",
                std::chrono::duration<double, std::milli>(length).count());
  return text.data();
}

std::string percent_text(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.0f %%", share * 100);
  return text.data();
}

ProcessIdentity identity_of(int rank, std::span<const ProcessIdentity> processes) {
  const auto r = static_cast<std::size_t>(rank);
  return r < processes.size() ? processes[r] : ProcessIdentity{.rank = rank};
}

}  // namespace

LastArrival later_of(const LastArrival& a, const LastArrival& b) {
  if (a.rank < 0) return b;
  if (b.rank < 0) return a;
  const bool a_is_last = a.at > b.at;
  LastArrival last = a_is_last ? a : b;
  last.late = std::min(last.late, a_is_last ? a.at - b.at : b.at - a.at);
  return last;
}

void LatenessHistogram::add(nanoseconds late) {
  const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(late.count(), kParts));
  const int exponent = std::numeric_limits<std::uint64_t>::digits - 1 - std::countl_zero(value);
  const auto part = static_cast<std::size_t>(value >> (exponent - 2) & (kParts - 1));
  ++classes_[static_cast<std::size_t>(exponent) * kParts + part];
  ++count_;
}

nanoseconds LatenessHistogram::quantile(double share) const {
  const auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(count_)));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < classes_.size() && count_ > 0; ++i) {
    seen += classes_[i];
    if (seen == 0 || seen < wanted) continue;
    const double middle = 1 + (static_cast<double>(i % kParts) + 0.5) / kParts;
    return nanoseconds(static_cast<std::int64_t>(std::ldexp(middle, static_cast<int>(i / kParts))));
  }
  return {};
}

ArrivalLedger::ArrivalLedger(std::vector<int> ranks, int id_capacity)
    : ranks_(std::move(ranks)),
      rows_(ranks_.size()),
      steps_of_(static_cast<std::size_t>(id_capacity)) {}

std::optional<SlowRank> ArrivalLedger::add(std::size_t slot, const LastArrival& last) {
  if (last.late == LastArrival::kAlone || slot >= steps_of_.size()) return std::nullopt;
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), last.rank);
  if (found == ranks_.end() || *found != last.rank) return std::nullopt;
  Row& row = rows_[static_cast<std::size_t>(found - ranks_.begin())];
  const nanoseconds late = std::max(last.late, nanoseconds(0));
  if (begin_ == nanoseconds(0)) begin_ = last.at - late;
  if (steps_of_[slot] == step_) ++step_;
  steps_of_[slot] = step_;
  ++decisions_;
  ++window_decisions_;
  ++row.last;
  row.lateness.add(late);
  if (row.step != step_) end_step(row);
  row.step = step_;
  row.greatest = std::max(row.greatest, late);
  if (window_decisions_ < kDecisions || step_ - window_step_ < kSteps ||
      last.at - begin_ < kWindow) {
    return std::nullopt;
  }
  return end_window(last.at);
}

void ArrivalLedger::end_step(Row& row) {
  row.held_up += std::exchange(row.greatest, nanoseconds(0));
}

std::optional<SlowRank> ArrivalLedger::end_window(nanoseconds time) {
  for (Row& row : rows_) end_step(row);
  const auto slowest = std::max_element(rows_.begin(), rows_.end(),
                                        [](const Row& a, const Row& b) { return a.last < b.last; });
  const nanoseconds length = time - begin_;
  SlowRank slow{.rank = ranks_[static_cast<std::size_t>(slowest - rows_.begin())],
                .share = static_cast<double>(slowest->last) / window_decisions_,
                .held_up = std::chrono::duration<double>(slowest->held_up) /
                           std::chrono::duration<double>(length),
                .per_step = slowest->held_up / (step_ - window_step_),
                .window = length};
  const bool is_slow = slow.share > kLastShare && slow.held_up > kHeldUpShare;
  bool speaks = false;
  if (is_slow && slowest->quiet > 0) {
    --slowest->quiet;
  } else if (is_slow) {
    speaks = true;
    slowest->quiet = slowest->interval;
    slowest->interval = std::min(slowest->interval * 2, kLongestInterval);
  }
  for (Row& row : rows_) {
    row.last = 0;
    row.held_up = {};
  }
  begin_ = time;
  window_step_ = step_;
  window_decisions_ = 0;
  return speaks ? std::optional(slow) : std::nullopt;
}

std::string slow_rank_text(const SlowRank& slow, const ProcessIdentity& process) {
  return to_string(process) + " came last to " + percent_text(slow.share) +
         " of the collectives of the last " +
         std::to_string(std::chrono::duration_cast<std::chrono::seconds>(slow.window).count()) +
         " s, " + milliseconds_text(slow.per_step) +
         " a step after all others: without that the job would take about " +
         percent_text(slow.held_up) +
         " less time. Is its host or GPU slower, does it share its cores, or has it more to do?";
}

std::string arrivals_text(const ArrivalLedger& ledger, std::span<const ProcessIdentity> processes) {
  std::string text = "ranks that came last to collectives, of " +
                     std::to_string(ledger.decisions()) + ", and how late after the one before:\n";
  std::vector<std::size_t> order(ledger.ranks().size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return ledger.lateness_of(a).count() > ledger.lateness_of(b).count();
  });
  for (std::size_t i = 0; i < std::min(order.size(), kRowsShown); ++i) {
    const LatenessHistogram& lateness = ledger.lateness_of(order[i]);
    const double share = ledger.decisions() == 0 ? 0
                                                 : static_cast<double>(lateness.count()) /
                                                       static_cast<double>(ledger.decisions());
    text += "  " + to_string(identity_of(ledger.ranks()[order[i]], processes)) + ": " +
            percent_text(share);
    if (lateness.count() > 0) {
      text += ", median " + milliseconds_text(lateness.quantile(0.5)) + ", p99 " +
              milliseconds_text(lateness.quantile(0.99));
    }
    text += "\n";
  }
  if (order.size() > kRowsShown) {
    text += "  and " + std::to_string(order.size() - kRowsShown) + " more ranks\n";
  }
  return text;
}

}  // namespace hora::internal
