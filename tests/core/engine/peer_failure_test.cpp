// A device's library says of a peer on another node that it has failed, sooner than that node can
// say why: the cause holds, once it is known.
#include <gtest/gtest.h>
#include <hora/error.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/interfaces.h"
#include "tests/core/engine/engine_fixture.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::bytes;
using test::floats;
using test::on_all_ranks;
using test::ThreadWorld;
using test::ThreadWorldOptions;

constexpr auto kEndsWithin = 20s;

/// A device without memory, which fails when it is told to.
class FailingPort final : public DevicePort {
 public:
  enum class Failure { none, of_a_peer, own };
  void fail(Failure failure) { failure_ = failure; }

  BegunOnDevice begin(const std::byte*, void*, std::optional<void*>) override { return {}; }
  std::byte* allocate(std::size_t) override { return nullptr; }
  void release(std::byte*, const WithEngineLock&) noexcept override {}
  bool check() override {
    switch (failure_.load()) {
      case Failure::of_a_peer:
        throw PeerFailure(ErrorCode::transport, "a peer is gone");
      case Failure::own:
        throw Error(ErrorCode::transport, "the cause");
      case Failure::none:
        break;
    }
    return true;
  }
  void abort() noexcept override {}

 private:
  std::atomic<Failure> failure_{Failure::none};
};

using Failure = FailingPort::Failure;

class PeerFailures : public testing::TestWithParam<std::vector<int>> {
 protected:
  PeerFailures() : ports_(16) {}

  ThreadWorldOptions options(bool spans_nodes) {
    ThreadWorldOptions result{.node_sizes = GetParam(), .settings = {}};
    result.settings.log_level = LogLevel::off;
    result.device = [this, spans_nodes](int rank, int, int) {
      return test::RankDevice{.port = &port(rank), .spans_nodes = spans_nodes};
    };
    return result;
  }
  FailingPort& port(int rank) { return ports_[static_cast<std::size_t>(rank)]; }

  /// The error of each rank's collectives, which go on until there is one.
  static std::vector<std::string> errors(ThreadWorld& world) {
    std::vector<std::string> texts(static_cast<std::size_t>(world.size()));
    const auto end = std::chrono::steady_clock::now() + kEndsWithin;
    on_all_ranks(world, [&](int rank) {
      std::vector<float> values(4, 1.0F);
      try {
        while (std::chrono::steady_clock::now() < end) {
          world.engine(rank).submit_and_wait("x", floats(4), bytes(values));
        }
      } catch (const Error& error) {
        texts[static_cast<std::size_t>(rank)] = error.what();
      }
    });
    return texts;
  }

  std::vector<FailingPort> ports_;
};

TEST_P(PeerFailures, ACauseThatIsFoundLaterHolds) {
  ThreadWorld world(options(true));
  const int culprit = world.size() - 1;
  for (int rank = 0; rank < culprit; ++rank) port(rank).fail(Failure::of_a_peer);
  std::jthread later([&] {
    std::this_thread::sleep_for(300ms);
    port(culprit).fail(Failure::own);
  });
  for (const std::string& text : errors(world)) EXPECT_EQ(text, "the cause");
}

TEST_P(PeerFailures, WithoutACauseItIsReportedOnce) {
  ThreadWorld world(options(true));
  for (int rank = 0; rank < world.size(); ++rank) port(rank).fail(Failure::of_a_peer);
  for (const std::string& text : errors(world)) EXPECT_EQ(text, "a peer is gone");
}

TEST_P(PeerFailures, IsTheCauseAtOnceWhereDevicesAreConnectedInNodes) {
  ThreadWorld world(options(false));
  port(0).fail(Failure::of_a_peer);
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& text : errors(world)) EXPECT_EQ(text, "a peer is gone");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s) << "the wait for a cause";
}

INSTANTIATE_TEST_SUITE_P(Layouts, PeerFailures,
                         testing::Values(std::vector{1, 1}, std::vector{2, 2},
                                         std::vector{1, 1, 1}));

}  // namespace
}  // namespace hora::internal
