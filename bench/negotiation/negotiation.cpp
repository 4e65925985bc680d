/// Cost of agreement between ranks: from the last submission to the result, and processor time
/// while ranks have nothing to do or wait for each other. See ../README.md.
#include <hora/hora.h>
#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/harness/comparison.h"
#include "bench/harness/program.h"
#include "bench/harness/ranks.h"

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Latency {
  std::vector<double> seconds;
  double wrong = 0.0;  ///< results that were not the sum, on all ranks
};

/// Processor time of the rank that used most.
struct ProcessorTime {
  double seconds = 0.0;          ///< of all threads of the process, user and system
  double elapsed_seconds = 0.0;  ///< the shortest rank's
  double wrong = 0.0;
};

/// Seconds that one blocking allreduce of 4 bytes takes, in each round.
struct RecordCost {
  std::vector<double> on;
  std::vector<double> watched;
  std::vector<double> off;
  double wrong = 0.0;
};

double seconds_since_epoch() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// A training's main thread as the scheduler sees it: it computes without a pause.
class Computation {
 public:
  // About a tenth of a microsecond.
  void some() {
    for (int i = 0; i < 64; ++i) state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    sink_ = state_;
  }
  void for_duration(Clock::duration duration) {
    const auto end = Clock::now() + duration;
    while (Clock::now() < end) some();
  }

 private:
  std::uint64_t state_ = 1;
  volatile std::uint64_t sink_ = 0;
};

float value_of(int rank, int iteration) {
  return static_cast<float>(rank + 1 + iteration % 1000);
}
float sum_of(int ranks, int iteration) {
  return static_cast<float>(ranks * (ranks + 1) / 2 + ranks * (iteration % 1000));
}

/// Collective. From the moment before the last rank's allreduce_async to the moment at which the
/// slowest rank's main thread, which computes all the while and polls its handle every fraction
/// of a microsecond, sees it ready. So it includes the submitting call, negotiation, the engines'
/// wake-up, the reduction and the poll. Before each submission every rank computes for about a
/// millisecond, by then its engine sleeps. All ranks must be on one host: they compare clocks.
Latency last_submission_to_ready(const hora::Context& world, const Ranks& ranks, int iterations) {
  // Different on each rank, so that the last one to submit changes; the seed gives no result.
  std::minstd_rand random(static_cast<unsigned>(ranks.rank() + 1));
  std::uniform_int_distribution<int> microseconds(900, 1100);
  const auto count = static_cast<std::size_t>(iterations);
  // A time of the epoch has 2^53 / 10^9 seconds: 104 days of whole nanoseconds in a double.
  std::vector<double> submitted(count);
  std::vector<double> ready(count);
  Latency latency;
  Computation computation;
  ranks.barrier();
  for (int i = 0; i < iterations; ++i) {
    float value = value_of(ranks.rank(), i);
    computation.for_duration(std::chrono::microseconds(microseconds(random)));
    submitted[static_cast<std::size_t>(i)] = seconds_since_epoch();
    hora::Handle handle = hora::allreduce_async(
        world, hora::view(&value, 1), {.name = "negotiation.ready", .op = hora::ReduceOp::sum});
    while (!handle.ready()) computation.some();
    ready[static_cast<std::size_t>(i)] = seconds_since_epoch();
    handle.wait();
    latency.wrong += value != sum_of(ranks.size(), i) ? 1.0 : 0.0;
  }
  ranks.max(submitted);
  ranks.max(ready);
  for (std::size_t i = 0; i < count; ++i) latency.seconds.push_back(ready[i] - submitted[i]);
  latency.wrong = static_cast<double>(ranks.sum(static_cast<std::int64_t>(latency.wrong)));
  return latency;
}

