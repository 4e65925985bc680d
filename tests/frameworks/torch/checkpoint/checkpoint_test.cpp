// Loads where files are damaged, missing or old, on this node or another; errors; resumed
// trainings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/objects.h>
#include <hora/torch.h>
#include <mpi.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "core/base/process.h"
#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/logged_lines.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct TrainedOptions {
  DistributedOptimizerOptions optimizer = {};
  MakeOptimizer make = make_sgd;
  bool scaled = false;  ///< by a GradScaler
};

/// Each step draws its batch from the rank's random state, which only a checkpoint can continue.
struct Trained : Training {
  Trained(const Context& world, const TrainedOptions& options, std::uint64_t seed_of_weights)
      : Training(world, options.optimizer, options.make, torch::kFloat, seed_of_weights),
        average(copies_of(network->parameters())) {
    if (options.scaled) {
      scaler.emplace(optimizer, GradScalerOptions{.initial_scale = 1024.0, .growth_interval = 3});
    }
    network->register_buffer("steps", torch::zeros({1}));
    torch::manual_seed(seed_of_weights + 100 + static_cast<std::uint64_t>(world.rank()));
  }

  void add_to(Checkpoint& checkpoint, const TrainedOptions& options) {
    checkpoint.add_weights(*network);
    checkpoint.add_optimizer("optimizer", optimizer);
    if (scaler) checkpoint.add_scaler("scaler", *scaler);
    if (options.optimizer.hook) checkpoint.add_hook("hook", *options.optimizer.hook);
    Checkpoint::Tensors averages;
    for (std::size_t i = 0; i < average.size(); ++i) {
      averages.insert(std::to_string(i), average[i]);
    }
    checkpoint.add_tensors("average", averages);
    checkpoint.add_number("steps", steps);
    checkpoint.add_number("loss", loss, CheckpointScope::each_rank);
    checkpoint.add_text(
        "sampler", [this] { return sampler; }, [this](const std::string& text) { sampler = text; });
    checkpoint.add_random_state();
  }

  void step(const Batch& batch) {
    optimizer.zero_grad();
    torch::Tensor of_batch = loss_of(network, batch);
    loss = of_batch.item<double>();
    if (scaler) {
      scaler->scale(of_batch).backward();
      scaler->step();
      scaler->update();
    } else {
      of_batch.backward();
      optimizer.step();
    }
    const torch::NoGradGuard no_grad;
    const auto parameters = network->parameters();
    for (std::size_t i = 0; i < average.size(); ++i) average[i].lerp_(parameters[i], 0.1);
    ++steps;
    network->buffers().back().add_(1);
    sampler = "after " + std::to_string(steps);
  }
  void step() { step({torch::randn({2, 3, 6, 6}), torch::randint(5, {2}, torch::kLong)}); }

  /// All that the steps have changed.
  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> all = copies_of(network->parameters());
    for (const auto& tensor : average) all.push_back(tensor.clone());
    all.push_back(network->buffers().back().clone());
    all.push_back(torch::tensor(loss, torch::kDouble));
    all.push_back(torch::tensor(steps));
    if (scaler) all.push_back(torch::tensor(scaler->current_scale(), torch::kDouble));
    return all;
  }

  std::optional<GradScaler> scaler;
  std::vector<torch::Tensor> average;
  std::int64_t steps = 0;
  double loss = 0.0;
  std::string sampler;
};

/// Sets the variables that `horarun --elastic` gives to ranks.
class AsElastic {
 public:
  explicit AsElastic(const std::string& commits) {
    ::setenv(kCommitsVariable, commits.c_str(), 1);
    begin(1);
  }
  ~AsElastic() {
    ::unsetenv(kCommitsVariable);
    ::unsetenv(kGenerationVariable);
  }
  void begin(int generation) {
    ::setenv(kGenerationVariable, std::to_string(generation).c_str(), 1);
  }
};

