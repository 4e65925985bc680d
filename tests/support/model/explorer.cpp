#include "tests/support/model/explorer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>

#include "tests/support/model/fiber.h"

namespace hora::model {
namespace {

/// Steps of one execution: what takes more does not end.
constexpr int kMostSteps = 3000;

/// Unwinds a thread whose execution is given up.
struct Abandoned {};

/// By word: the earliest store in its history that may still be seen.
using View = std::vector<std::size_t>;
/// By thread: how many of its steps are known to have happened before.
using Clock = std::vector<std::uint64_t>;

template <class Values>
void join(Values& into, const Values& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

struct Knowledge {
  View view;
  Clock clock;
};

struct Store {
  std::uint64_t value = 0;
  Knowledge told;  ///< what an acquiring load learns
};

struct Word {
  const void* address = nullptr;
  std::vector<Store> history;    ///< in modification order
  std::size_t last_seq_cst = 0;  ///< store in it
};

struct Step {
  std::size_t word = 0;
  bool writes = false;
  bool sees_all = false;  ///< the end of a spin: reads every word
};

bool independent(const Step& a, const Step& b) {
  const bool meet = a.word == b.word || a.sees_all || b.sees_all;
  return !meet || (!a.writes && !b.writes);
}

struct Thread {
  std::unique_ptr<Fiber> fiber;
  Knowledge knows;
  std::optional<Step> next;  ///< before which it stands
  bool ended = false;
  std::optional<std::size_t> asleep_on;  ///< word
  std::uint64_t newest_seen = 0;         ///< stores that there were when a spin ended
};

/// Readers and the last writer of plain data.
struct PlainData {
  std::size_t writer = 0;
  std::uint64_t written_at = 0;  ///< the writer's clock; 0: never
  Clock read_at;
};

/// One place where the search has several ways to go on.
struct Choice {
  // Of the next thread.
  bool of_thread = false;
  std::vector<std::size_t> candidates = {};
  std::set<std::size_t> sleeping = {};  ///< threads whose step here was tried, or is redundant
  // Of anything else: 0 .. options - 1.
  std::size_t options = 0;
  std::size_t taken = 0;  ///< a thread, or an option
};

class Execution;
Execution* current = nullptr;

bool acquires(std::memory_order order) {
  return order != std::memory_order_relaxed && order != std::memory_order_release;
}
bool releases(std::memory_order order) {
  return order != std::memory_order_relaxed && order != std::memory_order_acquire &&
         order != std::memory_order_consume;
}

class Execution {
 public:
  Execution(const Options& options, std::vector<Choice>& path) : options_(options), path_(path) {}

  /// False where it is redundant.
  bool run(const Program& program) {
    current = this;
    threads_.resize(program.threads.size());
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      threads_[t].knows.clock.assign(threads_.size(), 0);
      threads_[t].fiber = std::make_unique<Fiber>([this, t, &program] { body(t, program); });
    }
    for (std::size_t t = 0; t < threads_.size(); ++t) go_on(t);
    bool redundant = false;
    for (int step = 0; !failure_; ++step) {
      if (step == kMostSteps) fail("an execution does not end");
      const auto ready = runnable();
      if (ready.empty()) {
        if (!all_ended()) fail("nobody goes on: " + where_all_stand());
        break;
      }
      const auto thread = choose_thread(ready);
      if (!thread) {
        redundant = true;
        break;
      }
      const Step done = *threads_[*thread].next;
      go_on(*thread);
      std::erase_if(sleeping_, [&](std::size_t t) {
        return !threads_[t].next || !independent(*threads_[t].next, done);
      });
    }
    abandon();
    if (!failure_ && !redundant && program.at_end) {
      at_end_ = true;
      program.at_end();
    }
    current = nullptr;
    return !redundant;
  }

  const std::optional<std::string>& failure() const { return failure_; }
  void add_words(std::set<const void*>& words) const {
    for (const Word& word : words_) words.insert(word.address);
  }
  void fail(const std::string& why) {
    if (!failure_) failure_ = why;
  }

  // Called by threads.
  void yield_before(const void* address, Kind kind) {
    if (at_end_) return;
    stand_before({word_of(address, std::nullopt), kind != Kind::load});
  }

  std::uint64_t load(const void* address, std::uint64_t initial, std::memory_order order) {
    Word& word = words_[word_of(address, initial)];
    if (at_end_) return word.history.back().value;
    order = weakened(address, order);
    Knowledge& mine = me().knows;
    std::size_t earliest = seen(mine.view, index(word));
    if (order == std::memory_order_seq_cst) earliest = std::max(earliest, word.last_seq_cst);
    // The newest first.
    const std::size_t newest = word.history.size() - 1;
    const std::size_t read = newest - choose(newest - earliest + 1);
    see(mine, word, read, order);
    return word.history[read].value;
  }

  std::uint64_t load_update(const void* address, std::uint64_t initial, std::memory_order order) {
    Word& word = words_[word_of(address, initial)];
    see(me().knows, word, word.history.size() - 1, weakened(address, order));
    return word.history.back().value;
  }

  void store(const void* address, std::uint64_t initial, std::uint64_t value,
             std::memory_order order, bool update) {
    Word& word = words_[word_of(address, initial)];
    order = weakened(address, order);
    Thread& thread = me();
    ++thread.knows.clock[running_];
    const std::size_t place = word.history.size();
    Store next{value, {}};
    // A read-modify-write passes on what the store before it has passed on.
    if (update) next.told = word.history.back().told;
    remember(thread.knows.view, index(word), place);
    if (releases(order)) {
      join(next.told.view, thread.knows.view);
      join(next.told.clock, thread.knows.clock);
    } else {
      remember(next.told.view, index(word), place);
    }
    word.history.push_back(std::move(next));
    if (order == std::memory_order_seq_cst) word.last_seq_cst = place;
    ++stores_;
  }

  void read_plain(const void* address) {
    if (at_end_) return;
    PlainData& data = plain_[address];
    Knowledge& mine = me().knows;
    if (data.written_at > 0 && data.writer != running_ &&
        mine.clock[data.writer] < data.written_at) {
      fail("plain data is read while it may be written");
    }
    data.read_at.resize(threads_.size());
    data.read_at[running_] = ++mine.clock[running_];
  }

  void write_plain(const void* address) {
    if (at_end_) return;
    PlainData& data = plain_[address];
    Knowledge& mine = me().knows;
    data.read_at.resize(threads_.size());
    bool ordered = data.written_at == 0 || data.writer == running_ ||
                   mine.clock[data.writer] >= data.written_at;
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      ordered &= t == running_ || mine.clock[t] >= data.read_at[t];
    }
    if (!ordered) fail("plain data is written while it may be used");
    data.writer = running_;
    data.written_at = ++mine.clock[running_];
  }

