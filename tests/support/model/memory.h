/// Shared memory as C++'s memory model lets threads see it, for one execution of the explorer.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
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
  std::size_t word_of(const void* address, std::optional<std::uint64_t> initial = std::nullopt) {
    const auto [entry, fresh] = indices_.try_emplace(address, words_.size());
    if (fresh) words_.push_back({address, {{}}});
    Word& word = words_[entry->second];
    if (initial && word.history.size() == 1) word.history.front().value = *initial;
    return entry->second;
  }
  std::uint64_t newest_value(std::size_t word) const { return words_[word].history.back().value; }
  std::size_t newest_place(std::size_t word) const { return words_[word].history.size() - 1; }
  std::set<const void*> addresses() const {
    std::set<const void*> addresses;
    for (const Word& word : words_) addresses.insert(word.address);
    return addresses;
  }

  /// `choose(n)`: which of n values the load sees, 0 for the newest. Gives the place.
  std::size_t load(std::size_t thread, std::size_t word, std::memory_order order,
                   const std::function<std::size_t(std::size_t)>& choose) {
    order = weakened(word, order);
    std::size_t first = earliest(knowledge_[thread].view, word);
    if (order == std::memory_order_seq_cst) first = std::max(first, words_[word].last_seq_cst);
    const std::size_t place = newest_place(word) - choose(newest_place(word) - first + 1);
    see(thread, word, place, order);
    return place;
  }
  std::uint64_t value(std::size_t word, std::size_t place) const {
    return words_[word].history[place].value;
  }
  /// Reads as a read-modify-write does: the newest.
  void load_update(std::size_t thread, std::size_t word, std::memory_order order) {
    see(thread, word, newest_place(word), weakened(word, order));
  }
  /// `update`: it follows load_update().
  void store(std::size_t thread, std::size_t word, std::uint64_t value, std::memory_order order,
             bool update) {
    order = weakened(word, order);
    Knowledge& own = knowledge_[thread];
    ++own.clock[thread];
    const std::size_t place = newest_place(word) + 1;
    Store next{value, {}};
    // A read-modify-write passes on what the store before it has passed on.
    if (update) next.passed_on = words_[word].history.back().passed_on;
    raise(own.view, word, place);
    if (releases(order)) {
      join(next.passed_on.view, own.view);
      join(next.passed_on.clock, own.clock);
    } else {
      raise(next.passed_on.view, word, place);
    }
    words_[word].history.push_back(std::move(next));
    if (order == std::memory_order_seq_cst) words_[word].last_seq_cst = place;
  }
  /// No older value of it will be seen.
  void see_newest(std::size_t thread, std::size_t word) {
    raise(knowledge_[thread].view, word, newest_place(word));
  }

  /// Reads data that is not atomic. False: another access, of which one writes, is not ordered
  /// before this one.
  bool read_plain(std::size_t thread, const void* address) {
    PlainData& data = plain_[address];
    Clock& own = knowledge_[thread].clock;
    data.read_at.resize(knowledge_.size());
    data.read_at[thread] = ++own[thread];
    return data.written_at == 0 || data.writer == thread || own[data.writer] >= data.written_at;
  }
  bool write_plain(std::size_t thread, const void* address) {
    PlainData& data = plain_[address];
    Clock& own = knowledge_[thread].clock;
    data.read_at.resize(knowledge_.size());
    bool ordered =
        data.written_at == 0 || data.writer == thread || own[data.writer] >= data.written_at;
    for (std::size_t t = 0; t < knowledge_.size(); ++t) {
      ordered &= t == thread || own[t] >= data.read_at[t];
    }
    data.writer = thread;
    data.written_at = ++own[thread];
    return ordered;
  }

  /// All know by now what thread 0 knows, as threads do that begin.
  void share_knowledge() {
    for (Knowledge& knowledge : knowledge_) {
      join(knowledge.view, knowledge_.front().view);
      join(knowledge.clock, knowledge_.front().clock);
    }
  }

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

  static bool acquires(std::memory_order order) {
    return order != std::memory_order_relaxed && order != std::memory_order_release;
  }
  static bool releases(std::memory_order order) {
    return order != std::memory_order_relaxed && order != std::memory_order_acquire &&
           order != std::memory_order_consume;
  }
  template <class Values>
  static void join(Values& into, const Values& other) {
    if (into.size() < other.size()) into.resize(other.size());
    for (std::size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
  }
  static std::size_t earliest(const View& view, std::size_t word) {
    return word < view.size() ? view[word] : 0;
  }
  static void raise(View& view, std::size_t word, std::size_t place) {
    if (view.size() <= word) view.resize(word + 1);
    view[word] = std::max(view[word], place);
  }
  std::memory_order weakened(std::size_t word, std::memory_order order) const {
    const void* const address = words_[word].address;
    if (options_.relaxed.contains(address)) return std::memory_order_relaxed;
    if (order == std::memory_order_seq_cst && options_.without_total_order.contains(address)) {
      return std::memory_order_acq_rel;
    }
    return order;
  }
  void see(std::size_t thread, std::size_t word, std::size_t place, std::memory_order order) {
    Knowledge& own = knowledge_[thread];
    raise(own.view, word, place);
    if (!acquires(order)) return;
    join(own.view, words_[word].history[place].passed_on.view);
    join(own.clock, words_[word].history[place].passed_on.clock);
  }

  const Options& options_;
  std::vector<Knowledge> knowledge_;  ///< by thread
  std::vector<Word> words_;
  std::map<const void*, std::size_t> indices_;
  std::map<const void*, PlainData> plain_;
};

}  // namespace hora::internal::model
