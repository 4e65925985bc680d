// How soon every rank gets the error where ranks disagree.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

using Clock = std::chrono::steady_clock;  // one for all processes of a host

constexpr int kMismatches = 200;
/// Promised, of 99 in 100.
constexpr std::chrono::milliseconds kLimit{100};

std::int64_t nanoseconds_now() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

using Latency = Conformance;

TEST_F(Latency, FromTheLastSubmissionToTheException) {
  std::vector<std::int64_t> submitted, elapsed;
  std::vector<float> values(17, 1.0F);
  for (int i = 0; i < kMismatches; ++i) {
    const std::string name = "x" + std::to_string(i / 2);  // half of them are in the cache
    if (i % 2 == 1) allreduce(world(), view(values.data(), 17), {.name = name});
    const Context& now = world();
    submitted.push_back(nanoseconds_now());
    expect_error(ErrorCode::mismatch, [&] {
      allreduce(now, view(values.data(), rank() == i % size() ? 16 : 17), {.name = name});
    });
    elapsed.push_back(nanoseconds_now());
  }
  allreduce(context(), view(submitted), {.name = "last", .op = ReduceOp::max});
  std::ranges::transform(elapsed, submitted, elapsed.begin(), std::minus());
  auto sorted = elements_of<std::int64_t>(allgather(context(), view(elapsed), {.name = "all"}));
  std::ranges::sort(sorted);
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
