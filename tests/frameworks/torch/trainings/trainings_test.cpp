// Random trainings against plain LibTorch on one process. TEST_TRAININGS says how many (100 without
// it); TEST_TRAINING=<seed> runs that one alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>

#include "tests/frameworks/torch/process_sets.h"
#include "tests/frameworks/torch/trainings/network.h"
#include "tests/support/random_draws.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

std::shared_ptr<GradientHook> make_hook(Hook hook) {
  if (hook == Hook::power_sgd) return std::make_shared<PowerSgd>(PowerSgdOptions{.rank = 64});
  if (hook == Hook::top_k) return std::make_shared<TopK>(TopKOptions{.share = 1.0});
  return nullptr;
}

/// The first half of an optimizer's parameters in one group, the last in another.
std::vector<std::vector<torch::Tensor>> halves(const std::vector<torch::Tensor>& parameters) {
  const auto half = parameters.begin() + static_cast<std::ptrdiff_t>(parameters.size() / 2);
  return {{parameters.begin(), half}, {parameters.back()}};
}

DistributedOptimizerOptions options_of(const Training& training, const Network& network,
                                       int optimizer, ProcessSet set) {
  DistributedOptimizerOptions options;
  options.op = training.op;
  options.bucket_bytes = training.bucket_bytes;
  options.compression = training.compression;
  options.process_set = set;
  if (training.accumulation == Accumulation::passes) {
    options.backward_passes_per_step = training.passes;
  }
  options.gradient_predivide_factor = training.predivide;
  if (training.grouping == Grouping::number) options.number_of_groups = 2;
  if (training.grouping == Grouping::lists) {
    options.groups = halves(network.parameters_of(optimizer));
  }
  options.static_graph = training.has(Feature::static_graph);
  options.sharding = static_cast<Sharding>(training.sharding);
  options.overlap_parameter_gather = training.overlaps_gather;
  options.hook = make_hook(training.hook);
  return options;
}

/// A network with its wrapped optimizers.
struct Trainee {
  Trainee(const Context& world, const Training& training, ProcessSet set) : network(training) {
    network.freeze(0);
    for (int i = 0; i < training.optimizers; ++i) {
      wrapped.push_back(network.make_optimizer(i, training.sharding > 1));
      optimizers.emplace_back(world, *wrapped.back(), network.named(),
                              options_of(training, network, i, set));
    }
    if (training.has(Feature::grad_scaler)) {
      scaler.emplace(all(), GradScalerOptions{.initial_scale = training.initial_scale,
                                              .growth_interval = training.growth_interval});
    }
  }

  std::vector<DistributedOptimizer*> all() {
    std::vector<DistributedOptimizer*> pointers;
    for (DistributedOptimizer& optimizer : optimizers) pointers.push_back(&optimizer);
    return pointers;
  }

  Network network;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> wrapped;
  std::vector<DistributedOptimizer> optimizers;
  std::optional<GradScaler> scaler;
};

class Runner {
 public:
  Runner(const Context& world, const ParitySet& parity, const Training& training)
      : world_(world),
        training_(training),
        members_(training.members(world.rank())),
        trainee_(world, training, training.has(Feature::process_set) ? parity.id : kWorld),
        reference_(world, training, members_) {}

  std::string run() {
    for (int step = 0; step < training_.steps(); ++step) {
      const bool takes_part = training_.takes_part(world_.rank(), step);
      const bool all_join = training_.has(Feature::join) && step == training_.steps_before_join;
      if ((!takes_part || all_join) && !joined_) join();
      takes_part ? train(step) : trainee_.network.freeze(step);  // alike on every rank
      reference_.step(step);
      if (all_join) joined_ = false;
      if (takes_part) check(step);
      reference_.network().replace(step, Moment::end);
      if (!joined_) trainee_.network.replace(step, Moment::end);
    }
    return wrong_.str();
  }

 private:
  void train(int step) {
    if (step % 2 == 0) trainee_.network.freeze(step);
    for (auto& optimizer : trainee_.optimizers) optimizer.zero_grad();
    trainee_.network.freeze(step);
    if (training_.discards[static_cast<std::size_t>(step)]) {
      trainee_.network.loss(step, world_.rank(), 9).backward();
      for (auto& optimizer : trainee_.optimizers) optimizer.zero_grad();
    }
    trainee_.network.replace(step, Moment::backward);
    backward(step);
    norms_.clear();
    for (auto& optimizer : trainee_.optimizers) {
      if (share(step).synchronizes) optimizer.synchronize();
    }
    if (training_.has(Feature::clipping)) {
      if (trainee_.scaler) trainee_.scaler->unscale_();
      for (auto& optimizer : trainee_.optimizers) {
        norms_.push_back(optimizer.clip_grad_norm_(training_.max_norm));
      }
    }
    trainee_.network.replace(step, Moment::step);
    if (trainee_.scaler) {
      stepped_ = trainee_.scaler->step();
      trainee_.scaler->update();
    } else {
      for (auto& optimizer : trainee_.optimizers) optimizer.step();
    }
    for (auto& optimizer : trainee_.optimizers) optimizer.complete_parameters();
    for (auto& each : trainee_.wrapped) trainee_.network.decay(*each);
  }

  const Share& share(int step) const {
    return training_
        .shares[static_cast<std::size_t>(step)][static_cast<std::size_t>(world_.rank())];
  }

