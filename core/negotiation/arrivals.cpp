#include "core/negotiation/arrivals.h"

#include <fmt/format.h>
#include <hora/printable.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/base/text.h"

namespace hora::internal {
namespace {

using std::chrono::nanoseconds;

/// At most so many ranks in the report's table.
constexpr std::size_t kRowsShown = 32;
/// Windows between two warnings of one rank.
constexpr std::uint32_t kLongestInterval = 1024;
/// A phase in which more than this share of the time was lost explains it.
constexpr double kExplains = 0.6;

std::string milliseconds_text(nanoseconds length) {
  return fmt::format("{:.3g} ms", std::chrono::duration<double, std::milli>(length).count());
}

std::string percent_text(double share) {
  return fmt::format("{:.0f} %", share * 100);
}

/// Its share of the decisions, and how late it was to these.
std::string lateness_text(const LatenessHistogram& lateness, std::uint64_t decisions) {
  const double share =
      decisions == 0 ? 0 : static_cast<double>(lateness.count()) / static_cast<double>(decisions);
  if (lateness.count() == 0) return percent_text(share);
  return fmt::format("{}, median {}, p99 {}", percent_text(share),
                     milliseconds_text(lateness.quantile(0.5)),
                     milliseconds_text(lateness.quantile(0.99)));
}

}  // namespace

PhaseIndex phase_of(std::string_view collective) {
  if (collective.starts_with(kSyncBatchNormName)) {
    return collective.ends_with(kBackwardEnd) ? kBackwardPhase : kForwardPhase;
  }
  if (!collective.starts_with(kGradientsName)) return kTrainingPhase;
  const std::string_view rest = collective.substr(kGradientsName.size());
  const auto optimizer_end = rest.find('.');
  if (optimizer_end == rest.npos) return kOptimizerPhase;
  std::string_view part = rest.substr(optimizer_end + 1);
  if (part.starts_with(kLayoutName))
    part.remove_prefix(std::min(part.find('.'), part.size() - 1) + 1);
  // The bucket's number comes first where several collectives average it.
  const std::string_view bucket = part.substr(0, part.find('.'));
  const bool is_number = bucket.find_first_not_of("0123456789") == bucket.npos;
  if (bucket.empty() || !is_number) return kOptimizerPhase;
  return bucket == "0" ? kForwardPhase : kBackwardPhase;
}

LastArrival later_of(const LastArrival& a, const LastArrival& b) {
  if (a.rank < 0) return b;
  if (b.rank < 0) return a;
  const bool a_is_last = a.at > b.at;
  LastArrival last = a_is_last ? a : b;
  last.late = std::min(last.late, a_is_last ? a.at - b.at : b.at - a.at);
  return last;
}

void LatenessHistogram::add(nanoseconds late) {
  constexpr std::int64_t kLeast = std::int64_t{1} << kFirstOctave;
  constexpr std::int64_t kMost = (std::int64_t{1} << (kFirstOctave + kOctaves)) - 1;
  const auto value = static_cast<std::uint64_t>(std::clamp(late.count(), kLeast, kMost));
  const int exponent = std::numeric_limits<std::uint64_t>::digits - 1 - std::countl_zero(value);
  const auto part = static_cast<std::size_t>(value >> (exponent - 2) & (kParts - 1));
  ++classes_[static_cast<std::size_t>(exponent - kFirstOctave) * kParts + part];
  ++count_;
}

void LatenessHistogram::add(const LatenessHistogram& other) {
  for (std::size_t i = 0; i < classes_.size(); ++i) classes_[i] += other.classes_[i];
  count_ += other.count_;
}

nanoseconds LatenessHistogram::quantile(double share) const {
  const auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(count_)));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < classes_.size() && count_ > 0; ++i) {
    seen += classes_[i];
    if (seen == 0 || seen < wanted) continue;
    const double middle = 1 + (static_cast<double>(i % kParts) + 0.5) / kParts;
    const int exponent = static_cast<int>(i / kParts) + kFirstOctave;
    return nanoseconds(static_cast<std::int64_t>(std::ldexp(middle, exponent)));
  }
  return {};
}

ArrivalLedger::ArrivalLedger(std::vector<int> ranks, int id_capacity)
    : ranks_(std::move(ranks)),
      rows_(ranks_.size()),
      steps_of_(static_cast<std::size_t>(id_capacity)),
      phases_of_(static_cast<std::size_t>(id_capacity), kTrainingPhase) {}

std::optional<SlowRank> ArrivalLedger::add(std::size_t slot, const LastArrival& last) {
  if (last.late == LastArrival::kAlone || slot >= steps_of_.size()) return std::nullopt;
  const std::size_t index = index_of(last.rank);
  if (index == ranks_.size()) return std::nullopt;
  Row& row = rows_[index];
  const nanoseconds late = std::max(last.late, nanoseconds(0));
  const PhaseIndex phase = phases_of_[slot];
  if (begin_ == nanoseconds(0)) begin_ = last.at - late;
  if (steps_of_[slot] == step_) ++step_;
  steps_of_[slot] = step_;
  ++decisions_of_[phase];
  ++window_decisions_;
  ++row.last;
  row.lateness[phase].add(late);
  if (row.step != step_) row.greatest = {};
  row.step = step_;
  if (late > row.greatest) row.held_up[phase] += late - std::exchange(row.greatest, late);
  if (step_ - window_step_ < kSteps || last.at - begin_ < kWindow) return std::nullopt;
  return end_window(last.at);
}

