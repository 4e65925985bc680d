/// Runs a small program of threads in every order, with every value that C++'s memory model lets
/// their loads see.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace hora::internal::model {

/// The threads' functions in one execution; all that they share is made anew for each, all zero.
struct Program {
  std::vector<std::function<void()>> threads;
  /// Before the first thread begins; all threads know what it has done.
  std::function<void()> at_begin = {};
  /// After the last thread has ended: reports what is wrong by fail().
  std::function<void()> at_end = {};
};

struct Options {
  /// Orders of accesses to these are taken as acquire and release where they are seq_cst, or as
  /// relaxed: to see that a test notices. An address within the shared memory.
  std::set<const void*> without_total_order = {};
  std::set<const void*> relaxed = {};
  std::uint64_t most_executions = 20'000'000;
};

struct Outcome {
  /// The error of the first execution that had one; nothing: no execution does.
  std::optional<std::string> failure;
  std::uint64_t executions = 0;  ///< that ended, each of them different
  std::set<const void*> words;   ///< that were accessed
};

/// Stateless search (Godefroid, Partial-Order Methods, 1996): depth first, with sleep sets, so that
/// orders which differ in independent steps alone are run once.
///
/// Memory is that of memory.h. Two things that C++ allows are left out: stores that are seen before
/// a load that precedes them in their thread, and an order of one word's plain stores that differs
/// from their execution (words have one writer at a time, or are changed by read-modify-write).
///
/// A failure is: fail(); accesses to Plain data that are not ordered; and that no thread can run
/// though not all threads have ended: a lost wake-up.
Outcome explore(const std::function<Program()>& program, const Options& options = {});

// For the threads of a program.

/// This execution is wrong.
void fail(const std::string& why);
/// Ends a round of polling: goes on when a word that the thread has read since its last spin holds
/// something that it has not read, and sees the newest values of these words then, as stores become
/// visible in finite time.
void spin();

// For atomics (atomic.h) and the futex.

// Before each access to a word other threads may run.
std::uint64_t load(const void* word, std::uint64_t initial, std::memory_order order);
void store(const void* word, std::uint64_t initial, std::uint64_t value, std::memory_order order);
/// A read-modify-write: gives the value that it finds, and stores what `change` makes of it, if
/// anything.
using Change = std::function<std::optional<std::uint64_t>(std::uint64_t)>;
std::uint64_t update(const void* word, std::uint64_t initial, std::memory_order order,
                     const Change& change);
void read_plain(const void* data);
void write_plain(const void* data);
/// Blocks while the word holds `expected` and no thread wakes it.
void block_on(const void* word, std::uint64_t initial, std::uint64_t expected);
void wake(const void* word);

}  // namespace hora::internal::model
