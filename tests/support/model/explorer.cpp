#include "tests/support/model/explorer.h"

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "tests/support/model/memory.h"

namespace hora::internal::model {
namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;

/// A thread of control that runs only when it is resumed.
/// Thread rule: one thread makes, resumes and destroys all fibers. A body must have returned when
/// its fiber is destroyed; no exception leaves it.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body)
      : body_(std::move(body)), stack_(new std::byte[kStackBytes]) {
    ::getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.get();
    own_.uc_stack.ss_size = kStackBytes;
    own_.uc_link = &resumer_;  // to which it returns from its body
    ::makecontext(
        &own_, [] { running_->body_(); }, 0);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the body until it yields or returns. Not from within a fiber.
  void resume() {
    running_ = this;
    ::swapcontext(&resumer_, &own_);
  }
  /// Suspends the running fiber, and returns to the one that resumed it.
  static void yield() { ::swapcontext(&running_->own_, &running_->resumer_); }

 private:
  static inline Fiber* running_ = nullptr;
  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t own_{};
  ucontext_t resumer_{};
};

/// Steps of one execution: what takes more does not end.
constexpr int kMostSteps = 3000;

/// Unwinds a thread whose execution is given up.
struct Abandoned {};

/// Words and the places (memory.h) that were read in them.
using Reads = std::map<std::size_t, std::size_t>;

struct Step {
  Reads reads;  ///< an access has one word here; the end of a spin all that the spin has read
  bool writes = false;
  bool ends_spin = false;
};

bool independent(const Step& a, const Step& b) {
  if (!a.writes && !b.writes) return true;
  return std::ranges::none_of(a.reads, [&](const auto& r) { return b.reads.contains(r.first); });
}

struct Thread {
  std::unique_ptr<Fiber> fiber;
  std::optional<Step> next;  ///< before which it stands
  bool ended = false;
  std::optional<std::size_t> asleep_on;  ///< word
  Reads reads;                           ///< since it began, or since its last spin
};

/// One place where the search has several ways to go on.
struct Choice {
  // A choice of the next thread.
  bool of_thread = false;
  std::vector<std::size_t> candidates = {};
  std::set<std::size_t> sleeping = {};  ///< threads whose step here was tried, or is redundant
  // Any other choice: 0 .. options - 1.
  std::size_t options = 0;
  std::size_t taken = 0;  ///< a thread, or an option
};

class Execution;
Execution* current = nullptr;

class Execution {
 public:
  Execution(const Options& options, std::vector<Choice>& path, const Program& program)
      : path_(path), program_(program), memory_(options, program.threads.size()) {}

