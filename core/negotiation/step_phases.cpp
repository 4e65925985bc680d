#include <algorithm>

#include "core/base/text.h"
#include "core/negotiation/arrivals.h"

namespace hora::internal {
namespace {

/// Behind all that have names of their own.
constexpr PhaseIndex kOtherPhases = kStepPhases - 1;
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_digit);
}

/// The first bytes of `text` with "N" for each number, without a part of a character (UTF-8).
PhaseName without_numbers(std::string_view text) noexcept {
  PhaseName result;
  auto& name = result.bytes;
  std::size_t size = 0;
  bool in_number = false;
  for (const char c : text) {
    const bool continues = is_digit(c) && in_number;
    in_number = is_digit(c);
    if (continues) continue;
    if (size == name.size()) {
      const auto is_inside = [](char byte) {
        return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
      };
      while (is_inside(c) && size > 0 && is_inside(name[size - 1])) name[--size] = 0;
      if (is_inside(c) && size > 0) name[--size] = 0;
      break;
    }
    name[size++] = in_number ? 'N' : c;
  }
  return result;
}

}  // namespace

std::optional<PhaseIndex> phase_of(std::string_view collective) {
  if (collective.starts_with(kSyncBatchNormName)) {
    return collective.ends_with(kBackwardEnd) ? kBackwardPhase : kForwardPhase;
  }
  if (!collective.starts_with(kGradientsName)) return std::nullopt;
  const std::string_view rest = collective.substr(kGradientsName.size());
  const auto optimizer_end = rest.find('.');
  if (optimizer_end == rest.npos) return kOptimizerPhase;
  std::string_view part = rest.substr(optimizer_end + 1);
  if (part.starts_with(kLayoutName))
    part.remove_prefix(std::min(part.find('.'), part.size() - 1) + 1);
  // Of what averages a bucket in several collectives the bucket's number comes first.
  const std::string_view bucket = part.substr(0, part.find('.'));
  if (!is_number(bucket)) return kOptimizerPhase;
  return bucket == "0" ? kForwardPhase : kBackwardPhase;
}

void NotedPhases::note(std::string_view text) noexcept {
  PhaseIndex phase = kTrainingPhase;
  if (!text.empty()) {
    const PhaseName name = without_numbers(text);
    const LockGuard lock(mutex_);
    const auto end = names_.begin() + static_cast<std::ptrdiff_t>(count_);
    const auto found = std::find(names_.begin(), end, name);
    if (found == end && count_ < kNamed) names_[count_++] = name;
    phase = found == names_.end()
                ? kOtherPhases
                : static_cast<PhaseIndex>(kTrainingPhase + 1 + (found - names_.begin()));
  }
  current_.store(phase, std::memory_order_relaxed);
}

PhaseName NotedPhases::name(PhaseIndex phase) const noexcept {
  constexpr std::array<std::string_view, kTrainingPhase + 1> kNames{"input and forward", "backward",
                                                                    "optimizer", "training"};
  PhaseName name;
  const auto set = [&](std::string_view text) { std::ranges::copy(text, name.bytes.begin()); };
  if (phase < kNames.size()) {
    set(kNames[phase]);
  } else if (phase == kOtherPhases) {
    set("other phases");
  } else {
    const LockGuard lock(mutex_);
    const std::size_t index = phase - kNames.size();
    if (index < count_) name = names_[index];
  }
  return name;
}

}  // namespace hora::internal
