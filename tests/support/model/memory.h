/// Shared memory as C++'s memory model lets threads see it, for one execution of the explorer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "tests/support/model/explorer.h"

namespace hora::internal::model {

/// Memory is the view machine for release and acquire of Kang et al. (A Promising Semantics, POPL
/// 2017, without promises), with a total order of the seq_cst accesses, which is the order of
/// execution: such a load sees the last such store, or a later one.
///
/// Words are numbered in the order in which they are first accessed, and the values of each: a
/// *place* is a value's index in its word's modification order. Threads are numbered from 0.
class Memory {
 public:
  /// `options` outlive it.
  Memory(const Options& options, std::size_t threads) : options_(options), knowledge_(threads) {
    for (Knowledge& knowledge : knowledge_) knowledge.clock.assign(threads, 0);
  }

  /// `initial`: what a word holds that nothing has been stored to.
  std::size_t word_of(const void* address, std::optional<std::uint64_t> initial = std::nullopt);
  std::uint64_t newest_value(std::size_t word) const { return words_[word].history.back().value; }
  std::size_t newest_place(std::size_t word) const { return words_[word].history.size() - 1; }
  std::set<const void*> addresses() const;

  /// `choose(n)`: which of n values the load sees, 0 for the newest. Gives the place.
  std::size_t load(std::size_t thread, std::size_t word, std::memory_order order,
                   const std::function<std::size_t(std::size_t)>& choose);
  std::uint64_t value(std::size_t word, std::size_t place) const {
    return words_[word].history[place].value;
  }
  /// Reads as a read-modify-write does: the newest.
  void load_update(std::size_t thread, std::size_t word, std::memory_order order);
  /// `update`: it follows load_update().
  void store(std::size_t thread, std::size_t word, std::uint64_t value, std::memory_order order,
             bool update);
  /// No older value of it will be seen.
  void see_newest(std::size_t thread, std::size_t word);

  /// Reads data that is not atomic. False: another access, of which one writes, is not ordered
  /// before this one.
  bool read_plain(std::size_t thread, const void* address);
  bool write_plain(std::size_t thread, const void* address);

  /// All know by now what thread 0 knows, as threads do that begin.
  void share_knowledge();

 private:
  /// By word: the earliest place that may still be seen.
  using View = std::vector<std::size_t>;
  /// By thread: how many of its steps are known to have happened before.
  using Clock = std::vector<std::uint64_t>;
  struct Knowledge {
    View view;
    Clock clock;
  };
  struct Store {
    std::uint64_t value = 0;
    Knowledge passed_on;  ///< to an acquiring load
  };
  struct Word {
    const void* address = nullptr;
    std::vector<Store> history;
    std::size_t last_seq_cst = 0;  ///< place
  };
  /// Readers and the last writer of plain data.
  struct PlainData {
    std::size_t writer = 0;
    std::uint64_t written_at = 0;  ///< the writer's clock; 0: never
    Clock read_at;
  };

  template <class Values>
  static void join(Values& into, const Values& other);
  static std::size_t earliest(const View& view, std::size_t word) {
    return word < view.size() ? view[word] : 0;
  }
  static void raise(View& view, std::size_t word, std::size_t place);
  std::memory_order weakened(std::size_t word, std::memory_order order) const;
  void see(std::size_t thread, std::size_t word, std::size_t place, std::memory_order order);

  const Options& options_;
  std::vector<Knowledge> knowledge_;  ///< by thread
  std::vector<Word> words_;
  std::map<const void*, std::size_t> indices_;
  std::map<const void*, PlainData> plain_;
};

}  // namespace hora::internal::model