class CheckpointTest : public testing::Test {
 protected:
  /// A checkpoint of `number_` and a part of each rank alone.
  Checkpoint checkpoint_in(const std::string& folder, bool per_node = false,
                           CheckpointScope scope = CheckpointScope::each_rank) {
    Checkpoint checkpoint(world_, {.folder = folder, .per_node = per_node});
    checkpoint.add_number("number", number_);
    checkpoint.add_number("own", own_, scope);
    return checkpoint;
  }
  void save(Checkpoint& checkpoint, std::int64_t step, bool best = false) {
    number_ = 10 * step;
    own_ = 100 * step + world_.rank();
    checkpoint.save({.step = step}, {.best = best});
    number_ = own_ = -1;  // what is written is a copy
  }
  void save_two(Checkpoint& checkpoint) {
    for (const std::int64_t step : {1, 2}) save(checkpoint, step);
    checkpoint.wait();
  }
  void expect_loaded(Checkpoint& checkpoint, std::int64_t step,
                     const CheckpointLoadOptions& options = {}) {
    number_ = own_ = -1;
    EXPECT_EQ(checkpoint.load(options), CheckpointPosition{.step = step});
    EXPECT_EQ(number_, 10 * step);
    EXPECT_EQ(own_, 100 * step + world_.rank());
  }
  /// By rank 0; other ranks wait.
  void on_rank_0(const std::function<void()>& change) {
    barrier(world_);
    if (world_.rank() == 0) change();
    barrier(world_);
  }
  static void damage(const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  }

  const Context world_ = init();
  const SharedFolder folder_{world_};
  std::int64_t number_ = -1;
  std::int64_t own_ = -1;
};

TEST_F(CheckpointTest, LastPreviousAndBestAreLoadedAndNoneIsNoError) {
  Checkpoint none = checkpoint_in(folder_.file("none"));
  EXPECT_EQ(none.load(), std::nullopt);
  EXPECT_EQ(number_, -1);
  EXPECT_FALSE(fs::exists(folder_.file("none")));
  Checkpoint checkpoint = checkpoint_in(folder_.path());
  for (std::int64_t step = 1; step <= 5; ++step) save(checkpoint, step, step == 2);
  expect_loaded(checkpoint, 5);
  expect_loaded(checkpoint, 4, {.slot = "previous"});
  expect_loaded(checkpoint, 2, {.slot = "best"});
  save(checkpoint, 3);  // goes on from the best one
  expect_loaded(checkpoint, 3);
  Checkpoint other = checkpoint_in(folder_.file("other"));
  expect_loaded(other, 2, {.folder = folder_.path(), .slot = "best"});
  expect_error(ErrorCode::invalid_argument, HasSubstr("no slot \"worst\""),
               [&] { other.load({.slot = "worst"}); });
}

TEST_F(CheckpointTest, ATrainingThatLoadsNothingOverrulesTheOneBefore) {
  for (const auto& steps : {std::vector<std::int64_t>{7, 8, 9}, {1}}) {
    Checkpoint checkpoint = checkpoint_in(folder_.path());
    for (const std::int64_t step : steps) save(checkpoint, step);
    expect_loaded(checkpoint, steps.back());
  }
}

TEST_F(CheckpointTest, ALinkOrFileInTheWayIsNamedAndReplaced) {
  Checkpoint checkpoint = checkpoint_in(folder_.path());
  save(checkpoint, 1, /*best=*/true);
  save(checkpoint, 2);
  checkpoint.wait();
  on_rank_0([&] {
    for (const char* slot : {"last", "best"}) fs::remove_all(folder_.file(slot));
    fs::create_symlink("last", folder_.file("last"));
    std::ofstream(folder_.file("best")) << "no folder";
  });
  {
    const LoggedLines log;
    expect_loaded(checkpoint, 1);
    EXPECT_EQ(log.have("last\": it is no folder"), world_.rank() == 0);
  }
  save(checkpoint, 3, /*best=*/true);
  expect_loaded(checkpoint, 3);
  expect_loaded(checkpoint, 3, {.slot = "best"});
  expect_loaded(checkpoint, 1, {.slot = "previous"});
}

