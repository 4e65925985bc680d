// Buffers on GPUs that become windows of NCCL's symmetric memory (HORA_NCCL_WINDOWS): which, when,
// the same on all ranks, and what else happens to memory in them. The fake NCCL refuses collectives
// in windows on some ranks alone, and windows that are not made and ended in one order.
//
// Random programs on buffers that become windows of NCCL's, against the sums that they have: whole
// and parts, memory that is none, several at once, ranks that join, buffers that ranks give back.
#include "tests/ops/nccl/gpu_windows.h"

#include <hora/error.h>

#include <optional>
#include <string>
#include <thread>

#include "core/api/results.h"
#include "core/base/log.h"
#include "ops/nccl/launches.h"
#include "tests/support/expect_error.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::GpuWorld;
using test::WindowBuffer;
using test::WindowRank;
using test::with_windows;
using testing::HasSubstr;
using testing::IsEmpty;

class GpuWindows : public testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(WindowRank&)>& body) {
    world_.on_all_ranks([&](int rank) {
      WindowRank own(world_, rank);
      body(own);
    });
  }
  void expect_count(const char* call, int count) const {
    for (int rank = 0; rank < GetParam(); ++rank) {
      EXPECT_EQ(gpu(rank).nccl_count(call), count) << call << " on rank " << rank;
    }
  }
  test::FakeGpu& gpu(int rank) const { return world_.gpu(rank); }
  void TearDown() override {
    EXPECT_THAT(world_.complaints(), IsEmpty());
    world_.end();
    EXPECT_THAT(world_.ranks_with_leftovers(), IsEmpty());
    EXPECT_THAT(world_.complaints(), IsEmpty());
  }

  mutable GpuWorld world_{with_windows(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Sizes, GpuWindows, testing::Values(2, 3, 4));

TEST_P(GpuWindows, ABufferBecomesOneOnceWithItsFirstCollective) {
  run([&](WindowRank& rank) {
    std::vector<WindowBuffer> buffers;
    for (std::size_t i = 0; i < 3; ++i) buffers.push_back(rank.buffer(1000 * (i + 1)));
    for (int round = 0; round < 4; ++round) {
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        rank.allreduce("x" + std::to_string(i), buffers[i].values(), 1000 * (i + 1));
      }
    }
    EXPECT_EQ(rank.gpu().live().windows, 3);
  });
  expect_count("comm_window_register", 3);
  expect_count("comm_window_deregister", 0);
}

TEST_P(GpuWindows, OtherMemoryDoesNot) {
  run([&](WindowRank& rank) {
    test::DeviceTensor plain(rank.gpu(), DataType::float32, std::vector<std::byte>(4000));
    plain.read();
    rank.allreduce("plain", reinterpret_cast<float*>(plain.data()), 1000);
    const WindowBuffer buffer = rank.buffer(1000);
    rank.allreduce("a part that begins later", buffer.values() + 10, 100);
    const WindowBuffer of_other_length = rank.buffer(1000 + static_cast<std::size_t>(rank.rank()));
    rank.allreduce("of other lengths", of_other_length.values(), 1000);
  });
  expect_count("comm_window_register", 0);
}

TEST_P(GpuWindows, OneThatIsGivenBackEndsWithALaterCollectiveInAnother) {
  run([&](WindowRank& rank) {
    {
      const WindowBuffer first = rank.buffer(1000);
      const WindowBuffer second = rank.buffer(2000);
      rank.allreduce("x", first.values(), 1000);
      rank.allreduce("y", second.values(), 2000);
    }
    EXPECT_EQ(rank.gpu().nccl_count("mem_free"), 0);
    const WindowBuffer third = rank.buffer(1500);
    for (int round = 0; round < 3; ++round) rank.allreduce("x", third.values(), 1500);
    EXPECT_EQ(rank.gpu().live().windows, 1);
    EXPECT_EQ(rank.gpu().nccl_count("mem_free"), 2);
  });
}

TEST_P(GpuWindows, OneStaysUntilEveryRankHasGivenItBack) {
  run([&](WindowRank& rank) {
    std::optional<WindowBuffer> first = rank.buffer(1000);
    const WindowBuffer second = rank.buffer(2000);
    rank.allreduce("x", first->values(), 1000);
    for (int round = 0; round < 4; ++round) {
      if (round == rank.rank() && round > 0) first.reset();
      rank.allreduce("y", second.values(), 2000);
      EXPECT_EQ(rank.gpu().live().windows, 2);
    }
    first.reset();  // rank 0's, the last
    rank.allreduce("z", second.values(), 2000);
    rank.allreduce("z", second.values(), 2000);
    EXPECT_EQ(rank.gpu().live().windows, 1);
  });
}

