#include "bench/negotiation/processor_time.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

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

ProcessorTime most_of(const Ranks& ranks, const ProcessorTime& mine) {
  return {ranks.max(mine.seconds), -ranks.max(-mine.elapsed_seconds), ranks.max(mine.wrong)};
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
  ProcessorTime mine = meter.read();
  if (!counts) mine.seconds = 0.0;
  mine.wrong = value != static_cast<float>(ranks.size()) ? 1.0 : 0.0;
  return most_of(ranks, mine);
}

}  // namespace bench