// Every flipped bit and cut: store_test.cpp.
TEST_F(CheckpointTest, ADamagedOneIsRefusedByNameAndTheOneBeforeTaken) {
  torch::nn::Linear module(20, 30);
  Checkpoint checkpoint = checkpoint_in(folder_.path());
  checkpoint.add_weights(*module);
  for (const std::string file : {"manifest.json", "weights.safetensors", "state.safetensors"}) {
    for (const int step : {1, 2}) {
      module->bias.data().fill_(step);
      save(checkpoint, step);
    }
    checkpoint.wait();
    on_rank_0([&] { damage(folder_.file("last/" + file)); });
    const LoggedLines log;
    expect_loaded(checkpoint, 1);
    EXPECT_TRUE(module->bias.eq(1).all().item<bool>());
    EXPECT_EQ(log.have("last/" + file + "\": "), world_.rank() == 0);
  }
  on_rank_0([&] { fs::resize_file(folder_.file("previous/manifest.json"), 50); });
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("holds no checkpoint that is complete and undamaged"),
                     HasSubstr("last/state.safetensors\": its checksum is "),
                     HasSubstr("previous/manifest.json\"")),
               [&] { checkpoint.load(); });
  save(checkpoint, 3);
  expect_loaded(checkpoint, 3);
}

TEST_F(CheckpointTest, ShardsAreWrittenByTheirRanksAndReadByAll) {
  Checkpoint checkpoint = checkpoint_in(folder_.path(), false, CheckpointScope::shard);
  save_two(checkpoint);
  const std::string last = "rank-" + std::to_string(world_.size() - 1) + "/last";
  EXPECT_TRUE(fs::exists(folder_.file(last + "/state.safetensors")));
  expect_loaded(checkpoint, 2);
  // Without one shard the whole save is of no use.
  on_rank_0([&] { fs::remove_all(folder_.file(last)); });
  expect_loaded(checkpoint, 1);
  on_rank_0([&] { fs::remove_all(folder_.file("previous")); });
  expect_error(ErrorCode::invalid_argument,
               HasSubstr("the shards that rank " + std::to_string(world_.size() - 1) + " wrote"),
               [&] { checkpoint.load(); });
}

class CheckpointOfNodes : public CheckpointTest {
 protected:
  std::string of_node(int node) const { return folder_.file("node-" + std::to_string(node)); }
  std::string own_folder() const { return of_node(world_.cross_rank()); }
};

TEST_F(CheckpointOfNodes, OneNodesIsEnough) {
  for (const auto scope : {CheckpointScope::each_rank, CheckpointScope::shard}) {
    const int nodes = world_.cross_size();
    for (int kept = 0; kept < nodes; ++kept) {
      Checkpoint checkpoint = checkpoint_in(own_folder(), true, scope);
      save_two(checkpoint);
      on_rank_0([&] {
        for (int node = 0; node < nodes; ++node) {
          EXPECT_TRUE(fs::exists(of_node(node) + "/last/manifest.json"));
          if (node != kept) fs::remove_all(of_node(node));
        }
      });
      Checkpoint resumed = checkpoint_in(own_folder() + "/", true, scope);
      expect_loaded(resumed, 2);
      on_rank_0([&] { fs::remove_all(of_node(kept)); });
    }
  }
}

TEST_F(CheckpointOfNodes, TheNewestOnAnyNodeWins) {
  const int nodes = world_.cross_size();
  Checkpoint checkpoint = checkpoint_in(own_folder(), true);
  save_two(checkpoint);
  on_rank_0([&] {  // all but the last node are one save behind
    for (int node = 0; node + 1 < nodes; ++node) {
      fs::remove_all(of_node(node) + "/last");
      fs::rename(of_node(node) + "/previous", of_node(node) + "/last");
    }
  });
  expect_loaded(checkpoint, 2);
  // The newest is damaged where it is.
  on_rank_0([&] { damage(of_node(nodes - 1) + "/last/state.safetensors"); });
  expect_loaded(checkpoint, 1);
  save(checkpoint, 3);
  expect_loaded(checkpoint, 3);
}