TEST_P(GpuWindows, MemoryThatIsNotInOneEverywhereTravelsApart) {
  run([&](WindowRank& rank) {
    const WindowBuffer buffer = rank.buffer(1000);
    const WindowBuffer other = rank.buffer(1000);
    test::DeviceTensor plain(rank.gpu(), DataType::float32, std::vector<std::byte>(4000));
    plain.read();
    rank.allreduce("x", buffer.values(), 1000);
    rank.allreduce("y", other.values(), 1000);
    const bool odd = rank.rank() == 1;
    rank.allreduce("a part", buffer.values() + 100, 200);
    rank.allreduce("plain on one rank",
                   odd ? reinterpret_cast<float*>(plain.data()) : buffer.values(), 1000);
    rank.allreduce("another on one rank", odd ? other.values() : buffer.values(), 1000);
    rank.allreduce("the same everywhere", other.values(), 1000);
    EXPECT_EQ(rank.gpu().live().windows, 2);
  });
}

TEST_P(GpuWindows, ABufferInTwoCollectivesAtOnceProposesItselfInOne) {
  run([&](WindowRank& rank) {
    const WindowBuffer buffer = rank.buffer(1000);
    const float own = static_cast<float>(rank.rank() + 1);
    for (int round = 0; round < 5; ++round) {
      std::fill_n(buffer.values(), 1000, own);
      const auto first = rank.submit("x", buffer.values(), 500);
      const auto second = rank.submit("y", buffer.values() + 500, 500);
      const auto third = rank.submit("z", buffer.values(), 1);
      for (const auto& submission : {first, second, third}) rank.engine().wait(*submission);
      rank.synchronize();
    }
    rank.allreduce("x", buffer.values(), 500);
    EXPECT_EQ(rank.gpu().live().windows, 1);
  });
}

TEST_P(GpuWindows, WithoutARankThatHasJoinedOnesMemoryTravelsApart) {
  run([&](WindowRank& rank) {
    const WindowBuffer buffer = rank.buffer(1000);
    const WindowBuffer later = rank.buffer(500);
    rank.allreduce("x", buffer.values(), 1000);
    const int ranks = rank.world().size();
    if (rank.rank() > 0) {
      for (const WindowBuffer* each : {&buffer, &later}) {
        const std::size_t count = each == &later ? 500 : 1000;
        std::fill_n(each->values(), count, static_cast<float>(rank.rank() + 1));
        rank.engine().wait(*rank.submit(each == &later ? "y" : "x", each->values(), count));
        rank.synchronize();
        EXPECT_THAT(std::vector(each->values(), each->values() + count),
                    testing::Each(static_cast<float>(ranks * (ranks + 1)) / 2 - 1));
      }
    }
    rank.engine().join(kWorld);
    EXPECT_EQ(rank.gpu().live().windows, 1);
    rank.allreduce("y", later.values(), 500);
    rank.allreduce("x", buffer.values(), 1000);
    EXPECT_EQ(rank.gpu().live().windows, 2);
  });
}

TEST_P(GpuWindows, ASetOfItsOwnUsesBuffersWithoutWindows) {
  run([&](WindowRank& rank) {
    std::vector<int> all(static_cast<std::size_t>(rank.world().size()));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
    const ProcessSet set = rank.engine().add_set(all);
    const WindowBuffer buffer = rank.buffer(1000);
    const WindowBuffer second = rank.buffer(1000);
    rank.allreduce("x", second.values(), 1000, set);
    EXPECT_EQ(rank.gpu().live().windows, 0);
    for (int round = 0; round < 5; ++round) {
      rank.allreduce("x", buffer.values(), 1000);
      rank.allreduce("x", buffer.values(), 1000, set);
      rank.allreduce("y", second.values(), 1000);
    }
    EXPECT_EQ(rank.gpu().live().windows, 2);
    rank.engine().remove_set(set);
  });
}

