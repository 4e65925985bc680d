/// Which ranks of a node are ready for an id, in memory that they share.
#pragma once

#include <cstdint>

#include "core/control_block/atomic.h"
#include "core/control_block/tensor_id.h"

namespace hora::internal {

/// A view of one id's words, which are all zero at first. A word has a bit for each of its ranks,
/// and the id's generation, so that a late arrival for an id that was given up changes nothing.
/// Where the ranks have several words, whoever finds all of them full claims the completion in the
/// first, which also counts the rounds: no claim can be of an earlier one.
///
///   first word: generation 16 | round 15 | claimed 1 | ranks 32
///   others:     generation 16 | 0                 16 | ranks 32
///
/// Thread rules: arrive(), withdraw() and the queries: any thread of any rank. end_round(): the
/// thread whose arrival was the last. reset() and retire(): the leader's.
class ReadyWords {
 public:
  static constexpr int kRanksPerWord = 32;

  /// Where the words lie: that of the first ranks, and those of the others, of which there are
  /// words(..) - 1.
  struct Memory {
    Atomic<std::uint64_t>& first;
    Atomic<std::uint64_t>* others;
  };
  static constexpr int words(int local_size, int ranks_per_word) {
    return (local_size + ranks_per_word - 1) / ranks_per_word;
  }

  ReadyWords(Memory memory, std::uint32_t generation, int local_size, int ranks_per_word)
      : memory_(memory),
        generation_(generation),
        local_size_(local_size),
        ranks_per_word_(ranks_per_word) {}

  /// The id is not given up.
  bool is_current() const;
  enum class Arrival { waiting, complete, stale };
  /// Marks this rank ready. `complete`: all are, and only the caller is told so; nobody is ready
  /// any more, and the id may be given up again, after its end_round().
  Arrival arrive(int local_rank);
  void end_round();

  /// Those that are ready: all from the last arrival to end_round(); none where the id is stale.
  LocalRanks ranks() const;
  /// This rank is no longer ready.
  void withdraw(int local_rank);
  /// Nobody is ready any more.
  void reset();
  /// Gives the id up. False, and nothing is done, while its last arriver is at work; with
  /// `only_idle` also where a rank is seen to be ready for it.
  bool retire(bool only_idle);

 private:
  Atomic<std::uint64_t>& word(int index) const {
    return index == 0 ? memory_.first : memory_.others[index - 1];
  }
  int words() const { return words(local_size_, ranks_per_word_); }
  std::uint64_t full_mask(int index) const;
  bool others_are_full() const;
  bool claim();
  void clear(int index, std::uint64_t ranks);

  Memory memory_;
  std::uint32_t generation_;
  int local_size_;
  int ranks_per_word_;
};

}  // namespace hora::internal