TEST_F(CheckpointTest, AFailedSaveIsToldToAllAndTheNextOneIsMade) {
  on_rank_0([&] { std::ofstream(folder_.file("file")) << "no folder"; });
  Checkpoint checkpoint = checkpoint_in(folder_.file("file/below"));
  save(checkpoint, 1);
  const Error error =
      expect_error(ErrorCode::invalid_argument,
                   AllOf(HasSubstr("the save of step 1 has failed on rank 0: "),
                         HasSubstr("Not a directory"), Not(HasSubstr("still there"))),
                   [&] { save(checkpoint, 2); });
  EXPECT_EQ(error.rank(), 0);
  on_rank_0([&] { fs::remove(folder_.file("file")); });
  save(checkpoint, 3);
  expect_loaded(checkpoint, 3);
}

TEST_F(CheckpointTest, AFailedCommitIsWarnedOfAndFilesAreLeft) {
  on_rank_0([&] { std::ofstream(folder_.file("file")) << "no folder"; });
  AsElastic job(folder_.file("file"));
  Checkpoint checkpoint = checkpoint_in(folder_.file("files"));
  const LoggedLines log;
  for (const std::int64_t step : {1, 2, 3}) checkpoint.commit({.step = step});
  EXPECT_EQ(log.have("commit() of step 1 on rank 0: "), world_.rank() == 0);
  save(checkpoint, 4);
  checkpoint.wait();
  job.begin(2);
  Checkpoint next = checkpoint_in(folder_.file("files"));
  expect_loaded(next, 4);
}

TEST_F(CheckpointTest, TheNewestOfCommitsAndFilesIsTakenAndThenWhatIsAskedFor) {
  AsElastic job(folder_.file("commits"));
  const auto commit = [&](Checkpoint& checkpoint, std::int64_t step) {
    number_ = 10 * step;
    own_ = 100 * step + world_.rank();
    checkpoint.commit({.step = step});
  };
  const auto go_on = [&](int generation) {
    job.begin(generation);
    return checkpoint_in(folder_.file("files"));
  };
  for (const bool commits_last : {true, false}) {
    on_rank_0([&] { fs::remove_all(folder_.file("commits")); });
    Checkpoint first = go_on(1);
    save(first, 1, /*best=*/true);
    first.wait();
    commit(first, commits_last ? 2 : 1);
    if (!commits_last) save(first, 2);
    { const Checkpoint ended = std::move(first); }
    barrier(world_);
    Checkpoint second = go_on(2);
    expect_loaded(second, 2, {.slot = "best"});
    expect_loaded(second, 1, {.slot = "best"});
  }
}

TEST_F(CheckpointTest, WhatItLacksIsAnErrorOrStays) {
  {
    Checkpoint checkpoint = checkpoint_in(folder_.path());
    save(checkpoint, 1);
    checkpoint.wait();
  }
  torch::nn::Linear module(2, 2);
  std::int64_t more = 7;
  Checkpoint checkpoint = checkpoint_in(folder_.path());
  checkpoint.add_weights(*module);
  checkpoint.add_number("more", more);
  expect_error(ErrorCode::invalid_argument, HasSubstr(R"(lacks "weights.safetensors", "more")"),
               [&] { checkpoint.load(); });
  EXPECT_EQ(number_, -1);
  expect_loaded(checkpoint, 1, {.allow_missing_parts = true});
  EXPECT_EQ(more, 7);
}

TEST_F(CheckpointTest, WhatDoesNotFitIsNamed) {
  const auto with_ones = [&](std::int64_t count) {
    Checkpoint checkpoint(world_, {.folder = folder_.path()});
    checkpoint.add_tensors("average", {{"a", torch::ones({count})}});
    return checkpoint;
  };
  Checkpoint two = with_ones(2), three = with_ones(3);
  two.save({.step = 1});
  two.wait();
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("part \"average\" does not fit"), HasSubstr("another shape")),
               [&] { three.load(); });
}