TEST_P(GpuWindows, AnAverageThereIsASumOfScaledValues) {
  run([&](WindowRank& rank) {
    const WindowBuffer buffer = rank.buffer(1000);
    const auto ranks = static_cast<float>(rank.world().size());
    const auto average = [&](std::size_t offset, std::size_t count, double prescale) {
      const int copies = rank.gpu().count("batched_copy");
      std::fill_n(buffer.values() + offset, count, static_cast<float>(8 * (rank.rank() + 1)));
      Signature signature = WindowRank::signature(count);
      signature.op = ReduceOp::average;
      signature.prescale = prescale;
      auto* const data = reinterpret_cast<std::byte*>(buffer.values() + offset);
      rank.engine().submit_and_wait("a" + std::to_string(count), signature, data, rank.stream());
      rank.synchronize();
      EXPECT_THAT(std::vector(buffer.values() + offset, buffer.values() + offset + count),
                  testing::Each(testing::FloatEq(static_cast<float>(prescale) * 4 * (ranks + 1))));
      return rank.gpu().count("batched_copy") - copies;
    };
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(average(0, 1000, 1.0), 1) << "before NCCL";
      EXPECT_EQ(average(0, 500, 0.25), 1) << "with the other scale";
      EXPECT_EQ(average(100, 300, 1.0), 2) << "apart, NCCL's own: there and back";
    }
  });
}

TEST_P(GpuWindows, TheSteadyStateNeverSynchronises) {
  run([&](WindowRank& rank) {
    const WindowBuffer buffer = rank.buffer(1000);
    const auto calls = [&] {
      std::vector<int> counts;
      for (const char* call : {"device_synchronize", "event_synchronize", "stream_create",
                               "event_create", "malloc", "host_alloc"}) {
        counts.push_back(rank.gpu().count(call));
      }
      return counts;
    };
    for (int round = 0; round < 10; ++round) rank.allreduce("x", buffer.values(), 1000);
    const auto before = calls();
    for (int round = 0; round < 10; ++round) rank.allreduce("x", buffer.values(), 1000);
    EXPECT_EQ(calls(), before);
  });
}

/// Between windows, on one rank alone.
TEST_P(GpuWindows, AnExchangeFindsNone) {
  run([&](WindowRank& rank) {
    const auto ranks = static_cast<std::size_t>(rank.world().size());
    const WindowBuffer one = rank.buffer(100 * ranks);
    const WindowBuffer many = rank.buffer(100 * ranks);
    rank.allreduce("x", one.values(), 100 * ranks);
    rank.allreduce("y", many.values(), 100 * ranks);
    for (const auto kind : {OperationKind::allgather, OperationKind::reduce_scatter}) {
      const bool gathers = kind == OperationKind::allgather;
      const std::size_t given = gathers ? 100 : 100 * ranks;
      const std::size_t got = gathers ? 100 * ranks : 100;
      std::fill_n(one.values(), given, static_cast<float>(rank.rank() + 1));
      ResultForm form{.type = DataType::float32, .row = {}, .device = {DeviceKind::cuda, 0}};
      form.stream = rank.stream();
      if (rank.rank() == 0) {
        form.output = ResultOutput{reinterpret_cast<std::byte*>(many.values()), got * 4};
      }
      const auto result = std::make_shared<DeviceResult>(rank.world().heap(rank.rank()), form);
      Request request{gathers ? "g" : "s", WindowRank::signature(given, kind)};
      if (gathers) request.signature.shape = {kAnyExtent};
      request.data = reinterpret_cast<std::byte*>(one.values());
      request.stream = rank.stream();
      request.bytes = given * 4;
      request.rows = {static_cast<std::int64_t>(given)};
      request.result = result;
      rank.engine().wait(*rank.engine().submit(std::move(request)));
      result->collect();
      rank.synchronize();
      const auto* const values = reinterpret_cast<const float*>(result->data());
      const auto sum = static_cast<float>(ranks * (ranks + 1)) / 2;
      EXPECT_FLOAT_EQ(values[0], gathers ? 1 : sum);
      EXPECT_FLOAT_EQ(values[got - 1], gathers ? static_cast<float>(ranks) : sum);
      EXPECT_FLOAT_EQ(one.values()[0], static_cast<float>(rank.rank() + 1)) << "stays as it is";
    }
  });
}

TEST_P(GpuWindows, TheyEndBeforeTheCommunicatorIsClosed) {
  std::vector<WindowBuffer> buffers(static_cast<std::size_t>(GetParam()));
  run([&](WindowRank& rank) {
    WindowBuffer& own = buffers[static_cast<std::size_t>(rank.rank())];
    own = rank.buffer(1000);
    rank.allreduce("x", own.values(), 1000);
    {
      const WindowBuffer given_back = rank.buffer(500);
      rank.allreduce("y", given_back.values(), 500);
    }
    rank.engine().depart();
    rank.engine().stop();
    auto& device = static_cast<NcclDevice&>(rank.world().port(rank.rank()));
    device.close(std::chrono::steady_clock::now() + 20s);
    EXPECT_EQ(rank.gpu().live().windows, 0);
    EXPECT_EQ(rank.gpu().nccl_count("mem_free"), 1);
  });
  buffers.clear();
}

