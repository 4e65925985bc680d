// How soon every rank gets the error where ranks disagree.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

using Clock = std::chrono::steady_clock;  // one for all processes of a host

constexpr int kMismatches = 200;
/// Promised, of 99 in 100.
constexpr std::chrono::milliseconds kLimit{100};

std::int64_t time_now() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

class Latency : public Conformance {
 protected:
  struct Moments {
    std::vector<std::int64_t> submitted;
    std::vector<std::int64_t> thrown;
  };

  /// Half of them under names that are in the cache.
  Moments cause_mismatches() {
    Moments moments;
    std::vector<float> values(17, 1.0F);
    for (int i = 0; i < kMismatches; ++i) {
      const std::string name = "x" + std::to_string(i / 2);
      if (i % 2 == 1) allreduce(world(), view(values.data(), 17), {.name = name});
      const Context& now = world();
      moments.submitted.push_back(time_now());
      expect_error(ErrorCode::mismatch, [&] {
        allreduce(now, view(values.data(), rank() == i % size() ? 16 : 17), {.name = name});
      });
      moments.thrown.push_back(time_now());
    }
    return moments;
  }

  /// All mismatches on all ranks: from the last rank's submission to the exception, ascending.
  std::vector<std::int64_t> latencies(Moments moments) {
    allreduce(context(), view(moments.submitted.data(), kMismatches),
              {.name = "last", .op = ReduceOp::max});
    for (int i = 0; i < kMismatches; ++i) {
      const auto at = static_cast<std::size_t>(i);
      moments.thrown[at] -= moments.submitted[at];
    }
    auto all = elements_of<std::int64_t>(
        allgather(context(), view(moments.thrown.data(), kMismatches), {.name = "all"}));
    std::sort(all.begin(), all.end());
    return all;
  }
};

TEST_F(Latency, FromTheLastSubmissionToTheException) {
  const auto sorted = latencies(cause_mismatches());
  const auto percentile = [&](std::size_t percent) {
    return std::chrono::nanoseconds(sorted[(sorted.size() - 1) * percent / 100]);
  };
  using Milliseconds = std::chrono::duration<double, std::milli>;
  if (rank() == 0) {
    std::printf(
        "Mismatch on %d ranks, last submission to exception: p50 %.3f ms, p99 %.3f ms, "
        "longest %.3f ms\n",
        size(), Milliseconds(percentile(50)).count(), Milliseconds(percentile(99)).count(),
        Milliseconds(percentile(100)).count());
  }
  EXPECT_GT(percentile(0).count(), 0) << "no rank may be told before the last one has submitted";
  EXPECT_LE(percentile(99), kLimit);
}

}  // namespace
}  // namespace hora::internal::test