std::optional<SlowRank> ArrivalLedger::end_window(nanoseconds time) {
  const auto slowest = std::ranges::max_element(rows_, {}, &Row::last);
  Times times = slowest->held_up;
  for (std::size_t i = 0; i < times.size(); ++i) times[i] -= slowest->held_up_before[i];
  const nanoseconds held_up = std::accumulate(times.begin(), times.end(), nanoseconds(0));
  const auto [phase, held_up_there] = longest(times);
  const auto share_of = [](nanoseconds part, nanoseconds whole) {
    return whole.count() == 0 ? 0 : std::chrono::duration<double>(part) / whole;
  };
  const nanoseconds length = time - begin_;
  const SlowRank slow{.rank = ranks_[static_cast<std::size_t>(slowest - rows_.begin())],
                      .share = static_cast<double>(slowest->last) / window_decisions_,
                      .held_up = share_of(held_up, length),
                      .per_step = held_up / (step_ - window_step_),
                      .window = length,
                      .phase = phase,
                      .phase_share = share_of(held_up_there, held_up)};
  const bool is_slow = slow.share > kLastShare && slow.held_up > kHeldUpShare;
  bool warns = false;
  if (is_slow && slowest->quiet > 0) {
    --slowest->quiet;
  } else if (is_slow) {
    warns = true;
    slowest->quiet = slowest->interval;
    slowest->interval = std::min(slowest->interval * 2, kLongestInterval);
  }
  for (Row& row : rows_) {
    row.last = 0;
    row.greatest = {};
    row.held_up_before = row.held_up;
  }
  begin_ = time;
  window_step_ = step_;
  window_decisions_ = 0;
  return warns ? std::optional(slow) : std::nullopt;
}

std::size_t ArrivalLedger::most_often_last(std::span<RankArrivals> ranks) const {
  std::size_t count = 0;
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    const LatenessHistogram lateness = lateness_of(ranks_[index]);
    // By rank where they are equal.
    const auto place = std::ranges::find_if(
        ranks.first(count), [&](const auto& other) { return other.last < lateness.count(); });
    if (place == ranks.end()) continue;
    count = std::min(count + 1, ranks.size());
    std::shift_right(place, ranks.begin() + static_cast<std::ptrdiff_t>(count), 1);
    *place = {.rank = ranks_[index],
              .last = lateness.count(),
              .median = lateness.quantile(0.5),
              .p99 = lateness.quantile(0.99),
              .phase = longest(rows_[index].held_up).first};
  }
  return count;
}

std::string slow_rank_text(const SlowRank& slow, std::span<const ProcessIdentity> processes) {
  std::string where;
  // All is one phase in a program without an optimizer of hora's.
  if (slow.phase_share > kExplains && slow.phase != kTrainingPhase) {
    where = fmt::format(", {} of it lost in phase {}", percent_text(slow.phase_share),
                        in_quotes(kPhaseNames[slow.phase]));
  }
  return fmt::format(
      "{} came last to {} of the collectives of the last {} s, {} a step after all others{}: "
      "without that the job would take about {} less time. Is its host or GPU slower, does it "
      "share its cores, or has it more to do?",
      to_string(identity_of(slow.rank, processes)), percent_text(slow.share),
      std::chrono::duration_cast<std::chrono::seconds>(slow.window).count(),
      milliseconds_text(slow.per_step), where, percent_text(slow.held_up));
}

std::string arrivals_text(const ArrivalLedger& ledger, std::span<const ProcessIdentity> processes) {
  std::string text = fmt::format(
      "ranks that came last to collectives, of {}, and how late after the one before:\n",
      ledger.decisions());
  std::vector<RankArrivals> rows(std::min(ledger.ranks().size(), kRowsShown));
  ledger.most_often_last(rows);
  std::vector<PhaseIndex> phases;
  for (PhaseIndex phase = 0; phase < kStepPhases; ++phase) {
    if (ledger.decisions(phase) > 0) phases.push_back(phase);
  }
  for (const RankArrivals& row : rows) {
    text += fmt::format("  {}: {}\n", to_string(identity_of(row.rank, processes)),
                        lateness_text(ledger.lateness_of(row.rank), ledger.decisions()));
    for (const PhaseIndex phase : phases) {
      const LatenessHistogram& lateness = ledger.lateness_of(row.rank, phase);
      if (phases.size() == 1 || lateness.count() == 0) continue;
      text += fmt::format("    {}: {}\n", kPhaseNames[phase],
                          lateness_text(lateness, ledger.decisions(phase)));
    }
  }
  if (ledger.ranks().size() > rows.size()) {
    text += fmt::format("  and {} more ranks\n", ledger.ranks().size() - rows.size());
  }
  return text;
}

}  // namespace hora::internal
