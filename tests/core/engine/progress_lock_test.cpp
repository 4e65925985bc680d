// While one thread waits for a result, and makes progress, the others do what does not wait for
// peers.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/progress.h"
#include "tests/core/engine/engine_fixture.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::bytes;
using test::floats;
using test::on_all_ranks;
using test::ThreadWorld;
using test::ThreadWorldOptions;

/// Longer than anything here lasts: what takes as long was blocked.
constexpr auto kBlocked = 20s;

/// A device with memory alone. Thread rule: as DevicePort; its calls must not overlap.
class FakePort final : public DevicePort {
 public:
  BegunOnDevice begin(const std::byte*, void*, std::optional<void*>) override { return {}; }
  std::byte* allocate(std::size_t bytes) override {
    const Alone alone(*this);
    return new std::byte[bytes];
  }
  void release(std::byte* data, const WithEngineLock& locked) noexcept override {
    locked([&] {
      const Alone alone(*this);
      delete[] data;
    });
  }
  bool check() override {
    const Alone alone(*this);
    ++rounds_;
    return false;
  }
  void abort() noexcept override {}
  bool overlapped() const { return overlapped_; }
  /// Of the thread that makes progress.
  int rounds() const { return rounds_; }

 private:
  struct Alone {
    explicit Alone(FakePort& device) : port(device) {
      if (port.busy_.exchange(true)) port.overlapped_ = true;
    }
    ~Alone() { port.busy_.store(false); }
    FakePort& port;
  };
  std::atomic<int> rounds_{0};
  std::atomic<bool> busy_{false};
  std::atomic<bool> overlapped_{false};
};

struct Layout {
  std::string name;
  std::vector<int> nodes;
  bool engine_threads;
  std::chrono::microseconds spin;  ///< then the waiting thread sleeps
};

class WhileOneWaits : public testing::TestWithParam<Layout> {
 protected:
  WhileOneWaits() : world_(options(ports_)) {}
  ~WhileOneWaits() override {
    for (const FakePort& port : ports_) EXPECT_FALSE(port.overlapped());
  }

  /// Rank 0 waits for "a", which the others submit when `call` has returned on another thread of
  /// rank 0, or seems to be blocked.
  void expect_goes_on(const std::function<void(Engine&)>& call) {
    std::vector<float> values(4, 1.0F);
    Engine& engine = world_.engine(0);
    const auto submission = engine.submit("a", floats(4), bytes(values));
    std::jthread waiter([&] { engine.wait(*submission); });
    // Without engine threads the thread that makes a round is the waiting one.
    for (const int before = ports_[0].rounds(); ports_[0].rounds() == before;) {
      std::this_thread::yield();
    }
    auto returns = std::async(std::launch::async, [&] { call(engine); });
    EXPECT_EQ(returns.wait_for(kBlocked), std::future_status::ready)
        << "blocked by a thread that waits for peers";
    others_submit("a");
    waiter.join();
    returns.get();
    EXPECT_EQ(values[3], static_cast<float>(world_.size()));
  }
  void others_submit(const std::string& name) {
    on_all_ranks(world_, [&](int rank) {
      if (rank == 0) return;
      std::vector<float> values(4, 1.0F);
      world_.engine(rank).submit_and_wait(name, floats(4), bytes(values));
    });
  }

 private:
  static ThreadWorldOptions options(std::vector<FakePort>& ports) {
    ThreadWorldOptions result{.node_sizes = GetParam().nodes,
                              .settings = {},
                              .engine_threads = GetParam().engine_threads};
    result.settings.spin = GetParam().spin;
    result.device = [&ports](int rank, int, int) {
      return test::RankDevice{.port = &ports[static_cast<std::size_t>(rank)]};
    };
    return result;
  }

  std::vector<FakePort> ports_{2};
  ThreadWorld world_;
};

INSTANTIATE_TEST_SUITE_P(Layouts, WhileOneWaits,
                         testing::Values(Layout{"AsleepBesideItsEngine", {2}, true, 100us},
                                         Layout{"AsleepWithoutEngine", {2}, false, 100us},
                                         Layout{"AwakeBesideItsEngine", {2}, true, 10s},
                                         Layout{"AwakeWithoutEngine", {2}, false, 10s},
                                         Layout{"OnTwoNodesBesideItsEngine", {1, 1}, true, 100us},
                                         Layout{"OnTwoNodesWithoutEngine", {1, 1}, false, 100us}),
                         [](const auto& layout) { return layout.param.name; });

// Rank 0 waits for "a" while another of its threads makes a buffer and then waits for "b"; the
// others submit "b" first.
TEST_P(WhileOneWaits, AnotherThreadMakesABufferAndSubmits) {
  expect_goes_on([&](Engine& engine) {
    std::byte* const buffer = engine.allocate_on_device(64);
    std::vector<float> values(4, 1.0F);
    const auto submission = engine.submit("b", floats(4), bytes(values));
    others_submit("b");
    engine.wait(*submission);
    engine.release_on_device(buffer);
  });
}

TEST_P(WhileOneWaits, WhatDoesNotWaitForPeersReturns) {
  expect_goes_on([](Engine& engine) {
    for (int round = 0; round < 20; ++round) {
      std::byte* const buffer = engine.allocate_on_device(64);
      engine.progress();
      engine.release_on_device(buffer);
      (void)engine.statistics();
      (void)engine.ranks_of(kWorld);
      EXPECT_FALSE(engine.runs_on_device({.name = "a", .signature = floats(4)}, kWorld));
      std::vector<float> again(4, 1.0F);
      EXPECT_THROW(engine.submit("a", floats(4), bytes(again)), Error);
      // Time enough for the waiting thread to fall asleep, in some rounds.
      std::this_thread::sleep_for(std::chrono::microseconds(round * 20));
    }
  });
}

}  // namespace
}  // namespace hora::internal