TEST_F(CheckpointTest, PartsAreAddedOnceAndBefore) {
  Checkpoint checkpoint = checkpoint_in(folder_.path());
  std::string texts;
  const auto refuse = [&](ErrorCode code, const std::function<void()>& call) {
    texts += expect_error(code, call).what() + std::string("\n");
  };
  const auto invalid = ErrorCode::invalid_argument;
  for (const char* name : {"number", "a/b", "", "ranks"}) {
    refuse(invalid, [&] { checkpoint.add_number(name, number_); });
  }
  refuse(invalid, [&] { checkpoint.save({.step = -1}); });
  refuse(invalid, [&] { checkpoint.save({.step = 1, .epoch = -2}); });
  save(checkpoint, 1);
  refuse(ErrorCode::invalid_use, [&] { checkpoint.add_number("late", number_); });
  refuse(invalid, [&] { Checkpoint(world_, {}).save({}); });
  refuse(invalid,
         [&] { Checkpoint(world_, {.folder = "a", .timeout = std::chrono::milliseconds(0)}); });
  expect_golden("frameworks/torch/checkpoint/texts.txt", "refused", texts);
}

TEST_F(CheckpointTest, SavesBetweenTwoStepsOfItsOptimizers) {
  Training training(world_);
  Checkpoint checkpoint(world_, {.folder = folder_.path()});
  checkpoint.add_optimizer("sgd", training.optimizer);
  for (const bool averaged : {false, true}) {
    training.optimizer.zero_grad();
    training.backward(my_batch(world_, 0));
    if (averaged) training.optimizer.synchronize();
    expect_error(ErrorCode::invalid_argument,
                 AllOf(HasSubstr("\"sgd\""), HasSubstr("between backward() and step()")),
                 [&] { checkpoint.save({.step = 1}); });
    training.optimizer.step();
    checkpoint.save({.step = 1});
  }
  EXPECT_EQ(checkpoint.load(), CheckpointPosition{.step = 1});
}