TEST(GpuWindowsOff, IsTheDefault) {
  EXPECT_FALSE(Settings{}.nccl_windows);
  test::GpuWorldOptions options = with_windows(2);
  options.settings.nccl_windows = false;
  GpuWorld world(options);
  world.on_all_ranks([&](int number) {
    const WindowRank rank(world, number);
    const WindowBuffer buffer = rank.buffer(1000);
    for (int round = 0; round < 3; ++round) rank.allreduce("x", buffer.values(), 1000);
    EXPECT_EQ(rank.gpu().nccl_count("comm_window_register"), 0);
  });
  EXPECT_THAT(world.complaints(), IsEmpty());
}

TEST(GpuWindowsOff, WhereNcclHasNone) {
  test::GpuWorldOptions options = with_windows(3);
  options.gpu.has_windows = false;
  testing::internal::CaptureStderr();
  GpuWorld world(options);
  log().flush();
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, HasSubstr("HORA_NCCL_WINDOWS=on has no effect"));
  EXPECT_EQ(std::ranges::count(lines, '\n'), 1) << "of one rank";
  world.on_all_ranks([&](int number) {
    const WindowRank rank(world, number);
    const WindowBuffer buffer = rank.buffer(1000);
    for (int round = 0; round < 3; ++round) rank.allreduce("x", buffer.values(), 1000);
  });
  EXPECT_THAT(world.complaints(), IsEmpty());
}

TEST(GpuWindowsOff, WithSeveralNodesOrOneRank) {
  for (const std::vector<int>& nodes : {std::vector{2, 1}, std::vector{1}}) {
    test::GpuWorldOptions options = with_windows(1);
    options.node_sizes = nodes;
    GpuWorld world(options);
    world.on_all_ranks([&](int number) {
      const WindowRank rank(world, number);
      const WindowBuffer buffer = rank.buffer(1000);
      for (int round = 0; round < 3; ++round) rank.allreduce("x", buffer.values(), 1000);
      EXPECT_EQ(rank.gpu().nccl_count("comm_window_register"), 0);
    });
    EXPECT_THAT(world.complaints(), IsEmpty());
  }
}

/// A call that fails on the last rank: at once, in the background, where the others wait in NCCL,
/// or as what has been given back ends.
class GpuWindowFault : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Calls, GpuWindowFault,
                         testing::Values("comm_window_register", "window_registration"));

