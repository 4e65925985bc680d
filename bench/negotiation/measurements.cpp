#include "bench/negotiation/measurements.h"

#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

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

}  // namespace

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

namespace {

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

}  // namespace

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

namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
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
    return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
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

bool on_node_of(const hora::Context& world, int rank) {
  const auto& neighbours = world.ranks_of_node(world.cross_rank());
  return std::find(neighbours.begin(), neighbours.end(), rank) != neighbours.end();
}

}  // namespace

ProcessorTime with_nothing_submitted(const Ranks& ranks, double seconds) {
  settle(ranks);
  const Meter meter;
  sleep(seconds);
  return most_of(ranks, meter.read());
}

ProcessorTime waiting_for_sleeper(const hora::Context& world, const Ranks& ranks, double seconds,
                                  bool another_node) {
  const int sleeper = ranks.size() - 1;
  const bool sleeps = ranks.rank() == sleeper;
  const bool counts = !sleeps && on_node_of(world, sleeper) != another_node;
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

}  // namespace bench