  /// As the kernel: whether the word holds it is asked, and the sleep begun, at once.
  void block_on(const void* address, std::uint64_t initial, std::uint64_t expected) {
    const std::size_t word = word_of(address, initial);
    stand_before({word, true});
    if (words_[word].history.back().value != expected) return;
    me().asleep_on = word;
    leave();
  }
  /// Called where no exception may pass.
  void wake(const void* address) noexcept {
    if (abandoning_) return;
    const std::size_t word = word_of(address, std::nullopt);
    me().next = Step{word, true};
    Fiber::yield();
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      if (threads_[t].asleep_on == word) {
        threads_[t].asleep_on.reset();
        woken_.push_back(t);
      }
    }
  }

  void spin() {
    stand_before({.sees_all = true});
    me().newest_seen = stores_;
    for (std::size_t w = 0; w < words_.size(); ++w) {
      remember(me().knows.view, w, words_[w].history.size() - 1);
    }
  }

 private:
  void body(std::size_t t, const Program& program) {
    try {
      if (!abandoning_) program.threads[t]();
    } catch (const Abandoned&) {
    }
    threads_[t].ended = true;
    threads_[t].next.reset();
  }

  Thread& me() { return threads_[running_]; }
  static std::size_t seen(const View& view, std::size_t word) {
    return word < view.size() ? view[word] : 0;
  }
  static void remember(View& view, std::size_t word, std::size_t place) {
    if (view.size() <= word) view.resize(word + 1);
    view[word] = std::max(view[word], place);
  }
  std::size_t index(const Word& word) const {
    return static_cast<std::size_t>(&word - words_.data());
  }
  std::size_t word_of(const void* address, std::optional<std::uint64_t> initial) {
    const auto [entry, fresh] = indices_.try_emplace(address, words_.size());
    if (fresh) words_.push_back({address, {{}}});
    Word& word = words_[entry->second];
    if (initial && word.history.size() == 1) word.history.front().value = *initial;
    return entry->second;
  }
  std::memory_order weakened(const void* address, std::memory_order order) const {
    if (options_.relaxed.contains(address)) return std::memory_order_relaxed;
    if (order == std::memory_order_seq_cst && options_.without_total_order.contains(address)) {
      return std::memory_order_acq_rel;
    }
    return order;
  }
  void see(Knowledge& mine, const Word& word, std::size_t read, std::memory_order order) {
    remember(mine.view, index(word), read);
    if (!acquires(order)) return;
    join(mine.view, word.history[read].told.view);
    join(mine.clock, word.history[read].told.clock);
  }