  void backward(int step) {
    const auto& passes = share(step).passes;
    for (std::size_t pass = 0; pass < passes.size(); ++pass) {
      std::vector<std::unique_ptr<DistributedOptimizer::Guard>> guards;
      if (training_.accumulation == Accumulation::no_sync && pass + 1 < passes.size()) {
        for (auto& optimizer : trainee_.optimizers) {
          guards.emplace_back(new DistributedOptimizer::Guard(optimizer.no_sync()));
        }
      }
      const auto loss = trainee_.network.loss(step, world_.rank(), pass);
      (trainee_.scaler ? trainee_.scaler->scale(loss) : loss).backward();
    }
  }

  void join() {
    const int last = hora::join(world_, trainee_.all());
    const bool was_there = std::binary_search(members_.begin(), members_.end(), last) &&
                           training_.takes_part(last, training_.steps_before_join - 1);
    if (!was_there) note(training_.steps_before_join) << "join() gave rank " << last << '\n';
    joined_ = true;
    caught_up_ = false;
  }

  std::ostream& note(int step) { return wrong_ << "step " << step << ": "; }

  void check(int step) {
    if (trainee_.scaler) {
      if (stepped_ != reference_.stepped()) note(step) << "stepped: " << stepped_ << '\n';
      if (trainee_.scaler->current_scale() != reference_.scale()) {
        note(step) << "scale " << trainee_.scaler->current_scale() << ", expected "
                   << reference_.scale() << '\n';
      }
    }
    for (std::size_t i = 0; i < norms_.size(); ++i) {
      const double expected = reference_.norms()[i];
      if (!reference_.stepped() || std::abs(norms_[i] - expected) <= tolerance() * (1 + expected)) {
        continue;
      }
      note(step) << "norm " << norms_[i] << ", expected " << expected << '\n';
    }
    for (const auto& item : trainee_.network.named()) check(step, item.key(), item.value());
    caught_up_ = true;
  }

  void check(int step, const std::string& name, const torch::Tensor& parameter) {
    const torch::NoGradGuard no_grad;
    torch::Tensor expected = *reference_.network().named().find(name);
    if (!torch::allclose(parameter, expected, tolerance(), tolerance())) {
      note(step) << name << " differs by " << (parameter - expected).abs().max().item<double>()
                 << " of " << expected.abs().max().item<double>() << '\n';
    }
    // Where rounding is coarse, the next step begins from the same parameters, lest one of them
    // makes the next be rounded to another side.
    if (is_coarse()) expected.copy_(parameter);
  }

  bool is_coarse() const { return training_.is_float32() || training_.has(Feature::hook); }
  double tolerance() const {
    const bool hook = training_.has(Feature::hook);
    if (hook && training_.is_float32()) return 1e-2;  // it rounds where the reference does not
    if (is_coarse() && !caught_up_) return 1e-2;      // steps since this rank has joined
    if (hook) return 1e-4;
    return training_.is_float32() ? 1e-5 : 1e-9;
  }

  const Context& world_;
  const Training& training_;
  const std::vector<int> members_;
  Trainee trainee_;
  Reference reference_;
  std::vector<double> norms_;
  bool stepped_ = true;
  bool joined_ = false;
  bool caught_up_ = true;
  std::ostringstream wrong_;
};

/// Collective. Returns what this rank found wrong; empty where its parameters were the reference's
/// after each of its steps.
std::string run_training(const Context& world, const ParitySet& parity, const Training& training) {
  try {
    return Runner(world, parity, training).run();
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Collective. Returns the text of the error that a training with features that do not go together
/// throws where the last of them is asked for; empty where there was none.
std::string refusal_of(const Context& world, const ParitySet& parity, const Training& training) {
  try {
    Trainee trainee(world, training, training.has(Feature::process_set) ? parity.id : kWorld);
    if (training.has(Feature::join)) hora::join(world, trainee.all());
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class Trainings : public testing::Test {
 protected:
  ~Trainings() override { barrier(world_); }

  void say(const Training& training) const {
    if (world_.rank() != 0) return;  // before it runs, for one that never ends
    std::printf("TEST_TRAINING=%llu: %s\n", static_cast<unsigned long long>(training.seed),
                training.describe().c_str());
    std::fflush(stdout);
  }

  const Context world_ = init();
  const ParitySet parity_{world_};
};

TEST_F(Trainings, AreWhatOneProcessMakesOfThem) {
  const auto only = number_in("TEST_TRAINING");
  const std::uint64_t count = only ? 1 : number_in("TEST_TRAININGS").value_or(100);
  auto seeds = generator();
  for (std::uint64_t i = 0; i < count; ++i) {
    const Training training = draw_training(only.value_or(seeds()), world_.size());
    say(training);
    EXPECT_EQ(run_training(world_, parity_, training), "")
        << "Repeat with TEST_TRAINING=" << training.seed << ": " << training.describe();
  }
}

// Whatever else a training has, it is refused where the second of the two is asked for, on every
// rank, and nothing is left behind.
TEST_F(Trainings, OfTwoThingsThatDoNotGoTogetherAreRefused) {
  auto seeds = generator();
  for (const Exclusion& pair : exclusions()) {
    for (int i = 0; i < 3; ++i) {
      const Training training = draw_training(seeds(), world_.size(), {pair.one, pair.other});
      say(training);
      EXPECT_THAT(refusal_of(world_, parity_, training), testing::HasSubstr(pair.text))
          << training.describe();
    }
  }
}

}  // namespace
}  // namespace hora::internal::test