/// A thread that answers each wake-up. Thread rule: one thread.
class Sleeper {
 public:
  Sleeper() : thread_([this] { run(); }) {}
  ~Sleeper() {
    stopping_.store(true);
    wake();
    thread_.join();
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  void wake() {
    word_.fetch_add(1);
    ::syscall(SYS_futex, &word_, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
  bool has_answered() const { return answer_.load() == word_.load(); }

 private:
  void run() {
    ask_for_short_slices();
    std::uint32_t seen = 0;
    while (!stopping_.load()) {
      // Not FUTEX_PRIVATE: nor is an engine's.
      ::syscall(SYS_futex, &word_, FUTEX_WAIT, seen, nullptr, nullptr, 0);
      seen = word_.load();
      answer_.store(seen);
    }
  }
  /// As the engine does (core/engine/progress_threads.cpp).
  static void ask_for_short_slices() {
    struct {
      std::uint32_t size, policy;
      std::uint64_t flags;
      std::int32_t nice;
      std::uint32_t priority;
      std::uint64_t runtime, deadline, period;
    } attributes{};
    if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0U) != 0) return;
    attributes.size = sizeof attributes;
    attributes.runtime = 100'000;
    ::syscall(SYS_sched_setattr, 0, &attributes, 0U);
  }

  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> answer_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// Collective. The part of it that no allreduce can be without: each rank's main thread, which
/// computes as there, wakes a thread of its own process that sleeps on a futex, with the engine's
/// time slice, and computes until it sees the answer. The slowest rank's times.
Latency futex_wakeup(const Ranks& ranks, int iterations) {
  std::minstd_rand random(static_cast<unsigned>(ranks.rank() + 1));
  std::uniform_int_distribution<int> microseconds(900, 1100);
  Latency latency;
  Computation computation;
  Sleeper sleeper;
  ranks.barrier();
  for (int i = 0; i < iterations; ++i) {
    computation.for_duration(std::chrono::microseconds(microseconds(random)));
    const auto begin = Clock::now();
    sleeper.wake();
    while (!sleeper.has_answered()) computation.some();
    latency.seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  ranks.max(latency.seconds);
  return latency;
}

/// Collective. A blocking allreduce after all ranks slept for some milliseconds and called a
/// barrier; the slowest rank's time.
Latency four_bytes_from_idle(const hora::Context& world, const Ranks& ranks, int iterations) {
  Latency latency;
  for (int i = 0; i < iterations; ++i) {
    float value = value_of(ranks.rank(), i);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    ranks.barrier();
    const auto begin = Clock::now();
    hora::allreduce(world, hora::view(&value, 1),
                    {.name = "negotiation.idle", .op = hora::ReduceOp::sum});
    latency.seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    latency.wrong += value != sum_of(ranks.size(), i) ? 1.0 : 0.0;
  }
  ranks.max(latency.seconds);
  latency.wrong = static_cast<double>(ranks.sum(static_cast<std::int64_t>(latency.wrong)));
  return latency;
}

class Meter {
 public:
  ProcessorTime read() const {
    return {used() - used_, std::chrono::duration<double>(Clock::now() - begin_).count(), 0.0};
  }

 private:
  static double used() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  }

  double used_ = used();
  Clock::time_point begin_ = Clock::now();
};

void sleep(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Ranks meet in MPI, which spins: a moment later the engines and the ranks sleep.
void settle(const Ranks& ranks) {
  ranks.barrier();
  sleep(0.05);
}

ProcessorTime most_of(const Ranks& ranks, const ProcessorTime& own) {
  return {ranks.max(own.seconds), -ranks.max(-own.elapsed_seconds), ranks.max(own.wrong)};
}

int node_of(const hora::Context& world, int rank) {
  int node = 0;
  for (;; ++node) {
    const auto& ranks = world.ranks_of_node(node);
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) return node;
  }
}

/// Collective. Every main thread sleeps for `seconds`, nothing is submitted.
ProcessorTime with_nothing_submitted(const Ranks& ranks, double seconds) {
  settle(ranks);
  const Meter meter;
  sleep(seconds);
  return most_of(ranks, meter.read());
}

/// Collective. The last rank sleeps for `seconds` in its own code before it submits; the others
/// wait in their handles. Of those, the ones on the sleeper's node are measured, or, with
/// `another_node`, the ones elsewhere: there must be such ranks.
ProcessorTime waiting_for_sleeper(const hora::Context& world, const Ranks& ranks, double seconds,
                                  bool another_node) {
  const int sleeper = ranks.size() - 1;
  const bool sleeps = ranks.rank() == sleeper;
  const bool counts = !sleeps && (node_of(world, sleeper) != world.cross_rank()) == another_node;
  float value = 1.0F;
  settle(ranks);
  const Meter meter;
  if (sleeps) sleep(seconds);
  hora::allreduce_async(world, hora::view(&value, 1),
                        {.name = "negotiation.sleeper", .op = hora::ReduceOp::sum})
      .wait();
  ProcessorTime own = meter.read();
  if (!counts) own.seconds = 0.0;
  own.wrong = value != static_cast<float>(ranks.size()) ? 1.0 : 0.0;
  return most_of(ranks, own);
}

/// Collective. With flight records and the ledger of who came last, as under `horarun --watch`, and
/// without both, in turn (HORARUN_RECORD), each round with a context of its own: `world` is shut
/// down, and afterwards another one. The slowest rank's times.
RecordCost flight_record(hora::Context& world, const Ranks& ranks, int iterations, int rounds) {
  constexpr const char* kVariable = "HORARUN_RECORD";
  const char* const before = std::getenv(kVariable);
  const std::string kept = before ? before : "";
  RecordCost cost;
  for (int round = 0; round < 3 * rounds; ++round) {
    // There and back: what drifts concerns all.
    const int place = round % 6 < 3 ? round % 6 : 5 - round % 6;
    if (place == 0) {
      ::unsetenv(kVariable);
    } else {
      ::setenv(kVariable, place == 1 ? "watched" : "off", 1);
    }
    world.shutdown();
    world = hora::init();
    ranks.barrier();
    Clock::time_point begin;
    for (int i = -iterations / 10; i < iterations; ++i) {
      if (i == 0) begin = Clock::now();
      float value = value_of(ranks.rank(), i + iterations);
      hora::allreduce(world, hora::view(&value, 1),
                      {.name = "negotiation.record", .op = hora::ReduceOp::sum});
      cost.wrong += value != sum_of(ranks.size(), i + iterations) ? 1.0 : 0.0;
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    std::vector<double>& times = place == 0 ? cost.on : place == 1 ? cost.watched : cost.off;
    times.push_back(ranks.max(seconds) / iterations);
  }
  ::unsetenv(kVariable);
  if (before) ::setenv(kVariable, kept.c_str(), 1);
  world.shutdown();
  world = hora::init();
  cost.wrong = ranks.max(cost.wrong);
  return cost;
}

struct Options {
  double idle_seconds = 10.0;
  double wait_seconds = 5.0;
};

// A counter "pass" of 1 says that the value keeps to the bar.
Measurement judged(Measurement measurement, const std::string& bar_name, double bar, double value) {
  measurement.counters[bar_name] = bar;
  measurement.counters["pass"] = value <= bar ? 1.0 : 0.0;
  return measurement;
}

Measurement measurement_of(const Latency& latency, double bar_us) {
  Measurement result;
  result.seconds = quantile(latency.seconds, 0.5);
  result.iterations = static_cast<std::int64_t>(latency.seconds.size());
  result.counters = {{"p99_us", quantile(latency.seconds, 0.99) * 1e6}, {"wrong", latency.wrong}};
  return judged(std::move(result), "bar_us", bar_us, quantile(latency.seconds, 0.5) * 1e6);
}

Measurement measurement_of(const ProcessorTime& time, double bar_percent) {
  Measurement result;
  result.seconds = time.seconds;
  const double percent = 100.0 * time.seconds / time.elapsed_seconds;
  result.counters = {
      {"cpu_percent", percent}, {"elapsed_s", time.elapsed_seconds}, {"wrong", time.wrong}};
  return judged(std::move(result), "bar_percent", bar_percent, percent);
}

// In turn with a bare wake-up, which machines differ in most.
Measurement beside_wakeup(const hora::Context& world, const Ranks& ranks, int iterations,
                          double bar_us) {
  constexpr int kBlocks = 5;
  Latency all;
  std::vector<double> wakeups, ratios;
  for (int block = 0; block < kBlocks; ++block) {
    const Latency wakeup = futex_wakeup(ranks, iterations / kBlocks);
    const Latency ready = last_submission_to_ready(world, ranks, iterations / kBlocks);
    ratios.push_back(quantile(ready.seconds, 0.5) / quantile(wakeup.seconds, 0.5));
    wakeups.insert(wakeups.end(), wakeup.seconds.begin(), wakeup.seconds.end());
    all.seconds.insert(all.seconds.end(), ready.seconds.begin(), ready.seconds.end());
    all.wrong += ready.wrong;
  }
  Measurement result = measurement_of(all, bar_us);
  result.counters["futex_us"] = quantile(wakeups, 0.5) * 1e6;
  result.counters["over_futex"] = quantile(ratios, 0.5);
  return result;
}

void add(Program& program, const std::string& name, std::function<Measurement()> measure) {
  program.add_whole({"negotiation/" + name}, benchmark::kMicrosecond,
                    [measure = std::move(measure)] { return std::vector{measure()}; });
}

void add_latencies(Program& program, const hora::Context& world, const Ranks& ranks) {
  // One operation takes its 1 ms of computing, or 3 ms of sleep, besides.
  const int iterations = std::max(20, static_cast<int>(program.min_time() * 1000.0));
  if (ranks.on_one_host()) {
    const double bar_us = world.cross_size() == 1 ? 25.0 : 250.0;
    add(program, "last_submission_to_ready", [&world, &ranks, iterations, bar_us] {
      last_submission_to_ready(world, ranks, 10);
      return beside_wakeup(world, ranks, iterations, bar_us);
    });
  } else {
    program.describe("last_submission_to_ready", "left out: needs ranks that share a clock");
  }
  add(program, "4_bytes_from_idle", [&world, &ranks, iterations] {
    four_bytes_from_idle(world, ranks, 10);
    return measurement_of(four_bytes_from_idle(world, ranks, iterations), 60.0);
  });
}

void add_processor_times(Program& program, const hora::Context& world, const Ranks& ranks,
                         const Options& options) {
  add(program, "cpu_nothing_submitted", [&ranks, &options] {
    return measurement_of(with_nothing_submitted(ranks, options.idle_seconds), 0.1);
  });
  if (world.ranks_of_node(node_of(world, ranks.size() - 1)).size() > 1) {
    add(program, "cpu_waiting_on_own_node", [&world, &ranks, &options] {
      return measurement_of(waiting_for_sleeper(world, ranks, options.wait_seconds, false), 0.1);
    });
  }
  if (world.cross_size() > 1) {
    add(program, "cpu_waiting_on_another_node", [&world, &ranks, &options] {
      return measurement_of(waiting_for_sleeper(world, ranks, options.wait_seconds, true), 1.0);
    });
  }
}

// The cost of the record to a collective: the difference of the medians, beside their own spread.
Measurement measurement_of(const RecordCost& cost, const std::vector<double>& times,
                           double bar_ns) {
  const double on = quantile(times, 0.5);
  const double off = quantile(cost.off, 0.5);
  Measurement result;
  result.seconds = on;
  result.iterations = static_cast<std::int64_t>(times.size());
  result.counters = {{"off_ns", off * 1e9},
                     {"cost_ns", (on - off) * 1e9},
                     {"least_cost_ns", (quantile(times, 0.0) - quantile(cost.off, 0.0)) * 1e9},
                     {"spread_ns", (quantile(cost.off, 0.75) - quantile(cost.off, 0.25)) * 1e9},
                     {"wrong", cost.wrong}};
  return judged(std::move(result), "bar_ns", bar_ns, (on - off) * 1e9);
}

void add_record(Program& program, hora::Context& world, const Ranks& ranks) {
  const int iterations = std::max(2000, static_cast<int>(program.min_time() * 20000.0));
  const int rounds = std::clamp(static_cast<int>(program.min_time() * 40.0), 2, 20);
  program.add_whole({"negotiation/flight_record", "negotiation/flight_record_watched"},
                    benchmark::kMicrosecond, [&world, &ranks, iterations, rounds] {
                      const RecordCost cost = flight_record(world, ranks, iterations, rounds);
                      return std::vector{measurement_of(cost, cost.on, 300.0),
                                         measurement_of(cost, cost.watched, 1000.0)};
                    });
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  using namespace bench;
  hora::Context world = hora::init(argc, argv);
  const Ranks ranks;
  Program program(ranks);
  Options options;
  CLI::App app("Times negotiation, and the processor time of ranks that wait");
  app.add_option("--idle-seconds", options.idle_seconds, "with nothing submitted")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--wait-seconds", options.wait_seconds, "that a rank lets the others wait")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  if (const auto code = program.parse(app, argc, argv)) return *code;

  program.describe("ranks", std::to_string(world.size()));
  program.describe("nodes", std::to_string(world.cross_size()));
  add_latencies(program, world, ranks);
  add_processor_times(program, world, ranks, options);
  add_record(program, world, ranks);
  return program.run();
}