  /// False where it is redundant.
  bool run() {
    current = this;
    threads_.resize(program_.threads.size());
    if (program_.at_begin) program_.at_begin();
    memory_.share_knowledge();
    alone_ = false;
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      threads_[t].fiber = std::make_unique<Fiber>([this, t] { body(t); });
    }
    for (std::size_t t = 0; t < threads_.size(); ++t) go_on(t);
    bool redundant = false;
    for (int step = 0; !failure_; ++step) {
      if (step == kMostSteps) fail("an execution does not end");
      const auto ready = runnable();
      if (ready.empty()) {
        if (!all_ended()) fail("no thread can proceed: " + where_all_stand());
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
    if (!failure_ && !redundant && program_.at_end) {
      alone_ = true;
      program_.at_end();
    }
    current = nullptr;
    return !redundant;
  }

  const std::optional<std::string>& failure() const { return failure_; }
  std::set<const void*> words() const { return memory_.addresses(); }
  void fail(const std::string& why) {
    if (!failure_) failure_ = why;
  }

  // Called by threads.
  std::uint64_t load(const void* address, std::uint64_t initial, std::memory_order order) {
    const std::size_t word = stand_before_access(address, initial, /*writes=*/false);
    if (alone_) return memory_.newest_value(word);
    const std::size_t place =
        memory_.load(running_, word, order, [&](std::size_t options) { return choose(options); });
    running().reads[word] = place;
    return memory_.value(word, place);
  }

  void store(const void* address, std::uint64_t initial, std::uint64_t value,
             std::memory_order order) {
    const std::size_t word = stand_before_access(address, initial, /*writes=*/true);
    memory_.store(running_, word, value, order, /*update=*/false);
  }

  std::uint64_t update(const void* address, std::uint64_t initial, std::memory_order order,
                       const Change& change) {
    const std::size_t word = stand_before_access(address, initial, /*writes=*/true);
    memory_.load_update(running_, word, order);
    running().reads[word] = memory_.newest_place(word);
    const std::uint64_t old = memory_.newest_value(word);
    if (const auto value = change(old)) memory_.store(running_, word, *value, order, true);
    return old;
  }

  void read_plain(const void* address) {
    if (alone_ || memory_.read_plain(running_, address)) return;
    fail("plain data is read while it may be written");
  }
  void write_plain(const void* address) {
    if (memory_.write_plain(running_, address) || alone_) return;
    fail("plain data is written while it may be used");
  }

  /// As the kernel: whether the word holds it is asked, and the sleep begun, at once.
  void block_on(const void* address, std::uint64_t initial, std::uint64_t expected) {
    const std::size_t word = stand_before_access(address, initial, /*writes=*/true);
    if (memory_.newest_value(word) != expected) return;
    running().asleep_on = word;
    leave();
  }
  /// Called where no exception may pass.
  void wake(const void* address) noexcept {
    if (abandoning_ || alone_) return;
    const std::size_t word = memory_.word_of(address);
    running().next = Step{.reads = {{word, 0}}, .writes = true};
    Fiber::yield();
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      if (threads_[t].asleep_on == word) {
        threads_[t].asleep_on.reset();
        woken_.push_back(t);
      }
    }
  }

  void spin() {
    const Reads polled = std::exchange(running().reads, {});
    stand_before({.reads = polled, .ends_spin = true});
    for (const auto& [word, place] : polled) memory_.see_newest(running_, word);
  }

 private:
  void body(std::size_t t) {
    try {
      if (!abandoning_) program_.threads[t]();
    } catch (const Abandoned&) {
    }
    threads_[t].ended = true;
    threads_[t].next.reset();
  }

  Thread& running() { return threads_[running_]; }

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
    running().next = step;
    leave();
  }
  /// Other threads may run here. Gives the word.
  std::size_t stand_before_access(const void* address, std::uint64_t initial, bool writes) {
    const std::size_t word = memory_.word_of(address, initial);
    if (!alone_) stand_before({.reads = {{word, 0}}, .writes = writes});
    return word;
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
      if (threads_[t].next && may_run(*threads_[t].next)) ready.push_back(t);
    }
    return ready;
  }
  /// A spin ends when there is something that it has not read.
  bool may_run(const Step& step) const {
    return !step.ends_spin || std::ranges::any_of(step.reads, [&](const auto& read) {
      return memory_.newest_place(read.first) > read.second;
    });
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

  std::vector<Choice>& path_;
  const Program& program_;
  Memory memory_;
  std::size_t position_ = 0;
  std::set<std::size_t> sleeping_;
  std::vector<Thread> threads_;
  std::size_t running_ = 0;
  std::vector<std::size_t> woken_;
  std::optional<std::string> failure_;
  bool abandoning_ = false;
  bool alone_ = true;  ///< before the first thread and after the last one
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
    Execution execution(options, path, threads);
    if (execution.run()) ++outcome.executions;
    outcome.words.merge(execution.words());
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
std::uint64_t load(const void* word, std::uint64_t initial, std::memory_order order) {
  return current->load(word, initial, order);
}
void store(const void* word, std::uint64_t initial, std::uint64_t value, std::memory_order order) {
  current->store(word, initial, value, order);
}
std::uint64_t update(const void* word, std::uint64_t initial, std::memory_order order,
                     const Change& change) {
  return current->update(word, initial, order, change);
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

}  // namespace hora::internal::model
