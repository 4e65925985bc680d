#include <gtest/gtest.h>

#include "ops/cuda/device_trace.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;

TEST(DeviceClock, AStampIsNeverEarlierThanTheCall) {
  EXPECT_EQ(host_time(2000us, 1000us, 900us), 2000us) << "the former estimate was 100 us early";
}

TEST(DeviceClock, ASlowCallShiftsTheTimelineByNoMoreThanClocksDrift) {
  // The device came to the reference 5 ms after the call.
  EXPECT_EQ(host_time(2s, 1s, 1s + 5ms), 2s + 5ms - 100'500ns);
}

TEST(DeviceClock, FollowsADeviceWhoseClockIsFast) {
  // 50 ppm fast, latency 10 us: the estimate stays within the latency of the truth.
  std::chrono::nanoseconds host = 0ns;
  for (int second = 1; second <= 1000; ++second) {
    const std::chrono::nanoseconds stamped = second * 1s + 10us;
    const std::chrono::nanoseconds distance = 1s + 50us;
    host = host_time(second * 1s, host, distance);
    EXPECT_LE(host, stamped);
    EXPECT_GE(host, stamped - 10us);
  }
}

TEST(DeviceClock, FollowsADeviceWhoseClockIsSlow) {
  std::chrono::nanoseconds host = 0ns;
  for (int second = 1; second <= 1000; ++second) {
    host = host_time(second * 1s, host, 1s - 50us);
    EXPECT_EQ(host, second * 1s);
  }
}

}  // namespace
}  // namespace hora::internal
