#include "core/control_block/ready_words.h"

#include <algorithm>

namespace hora::internal {
namespace {

constexpr int kGenerationShift = 48;
constexpr int kRoundShift = ReadyWords::kRanksPerWord + 1;
constexpr std::uint64_t kRoundBits = (std::uint64_t{1} << (kGenerationShift - kRoundShift)) - 1;
constexpr std::uint64_t kClaimed = std::uint64_t{1} << ReadyWords::kRanksPerWord;
constexpr std::uint64_t kMaskBits = kClaimed - 1;

constexpr std::uint32_t generation_in(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> kGenerationShift);
}

/// A word of a generation for which nobody is ready.
constexpr std::uint64_t empty_word(std::uint32_t generation) {
  return std::uint64_t{generation & 0xffffU} << kGenerationShift;
}

/// The first word after `word`, when nobody is ready.
constexpr std::uint64_t next_round(std::uint64_t word, std::uint32_t generation) {
  const std::uint64_t round = ((word >> kRoundShift) + 1) & kRoundBits;
  return empty_word(generation) | (round << kRoundShift);
}

constexpr std::uint64_t bit(int local_rank, int ranks_per_word) {
  return std::uint64_t{1} << (local_rank % ranks_per_word);
}

}  // namespace

bool ReadyWords::is_current() const {
  return generation_in(memory_.first.load(std::memory_order_acquire)) == generation_;
}

std::uint64_t ReadyWords::full_mask(int index) const {
  const int ranks = std::min(ranks_per_word_, local_size_ - index * ranks_per_word_);
  return (std::uint64_t{1} << ranks) - 1;
}

ReadyWords::Arrival ReadyWords::arrive(int local_rank) {
  const int index = local_rank / ranks_per_word_;
  const std::uint64_t own_bit = bit(local_rank, ranks_per_word_);
  Atomic<std::uint64_t>& own = word(index);
  std::uint64_t before = own.load(std::memory_order_relaxed);
  do {
    if (generation_in(before) != generation_) return Arrival::stale;
  } while (!own.compare_exchange_weak(before, before | own_bit, kWakeOrder));
  if (((before | own_bit) & kMaskBits) != full_mask(index)) return Arrival::waiting;
  return words() == 1 || claim() ? Arrival::complete : Arrival::waiting;
}

/// Of a round that others_are_full() has seen: they are cleared only once the first is claimed.
bool ReadyWords::claim() {
  std::uint64_t first = memory_.first.load(kWakeOrder);
  do {
    const bool full = generation_in(first) == generation_ && (first & kClaimed) == 0 &&
                      (first & kMaskBits) == full_mask(0);
    if (!full || !others_are_full()) return false;
  } while (!memory_.first.compare_exchange_weak(first, first | kClaimed, kWakeOrder));
  return true;
}

bool ReadyWords::others_are_full() const {
  for (int index = 1; index < words(); ++index) {
    const std::uint64_t other = word(index).load(kWakeOrder);
    if (generation_in(other) != generation_ || (other & kMaskBits) != full_mask(index)) {
      return false;
    }
  }
  return true;
}

void ReadyWords::end_round() {
  for (int index = 1; index < words(); ++index) {
    word(index).store(empty_word(generation_), kWakeOrder);
  }
  const std::uint64_t first = memory_.first.load(std::memory_order_relaxed);
  memory_.first.store(next_round(first, generation_), kWakeOrder);
}

LocalRanks ReadyWords::ranks() const {
  std::uint64_t first = memory_.first.load(kWakeOrder);
  for (;;) {
    if (generation_in(first) != generation_) return {};
    if ((first & kClaimed) != 0) return all_local_ranks(static_cast<std::size_t>(local_size_));
    LocalRanks ranks(first & kMaskBits);
    for (int index = 1; index < words(); ++index) {
      const std::uint64_t other = word(index).load(kWakeOrder);
      if (generation_in(other) != generation_) continue;
      ranks |= LocalRanks(other & kMaskBits) << static_cast<std::size_t>(index * ranks_per_word_);
    }
    // Words are cleared while the first is claimed, and its round has another number afterwards.
    const std::uint64_t again = words() == 1 ? first : memory_.first.load(kWakeOrder);
    if (again == first) return ranks;
    first = again;
  }
}

void ReadyWords::withdraw(int local_rank) {
  clear(local_rank / ranks_per_word_, bit(local_rank, ranks_per_word_));
}

void ReadyWords::reset() {
  for (int index = 0; index < words(); ++index) clear(index, kMaskBits);
}

void ReadyWords::clear(int index, std::uint64_t ranks) {
  Atomic<std::uint64_t>& cleared = word(index);
  std::uint64_t before = cleared.load(kWakeOrder);
  while (generation_in(before) == generation_ &&
         !cleared.compare_exchange_weak(before, before & ~ranks, kWakeOrder)) {
  }
}

bool ReadyWords::retire(bool only_idle) {
  const std::uint32_t next = generation_ + 1;
  std::uint64_t first = memory_.first.load(kWakeOrder);
  do {
    if (generation_in(first) != generation_) return true;
    if (only_idle && ranks().any()) return false;
    // All full: the last arriver is about to append the id and to end the round.
    const bool full = (first & kMaskBits) == full_mask(0) && others_are_full();
    if (full || (first & kClaimed) != 0) return false;
  } while (!memory_.first.compare_exchange_weak(first, next_round(first, next), kWakeOrder));
  for (int index = 1; index < words(); ++index) word(index).store(empty_word(next), kWakeOrder);
  return true;
}

}  // namespace hora::internal
