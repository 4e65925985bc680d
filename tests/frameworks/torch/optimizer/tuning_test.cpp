// Forms of buckets that are tried in the first steps of a training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"
#include "tests/support/read_file.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr int kSteps = 33;  // 30 are tried, at most

Context init_with(const std::string& tuning) {
  Settings settings;
  settings.tuning = tuning;
  return init({.settings = settings});
}

/// Parameters after `steps` steps, and the collectives of the last one.
struct Trained {
  std::vector<torch::Tensor> parameters;
  std::uint64_t operations = 0;
};
Trained train(const Context& world, int steps = kSteps, Compression compression = {}) {
  Training training(world, {.compression = compression});
  std::uint64_t before = 0;
  for (int step = 0; step < steps; ++step) {
    before = world.statistics().operations;
    training.step(my_batch(world, step));
  }
  barrier(world);
  return {training.weights(), world.statistics().operations - before};
}

class Tuning : public testing::Test {
 protected:
  ~Tuning() override { std::filesystem::remove(file_); }

  /// The same on all ranks: one process has started them.
  const std::string file_ =
      testing::TempDir() + "/hora-tuning-" + std::to_string(getppid()) + ".json";
};

/// 14 MiB of parameters after as many steps as are tried, in several buckets of most sizes.
std::vector<torch::Tensor> train_deep_network(const Context& world) {
  constexpr std::int64_t width = 512;
  torch::manual_seed(test::seed());
  torch::nn::Sequential network;
  for (int layer = 0; layer < 14; ++layer) {
    network->push_back(torch::nn::Linear(width, width));
    network->push_back(torch::nn::Tanh());
  }
  Training training(world, {}, make_sgd, network);
  for (int step = 0; step < kSteps; ++step) {
    torch::manual_seed(test::seed() + static_cast<std::uint64_t>(100 * step + world.rank()));
    training.optimizer.zero_grad();
    network->forward(torch::randn({4, width})).pow(2).mean().backward();
    training.optimizer.step();
  }
  return training.weights();
}

TEST_F(Tuning, HasTheBitsOfATrainingWithoutIt) {
  std::vector<torch::Tensor> plain;
  {
    const Context world = init();
    plain = train_deep_network(world);
  }
  const Context world = init_with("on");
  expect_same_bits(train_deep_network(world), plain);
}

TEST_F(Tuning, StoresWhatItFindsAndTakesItNextTime) {
  std::uint64_t operations = 0;
  {
    const Context world = init_with(file_);
    operations = train(world).operations;
    if (world.rank() == 0) {
      auto file = nlohmann::json::parse(read_file(file_));
      auto& sizes = file["bucket_sizes"];
      EXPECT_EQ(sizes.size(), 1U);
      for (auto& [key, size] : sizes.items()) {
        EXPECT_THAT(key, AllOf(HasSubstr("parameters of"),
                               HasSubstr(std::to_string(world.size()) + " ranks")));
        EXPECT_THAT(size.get<std::size_t>() >> 20U, AnyOf(1, 4, 16, 6, 25, 100));
        size = 256;
      }
      std::ofstream(file_) << file;
    }
    barrier(world);
  }
  const Context world = init_with(file_);
  const Trained found = train(world, 2);
  if (world.size() > 1) {
    EXPECT_GT(found.operations, operations);
  }
  barrier(world);  // before a rank removes the file
}

// Whether a training is compressed is then a part of what is found.
TEST_F(Tuning, LeavesOutCompressionWhereItsFileSaysSo) {
  Trained plain;
  Trained compressed;
  {
    const Context world = init();
    plain = train(world);
    compressed = train(world, kSteps, Compression::bfloat16);
  }
  const auto stored = [&](const Context& world, bool is_compressed) {
    if (world.rank() != 0) return;
    auto file = nlohmann::json::parse(read_file(file_));
    EXPECT_EQ(file["compressed"].size(), 1U);
    for (auto& [key, value] : file["compressed"].items()) {
      EXPECT_THAT(key, HasSubstr("compression bfloat16"));
      EXPECT_TRUE(value.is_boolean());
      value = is_compressed;
    }
    std::ofstream(file_) << file;
  };
  const Context world = init_with(file_);
  train(world, kSteps, Compression::bfloat16);  // finds something
  for (const bool is_compressed : {true, false}) {
    stored(world, is_compressed);
    barrier(world);
    const Trained again = train(world, kSteps, Compression::bfloat16);
    expect_same_bits(again.parameters, (is_compressed ? compressed : plain).parameters);
    barrier(world);
  }
}

TEST_F(Tuning, AFileOfSomebodyElseIsRefusedByEveryRank) {
  Context world = init_with(file_);
  if (world.rank() == 0) std::ofstream(file_) << "precious";
  barrier(world);
  expect_error(ErrorCode::invalid_argument, AllOf(HasSubstr(file_), HasSubstr("no JSON object")),
               [&] { Training training(world); });
  barrier(world);
  if (world.rank() == 0) {
    EXPECT_EQ(read_file(file_), "precious");
  }
  barrier(world);
}

TEST_F(Tuning, AFileThatCannotBeWrittenIsAWarning) {
  const Context world = init_with(testing::TempDir() + "/no such folder/sizes.json");
  EXPECT_FALSE(train(world).parameters.empty());
}

TEST_F(Tuning, EndsWhereARankJoins) {
  const Context world = init_with("on");
  const bool is_first = world.rank() == 0;
  for (const int steps : {2, 7, 40}) {
    Training training(world);
    const Batch batch = my_batch(world, 0);
    for (int step = 0; step < (is_first ? steps / 2 : steps); ++step) training.step(batch);
    training.optimizer.join();
    for (int step = 0; step < 3; ++step) training.step(batch);
    expect_alike(world, training.network);
  }
}

TEST_F(Tuning, LeavesSizesThatTheProgramHasChosen) {
  const Context world = init_with(file_);
  Training training(world, {.bucket_bytes = 512});
  for (int step = 0; step < kSteps; ++step) training.step(my_batch(world, step));
  EXPECT_FALSE(std::filesystem::exists(file_));
}

}  // namespace
}  // namespace hora::internal::test