TEST_P(GpuWindowFault, IsNamedAndEndsEveryRank) {
  test::GpuWorldOptions options = with_windows(3);
  options.settings.device_timeout = 400ms;
  options.settings.log_level = LogLevel::off;
  GpuWorld world(options);
  world.gpu(2).nccl_fail(GetParam(), 2, ncclSystemError);
  const auto begin = std::chrono::steady_clock::now();
  world.on_all_ranks([&](int number) {
    const WindowRank rank(world, number);
    const WindowBuffer first = rank.buffer(1000);
    const WindowBuffer second = rank.buffer(1000);
    rank.allreduce("x", first.values(), 1000);
    // The collective itself may end first, and its kernel never.
    const auto text =
        number == 2
            ? testing::Matcher<std::string>(AllOf(
                  HasSubstr("ncclCommWindowRegister (HORA_NCCL_WINDOWS)"), HasSubstr(" failed: ")))
            : testing::Matcher<std::string>(testing::_);
    test::expect_error(ErrorCode::transport, text,
                       [&] { rank.engine().wait(*rank.submit("y", second.values(), 1000)); });
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  EXPECT_EQ(world.gpu(0).nccl_count("mem_free"), 0) << "peers may still write there";
  EXPECT_THAT(world.complaints(), IsEmpty());
}

TEST(GpuWindowPeers, OneThatIsGoneDoesNotKeepTheOthersWaiting) {
  test::GpuWorldOptions options = with_windows(2);
  options.settings.device_timeout = 300ms;
  options.settings.log_level = LogLevel::off;
  GpuWorld world(options);
  world.gpu(1).nccl_fail("window_registration", 1, ncclInProgress);  // it never comes, nor fails
  world.on_all_ranks([&](int number) {
    const WindowRank rank(world, number);
    const WindowBuffer buffer = rank.buffer(1000);
    test::expect_error(ErrorCode::transport,
                       [&] { rank.engine().wait(*rank.submit("x", buffer.values(), 1000)); });
  });
  EXPECT_THAT(world.complaints(), IsEmpty());
}

constexpr std::size_t kCount = 300;
constexpr int kBuffers = 4;

/// One rank's view of a program that all of them draw alike.
class Program {
 public:
  Program(WindowRank& rank, std::uint64_t salt) : rank_(rank), random_(test::generator(salt)) {
    for (int i = 0; i < kBuffers; ++i) {
      buffers_.push_back(rank.buffer(kCount));
      plain_.push_back(std::make_unique<test::DeviceTensor>(
          rank.gpu(), DataType::float32, std::vector<std::byte>(kCount * sizeof(float))));
      plain_.back()->read();
    }
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      if (random_() % 8 == 0) replace();
      begin();
      finish();
    }
  }

 private:
  struct Expected {
    std::shared_ptr<Operation> submission;
    float* values;
    std::size_t count;
    float sum;
  };

  /// On one rank, some or all of them: the others do so later.
  void replace() {
    const std::uint64_t which = random_() % kBuffers;
    const std::uint64_t who = random_() % (static_cast<std::uint64_t>(rank_.world().size()) + 2);
    const bool all = who >= static_cast<std::uint64_t>(rank_.world().size());
    if (all || who == static_cast<std::uint64_t>(rank_.rank())) {
      buffers_[which] = rank_.buffer(kCount);
    }
  }

  void begin() {
    const std::uint64_t at_once = 1 + random_() % kBuffers;
    for (std::uint64_t i = 0; i < at_once; ++i) {
      const bool part = random_() % 5 == 0;
      const std::uint64_t odd = random_() % 20;  // that rank, if there is one, uses other memory
      const std::uint64_t value = random_() % 50;
      const std::size_t offset = part ? random_() % 100 : 0;
      const std::size_t count = part ? 1 + random_() % 100 : kCount;
      const bool is_odd = odd == static_cast<std::uint64_t>(rank_.rank());
      float* const begin =
          is_odd ? reinterpret_cast<float*>(plain_[i]->data()) : buffers_[i].values();
      float* const values = begin + offset;
      const auto ranks = static_cast<float>(rank_.world().size());
      std::fill_n(values, count, static_cast<float>(value) + static_cast<float>(rank_.rank()));
      const std::string name = "x" + std::to_string(i) + "_" + std::to_string(count);
      expected_.push_back({rank_.submit(name, values, count), values, count,
                           ranks * static_cast<float>(value) + ranks * (ranks - 1) / 2});
    }
  }

  void finish() {
    for (const Expected& each : expected_) rank_.engine().wait(*each.submission);
    rank_.synchronize();
    for (const Expected& each : expected_) {
      EXPECT_THAT(std::vector(each.values, each.values + each.count), testing::Each(each.sum))
          << "rank " << rank_.rank();
    }
    expected_.clear();
  }

  WindowRank& rank_;
  std::mt19937_64 random_;
  std::vector<WindowBuffer> buffers_;
  std::vector<std::unique_ptr<test::DeviceTensor>> plain_;
  std::vector<Expected> expected_;
};

TEST(GpuWindowPrograms, GiveTheSumsOfAllRanks) {
  auto random = test::generator();
  for (int run = 0; run < 20; ++run) {
    test::GpuWorldOptions options = test::with_windows(2 + static_cast<int>(random() % 3));
    options.settings.fusion_threshold = random() % 2 == 0 ? 0 : std::size_t{1} << 20;
    const std::uint64_t salt = random();
    test::GpuWorld world(options);
    int windows = 0;
    world.on_all_ranks([&](int number) {
      WindowRank rank(world, number);
      Program(rank, salt).run(30);
      if (number == 0) windows = rank.gpu().nccl_count("comm_window_register");
    });
    EXPECT_GT(windows, 0);
    for (int rank = 1; rank < world.size(); ++rank) {
      EXPECT_EQ(world.gpu(rank).nccl_count("comm_window_register"), windows);
    }
    EXPECT_THAT(world.complaints(), testing::IsEmpty());
    world.end();
    EXPECT_THAT(world.ranks_with_leftovers(), testing::IsEmpty());
    EXPECT_THAT(world.complaints(), testing::IsEmpty());
  }
}

}  // namespace

}  // namespace hora::internal
