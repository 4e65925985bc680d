#include "ops/cross/adasum_allreduce.h"

#include <hora/error.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "ops/local/kernels.h"

namespace hora::internal {

int halving_members(int members) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(members)));
}

std::vector<HalvingLevel> halving_levels(int member, int members, std::size_t bytes) {
  std::vector<HalvingLevel> levels;
  Range range{0, bytes};
  for (int distance = 1; distance < members; distance *= 2) {
    const std::size_t half = std::min(range.bytes, align_up((range.bytes + 1) / 2));
    const Range first{range.begin, half};
    const Range second{range.begin + half, range.bytes - half};
    const bool is_lower = (member & distance) == 0;
    range = is_lower ? first : second;
    levels.push_back({member ^ distance, is_lower, range, is_lower ? second : first});
  }
  return levels;
}

namespace {

// Two members exchange halves at one level alone, and fold, gather and return at most once; their
// exchanges of dots come in one order.
constexpr int kFold = 0;
constexpr int kHalve = 1;
constexpr int kDots = 2;
constexpr int kAdasumGather = 3;
constexpr int kReturn = 4;

Range intersection(Range a, Range b) {
  const std::size_t begin = std::max(a.begin, b.begin);
  const std::size_t end = std::min(a.begin + a.bytes, b.begin + b.bytes);
  return {begin, end > begin ? end - begin : 0};
}

/// Before the operation takes its sequence number.
CrossResources& checked(CrossResources& resources, DataType type, std::size_t staging,
                        const std::vector<Range>& tensors) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::invalid_argument, "Adasum between nodes: " + why);
  };
  if (!is_floating_point(type)) {
    refuse("defined for floating-point types, not for " + std::string(name_of(type)));
  }
  for (const Range& tensor : tensors) {
    if (tensor.begin > staging || tensor.bytes > staging - tensor.begin ||
        tensor.begin % size_of(type) != 0 || tensor.bytes % size_of(type) != 0) {
      refuse("the tensor of " + std::to_string(tensor.bytes) + " bytes from byte " +
             std::to_string(tensor.begin) + " on is no whole number of " +
             std::string(name_of(type)) + " elements within the " + std::to_string(staging) +
             " bytes of staging");
    }
  }
  return resources;
}

}  // namespace

AdasumAllreduce::AdasumAllreduce(CrossResources& resources, DataType type,
                                 std::span<std::byte> staging, std::vector<Range> tensors,
                                 std::uint64_t sequence)
    : CrossWork(checked(resources, type, staging.size(), tensors), sequence),
      type_(type),
      staging_(staging),
      tensors_(std::move(tensors)),
      index_(link().index()),
      members_(link().size()),
      halving_members_(halving_members(members_)) {
  if (is_extra()) {
    send(workspace().sends, index_ - halving_members_, kFold, staging_);
    return;
  }
  levels_ = halving_levels(index_, halving_members_, staging_.size());
  dots_.resize(tensors_.size());
  other_dots_.resize(tensors_.size());
  if (has_extra()) {
    incoming_ = workspace().buffer.reserve(staging_.size());
    receive(workspace().receives, index_ + halving_members_, kFold, {incoming_, staging_.size()});
  } else {
    incoming_ = workspace().buffer.reserve(levels_.empty() ? 0 : levels_.front().kept.bytes);
    begin_level();
  }
}

bool AdasumAllreduce::poll() {
  while (workspace().receives.drained(link()) && workspace().sends.drained(link())) {
    if (stage_ == Stage::complete) {
      return finish();
    }
    proceed();
  }
  return false;
}

void AdasumAllreduce::proceed() {
  switch (stage_) {
    case Stage::folding: {
      if (is_extra()) {
        return return_result();
      }
      const Range everything{0, staging_.size()};
      measure(everything, true);
      combine(everything, true);
      return begin_level();
    }
    case Stage::halving:
      measure(levels_[level_].kept, levels_[level_].is_lower);
      distance_ = 1;
      return exchange_dots();
    case Stage::summing:
      add_dots();
      distance_ *= 2;
      return exchange_dots();
    case Stage::gathering:
      return begin_gathering();
    case Stage::returning:
    case Stage::complete:
      stage_ = Stage::complete;
  }
}

void AdasumAllreduce::begin_level() {
  if (level_ == levels_.size()) {
    return begin_gathering();
  }
  const HalvingLevel& level = levels_[level_];
  stage_ = Stage::halving;
  exchange(level.partner, kHalve, part(level.given), {incoming_, level.kept.bytes});
}

// Recursive doubling. Additions of two commute, so that all get the same bits.
void AdasumAllreduce::exchange_dots() {
  const HalvingLevel& level = levels_[level_];
  if (distance_ > 1 << level_) {
    combine(level.kept, level.is_lower);
    ++level_;
    return begin_level();
  }
  stage_ = Stage::summing;
  exchange(index_ ^ distance_, kDots, std::as_bytes(std::span(dots_)),
           std::as_writable_bytes(std::span(other_dots_)));
}

void AdasumAllreduce::begin_gathering() {
  if (level_ == 0) {
    return return_result();
  }
  const HalvingLevel& level = levels_[--level_];
  stage_ = Stage::gathering;
  exchange(level.partner, kAdasumGather, part(level.kept), part(level.given));
}

void AdasumAllreduce::return_result() {
  stage_ = Stage::returning;
  if (is_extra()) {
    receive(workspace().receives, index_ - halving_members_, kReturn, staging_);
  } else if (has_extra()) {
    send(workspace().sends, index_ + halving_members_, kReturn, staging_);
  }
}

void AdasumAllreduce::exchange(int partner, int phase, std::span<const std::byte> sent,
                               std::span<std::byte> received) {
  receive(workspace().receives, partner, phase, received);
  send(workspace().sends, partner, phase, sent);
}

void AdasumAllreduce::measure(Range range, bool own_is_a) {
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const Range piece = intersection(tensors_[t], range);
    dots_[t] = {};
    if (piece.bytes == 0) continue;
    const std::byte* own = staging_.data() + piece.begin;
    const std::byte* other = incoming_ + (piece.begin - range.begin);
    dots_[t] = adasum_dots(type_, own_is_a ? own : other, own_is_a ? other : own,
                           piece.bytes / size_of(type_));
  }
}

void AdasumAllreduce::add_dots() {
  for (std::size_t t = 0; t < dots_.size(); ++t) {
    dots_[t].dot += other_dots_[t].dot;
    dots_[t].norm_a += other_dots_[t].norm_a;
    dots_[t].norm_b += other_dots_[t].norm_b;
  }
}

void AdasumAllreduce::combine(Range range, bool own_is_a) {
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const Range piece = intersection(tensors_[t], range);
    if (piece.bytes == 0) continue;
    std::byte* own = staging_.data() + piece.begin;
    const std::byte* other = incoming_ + (piece.begin - range.begin);
    adasum_combine(type_, own_is_a ? own : other, own_is_a ? other : own, adasum_factors(dots_[t]),
                   own, piece.bytes / size_of(type_));
  }
}

}  // namespace hora::internal