TEST_F(CheckpointTest, RanksAddTheSameParts) {
  if (world_.size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  Checkpoint checkpoint(world_, {.folder = folder_.path()});
  checkpoint.add_number(world_.rank() == 0 ? "one" : "other", number_);
  expect_error(ErrorCode::mismatch, HasSubstr("different parts"), [&] { checkpoint.save({}); });
}

TEST_F(CheckpointTest, WhatCannotBeCopiedIsAnErrorOnAllRanks) {
  bool fails = true;
  Checkpoint checkpoint(world_, {.folder = folder_.path()});
  checkpoint.add_text(
      "text",
      [&]() -> std::string {
        if (fails && world_.rank() == world_.size() - 1) throw std::runtime_error("no text");
        return "a text";
      },
      [](const std::string& text) { EXPECT_EQ(text, "a text"); }, CheckpointScope::each_rank);
  expect_error(ErrorCode::invalid_argument, HasSubstr("no text"), [&] { checkpoint.save({}); });
  fails = false;
  checkpoint.save({.step = 4});
  EXPECT_EQ(checkpoint.load(), CheckpointPosition{.step = 4});
}

// A training that is resumed has the bits of one that never stopped.

struct Variant {
  std::string name;
  std::function<TrainedOptions()> options;
  bool per_node = false;
};

TrainedOptions sharded() {
  return {.optimizer = {.bucket_bytes = 1024, .sharding = Sharding::state}, .make = make_adam};
}
template <class Hook, class Options>
std::function<TrainedOptions()> with_hook(const Options& options) {
  return [options] {
    return TrainedOptions{
        .optimizer = {.bucket_bytes = 1024, .hook = std::make_shared<Hook>(options)}};
  };
}

const Variant kVariants[] = {
    {"sgd", [] { return TrainedOptions(); }},
    {"adam_scaled", [] { return TrainedOptions{.make = make_adam, .scaled = true}; }},
    {"adam_sharded", sharded},
    {"adam_sharded_per_node", sharded, true},
    {"top_k", with_hook<TopK>(TopKOptions{.share = 0.1})},
    {"power_sgd", with_hook<PowerSgd>(PowerSgdOptions{.rank = 1, .start_step = 3})},
};

class Resume : public testing::TestWithParam<Variant> {
 protected:
  const Context world_ = init();
};

TEST_P(Resume, HasTheSameBitsAtAnyStep) {
  constexpr std::int64_t kSteps = 14;
  const SharedFolder folder(world_);
  std::vector<std::int64_t> at(kSteps);
  std::iota(at.begin(), at.end(), 0);
  auto random = generator();
  std::ranges::shuffle(at, random);
  at.resize(5);
  const auto folder_of = [&](std::int64_t step) {
    return folder.file("node-" + std::to_string(GetParam().per_node ? world_.cross_rank() : 0) +
                       "/step-" + std::to_string(step));
  };

  std::vector<torch::Tensor> uninterrupted;
  {
    const TrainedOptions options = GetParam().options();
    Trained run(world_, options, seed());
    std::vector<Checkpoint> checkpoints;  // each is written while training goes on
    while (run.steps < kSteps) {
      if (std::ranges::find(at, run.steps) != at.end()) {
        checkpoints.emplace_back(world_, CheckpointOptions{.folder = folder_of(run.steps),
                                                           .per_node = GetParam().per_node});
        run.add_to(checkpoints.back(), options);
        checkpoints.back().save({.step = run.steps, .epoch = 1});
      }
      run.step();
    }
    for (Checkpoint& checkpoint : checkpoints) checkpoint.wait();
    uninterrupted = run.values();
  }
  for (const std::int64_t step : at) {
    SCOPED_TRACE("resumed at step " + std::to_string(step));
    const TrainedOptions options = GetParam().options();
    Trained run(world_, options, seed() + 1);
    Checkpoint checkpoint(world_, {.folder = folder_of(step), .per_node = GetParam().per_node});
    run.add_to(checkpoint, options);
    EXPECT_EQ(checkpoint.load(), (CheckpointPosition{.step = step, .epoch = 1}));
    EXPECT_EQ(run.steps, step);
    EXPECT_EQ(run.sampler, step == 0 ? "" : "after " + std::to_string(step));
    while (run.steps < kSteps) run.step();
    expect_same_bits(run.values(), uninterrupted);
  }
}

TEST_P(Resume, GoesOnFromCommits) {
  constexpr std::int64_t kSteps = 14;
  const auto run_to = [](Trained& run, std::int64_t end, const std::function<void()>& after) {
    while (run.steps < end) {
      run.step();
      after();
    }
  };
  const TrainedOptions options = GetParam().options();
  Trained undisturbed(world_, options, seed());
  run_to(undisturbed, kSteps, [] {});

  const SharedFolder folder(world_);
  AsElastic job(folder.file("commits"));
  std::int64_t committed = 0;
  for (const int generation : {1, 2, 3}) {
    SCOPED_TRACE(generation);
    job.begin(generation);
    const TrainedOptions own_options = GetParam().options();
    Trained run(world_, own_options, generation == 1 ? seed() : seed() + 1);
    Checkpoint checkpoint(world_, {});
    run.add_to(checkpoint, own_options);
    EXPECT_EQ(checkpoint.load().has_value(), generation > 1);
    // The first two are copied.
    EXPECT_GE(run.steps, generation == 3 ? committed - 2 : committed);
    EXPECT_LE(run.steps, committed);
    committed = run.steps + 4;
    run_to(run, generation == 3 ? kSteps : run.steps + 4,
           [&] { checkpoint.commit({.step = run.steps}); });
    if (generation == 2) run.step();  // as if killed in an update
    if (generation == 3) expect_same_bits(run.values(), undisturbed.values());
  }
  barrier(world_);
  const auto kept = std::distance(fs::directory_iterator(folder.file("commits")), {});
  EXPECT_EQ(kept, world_.cross_size() + world_.size())
      << "those of earlier generations are removed";
}

INSTANTIATE_TEST_SUITE_P(Variants, Resume, testing::ValuesIn(kVariants),
                         [](const auto& of) { return of.param.name; });

// On one node by what each process has left, on two by what nodes have saved.
TEST(Commits, OfRanksThatDifferAreRefused) {
  const Context world = init();
  if (world.size() == 1) GTEST_SKIP() << "2 ranks are needed";
  const SharedFolder folder(world);
  AsElastic job(folder.file("commits"));
  for (const int generation : {1, 2}) {
    job.begin(generation);
    Trained run(world, {}, seed());
    Checkpoint checkpoint(world, {});
    run.add_to(checkpoint, {});
    if (generation == 1) {
      checkpoint.load();
      run.step();
      if (world.rank() == world.size() - 1) run.network->parameters()[0].data().add_(1);
      checkpoint.commit({.step = run.steps});
      checkpoint.commit({.step = run.steps});
      continue;
    }
    expect_error(ErrorCode::invalid_argument,
                 AllOf(HasSubstr("after step 1 the "), HasSubstr(" had different values of")),
                 [&] { checkpoint.load(); });
  }
}

/// Steps `from` to `to` by the first `ranks` ranks of MPI; the others wait. Batches are those of
/// the step, cut for `ranks`. Resumes from `folder`, and saves into it.
std::vector<torch::Tensor> train(int ranks, bool shard, std::int64_t to,
                                 const std::string& folder) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::vector<torch::Tensor> values;
  if (rank < ranks) {
    std::vector<int> members(static_cast<std::size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    const Context world = init({.ranks = members});
    TrainedOptions options = sharded();
    options.optimizer.sharding = shard ? Sharding::state : Sharding::off;
    Trained run(world, options, seed() + static_cast<std::uint64_t>(to));
    Checkpoint checkpoint(world, {.folder = folder});
    run.add_to(checkpoint, options);
    const auto position = checkpoint.load();
    EXPECT_EQ(position.has_value(), to != 4);  // not in the first part
    while (run.steps < to) {
      const Batch whole = whole_batch(seed() + static_cast<std::uint64_t>(run.steps), 12);
      run.step(part_of(whole, rank, 12 / ranks));
    }
    checkpoint.save({.step = run.steps});
    checkpoint.wait();
    run.optimizer.complete_parameters();
    values = copies_of(run.network->parameters());
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return values;
}

/// Ranks of three parts of a training, and whether each of them shards its state.
struct Parts {
  int ranks[3];
  bool shard[3];
};

// One global batch: the sum's order differs, and nothing else.
TEST(OtherRanks, ContinueTheTraining) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size < 4) GTEST_SKIP() << "4 ranks are needed";
  for (const Parts& parts :
       {Parts{{2, 4, 2}, {true, true, true}}, Parts{{4, 2, 4}, {true, true, true}},
        Parts{{2, 4, 2}, {false, true, false}}, Parts{{4, 2, 4}, {true, false, true}},
        Parts{{2, 4, 4}, {false, false, true}}, Parts{{3, 1, 4}, {true, true, true}}}) {
    SCOPED_TRACE(testing::PrintToString(parts.ranks) + testing::PrintToString(parts.shard));
    const TemporaryFolder own;
    const std::string folder = broadcast_object(init(), own.path().string());  // rank 0's
    std::vector<torch::Tensor> expected, actual;
    for (const int part : {0, 1, 2}) {
      const std::int64_t to = 4 * (part + 1);
      expected = train(parts.ranks[0], false, to, folder + "/alike");
      actual = train(parts.ranks[part], parts.shard[part], to, folder + "/other");
    }
    if (!expected.empty() && !actual.empty()) expect_close(actual, expected, 1e-5);
  }
}

}  // namespace
}  // namespace hora::internal::test