  // Switching.
  void go_on(std::size_t t) {
    switch_to(t);
    // A woken thread runs to its next step: what lies between is its own.
    while (!woken_.empty()) {
      const std::size_t next = woken_.back();
      woken_.pop_back();
      switch_to(next);
    }
  }
  void switch_to(std::size_t t) {
    running_ = t;
    threads_[t].next.reset();
    threads_[t].fiber->resume();
  }
  void leave() {
    if (abandoning_) throw Abandoned();
    Fiber::yield();
    if (abandoning_) throw Abandoned();
  }
  void stand_before(const Step& step) {
    me().next = step;
    leave();
  }
  void abandon() {
    abandoning_ = true;
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      if (!threads_[t].ended) switch_to(t);
    }
  }

  // Searching.
  std::vector<std::size_t> runnable() const {
    std::vector<std::size_t> ready;
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      const Thread& thread = threads_[t];
      if (!thread.next) continue;
      if (!thread.next->sees_all || stores_ > thread.newest_seen) ready.push_back(t);
    }
    return ready;
  }
  bool all_ended() const {
    return std::all_of(threads_.begin(), threads_.end(), [](const Thread& t) { return t.ended; });
  }
  std::string where_all_stand() const {
    std::string text;
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      text += (t > 0 ? ", thread " : "thread ") + std::to_string(t) +
              (threads_[t].ended       ? " has ended"
               : threads_[t].asleep_on ? " sleeps"
                                       : " spins");
    }
    return text;
  }
  std::optional<std::size_t> choose_thread(const std::vector<std::size_t>& ready) {
    if (position_ == path_.size()) {
      Choice choice{.of_thread = true, .candidates = ready, .sleeping = sleeping_};
      const auto first = std::find_if(ready.begin(), ready.end(),
                                      [&](std::size_t t) { return !sleeping_.contains(t); });
      if (first == ready.end()) return std::nullopt;
      choice.taken = *first;
      path_.push_back(std::move(choice));
    }
    const Choice& choice = path_[position_++];
    sleeping_ = choice.sleeping;
    return choice.taken;
  }
  std::size_t choose(std::size_t options) {
    if (options == 1) return 0;
    if (position_ == path_.size()) path_.push_back({.options = options});
    return path_[position_++].taken;
  }

  const Options& options_;
  std::vector<Choice>& path_;
  std::size_t position_ = 0;
  std::set<std::size_t> sleeping_;
  std::vector<Thread> threads_;
  std::size_t running_ = 0;
  std::uint64_t stores_ = 0;
  std::vector<std::size_t> woken_;
  std::vector<Word> words_;
  std::map<const void*, std::size_t> indices_;
  std::map<const void*, PlainData> plain_;
  std::optional<std::string> failure_;
  bool abandoning_ = false;
  bool at_end_ = false;
};

/// To the next path in depth-first order; false where there is none.
bool advance(std::vector<Choice>& path) {
  for (; !path.empty(); path.pop_back()) {
    Choice& last = path.back();
    if (!last.of_thread) {
      if (++last.taken < last.options) return true;
      continue;
    }
    last.sleeping.insert(last.taken);
    const auto next = std::find_if(last.candidates.begin(), last.candidates.end(),
                                   [&](std::size_t t) { return !last.sleeping.contains(t); });
    if (next == last.candidates.end()) continue;
    last.taken = *next;
    return true;
  }
  return false;
}

}  // namespace

Outcome explore(const std::function<Program()>& program, const Options& options) {
  Outcome outcome;
  std::vector<Choice> path;
  do {
    const Program threads = program();
    Execution execution(options, path);
    if (execution.run(threads)) ++outcome.executions;
    execution.add_words(outcome.words);
    if (execution.failure()) {
      outcome.failure = execution.failure();
      return outcome;
    }
    if (outcome.executions > options.most_executions) {
      throw std::runtime_error("more executions than Options::most_executions");
    }
  } while (advance(path));
  return outcome;
}

void fail(const std::string& why) {
  current->fail(why);
}
void spin() {
  current->spin();
}
void yield_before(const void* word, Kind kind) {
  current->yield_before(word, kind);
}
std::uint64_t load(const void* word, std::uint64_t initial, std::memory_order order) {
  return current->load(word, initial, order);
}
void store(const void* word, std::uint64_t initial, std::uint64_t value, std::memory_order order) {
  current->store(word, initial, value, order, /*update=*/false);
}
std::uint64_t load_update(const void* word, std::uint64_t initial, std::memory_order order) {
  return current->load_update(word, initial, order);
}
void store_update(const void* word, std::uint64_t value, std::memory_order order) {
  current->store(word, 0, value, order, /*update=*/true);
}
void read_plain(const void* data) {
  current->read_plain(data);
}
void write_plain(const void* data) {
  current->write_plain(data);
}
void block_on(const void* word, std::uint64_t initial, std::uint64_t expected) {
  current->block_on(word, initial, expected);
}
void wake(const void* word) {
  current->wake(word);
}

}  // namespace hora::model
