/// What a training step pays for what accompanies it: checkpoints, logs, the check for NaN and Inf.
///
/// ResNet-18 for 32x32 images, SGD with momentum, averaged gradients, one batch of noise. Two
/// groups of benchmarks, each on one training of whose steps some have the accompaniment and some
/// have not:
///
///     training_costs/plain, /finite_check, /logs   in turn, some steps each; logs: an entry a step
///                                                  as JSON and in TensorBoard's files, by rank 0
///     training_costs/unsaved, /checkpoint          in turn, intervals of steps of which one begins
///                                                  with a save in the background
///
/// `over_plain` is the ratio to plain, or to unsaved, whose neighbours in time are compared;
/// `cost_percent` the same as a cost, to be at most 1; `cpu_over_plain` the ratio of the processor
/// time of all threads; `call_ms` what the calls for it take, a step.
#include <hora/objects.h>
#include <hora/torch.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/harness/comparison.h"
#include "bench/harness/program.h"
#include "examples/vision/logs/training_log.h"
#include "examples/vision/models/model.h"

namespace {

using namespace bench;
using Clock = std::chrono::steady_clock;

struct Options {
  std::int64_t batch = 16;  ///< images a rank
  int threads = 1;
  int rounds = 40;     ///< of plain, finite_check, logs
  int steps = 2;       ///< of each in a round
  int intervals = 5;   ///< with a checkpoint, and as many without
  int every = 50;      ///< steps of an interval
  std::string folder;  ///< a new one is made in it, and removed
};

constexpr int kWarmUpSteps = 4;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Of all threads of this process, which other processes change less than they do the time.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// A folder that rank 0 makes, and removes with all that is in it.
class SharedFolder {
 public:
  /// Collective.
  SharedFolder(const hora::Context& world, const std::string& parent) : owner_(world.rank() == 0) {
    std::filesystem::path path;
    if (owner_) {
      path =
          parent.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(parent);
      path /= "hora-training-costs-" + std::to_string(::getpid());
      std::filesystem::create_directories(path);
    }
    path_ = hora::broadcast_object(world, path.string(), {.name = "folder"});
  }
  ~SharedFolder() {
    std::error_code ignored;
    if (owner_) std::filesystem::remove_all(path_, ignored);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  std::string path(const std::string& name) const { return path_ / name; }

 private:
  bool owner_;
  std::filesystem::path path_;
};

/// Times of one kind of step.
struct Timings {
  Blocks cpu;          ///< processor seconds of a step, one mean a block
  Blocks wall;         ///< seconds of steps
  double calls = 0.0;  ///< seconds in the calls measured
  int steps = 0;
};

/// What a step has beside what every training has; each part times itself.
struct Accompaniment {
  std::function<void()> before_step = [] {};
  std::function<void(const torch::Tensor& loss)> after_backward = [](const torch::Tensor&) {};
  std::function<void(double loss)> after_step = [](double) {};
};

class Training {
 public:
  Training(const hora::Context& world, const Options& options)
      : model_(vision::make_model("resnet18", {.classes = 10, .stem = vision::Stem::cifar})),
        sgd_(model_->parameters(), torch::optim::SGDOptions(0.001).momentum(0.9)),
        images_(torch::randn({options.batch, 3, 32, 32})),
        labels_(torch::randint(10, {options.batch}, torch::kLong)) {
    hora::broadcast_parameters(world, *model_);
    optimizer_.emplace(world, sgd_, model_->named_parameters());
  }

  void step(const Accompaniment& with = {}) {
    with.before_step();
    optimizer_->zero_grad();
    const torch::Tensor loss = backward();
    with.after_backward(loss);
    optimizer_->step();
    with.after_step(loss.item<double>());
  }
  torch::Tensor backward(double factor = 1.0) {
    torch::Tensor loss = torch::cross_entropy_loss(model_->forward(images_), labels_).mul(factor);
    loss.backward();
    return loss;
  }

  vision::Classifier& model() { return *model_; }
  hora::DistributedOptimizer& optimizer() { return *optimizer_; }

 private:
  std::shared_ptr<vision::Classifier> model_;
  torch::optim::SGD sgd_;
  torch::Tensor images_;
  torch::Tensor labels_;
  std::optional<hora::DistributedOptimizer> optimizer_;
};

/// `count` steps one after the other. `whole`: their mean is one time.
void time_steps(const hora::Context& world, Training& training, const Accompaniment& with,
                int count, bool whole, Timings& timings) {
  std::vector<double> seconds;
  hora::barrier(world);
  const double cpu_begin = cpu_seconds();
  const auto begin = Clock::now();
  for (int i = 0; i < count; ++i) {
    const auto step_begin = Clock::now();
    training.step(with);
    seconds.push_back(seconds_since(step_begin));
  }
  if (whole) seconds = {seconds_since(begin) / count};
  timings.wall.push_back(std::move(seconds));
  timings.cpu.push_back({(cpu_seconds() - cpu_begin) / count});
  timings.steps += count;
}

Measurement measurement_of(const Ranks& ranks, const Timings& timings, const Timings& plain,
                           bool wrong) {
  const auto steps = flatten(timings.wall);
  Measurement result;
  result.seconds = ranks.max(quantile(steps, 0.5));
  result.iterations = timings.steps;
  if (&timings == &plain) return result;
  // Each rank is compared with itself: the largest of several noisy values would be too large.
  const double ratio = ranks.max(ratio_of_blocks(timings.wall, plain.wall));
  result.counters = {{"over_plain", ratio},
                     {"cpu_over_plain", ranks.max(ratio_of_blocks(timings.cpu, plain.cpu))},
                     {"cost_percent", 100 * (ratio - 1)},
                     {"call_ms", ranks.max(timings.calls / timings.steps * 1e3)},
                     {"wrong", ranks.max(wrong ? 1.0 : 0.0)}};
  return result;
}

class TimedCall {
 public:
  explicit TimedCall(Timings& timings) : timings_(timings) {}
  ~TimedCall() { timings_.calls += seconds_since(begin_); }
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;

 private:
  Timings& timings_;
  Clock::time_point begin_ = Clock::now();
};

hora::FiniteCheck make_check(const hora::Context& world, Training& training) {
  return {world, training.model().named_parameters(), {.policy = hora::NonFinitePolicy::skip}};
}

/// Collective. Whether a loss that is not a number is found.
bool finds_nan(const hora::Context& world, Training& training) {
  auto check = make_check(world, training);
  training.optimizer().zero_grad();
  const auto found = check.check(training.backward(std::numeric_limits<double>::quiet_NaN()));
  training.optimizer().zero_grad();
  return found && found->in_loss && found->is_nan;
}

std::size_t lines_with(const std::string& text, const std::string& path) {
  std::ifstream file(path);
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) count += line.find(text) != line.npos ? 1 : 0;
  return count;
}

std::vector<Measurement> measure_each_step(const hora::Context& world, const Ranks& ranks,
                                           const Options& options) {
  const SharedFolder folder(world, options.folder);
  Training training(world, options);
  Timings plain;
  Timings checked;
  Timings logged;
  const bool writes = world.rank() == 0;
  const std::string json = folder.path("log.json");
  vision::TrainingLog log(
      writes ? vision::LogTargets{.json = json, .tensorboard = folder.path("events"), .every = 1}
             : vision::LogTargets{});
  const auto logged_steps = static_cast<std::size_t>(options.rounds * options.steps);
  log.run({.ranks = world.size(), .steps = logged_steps});
  std::size_t entries = 0;
  const Accompaniment logging{.after_step = [&](double loss) {
    const TimedCall timed(logged);
    log.step({.step = ++entries,
              .steps = logged_steps,
              .loss = loss,
              .top1 = 10.0,
              .learning_rate = 0.001,
              .images_per_second = 100.0,
              .seconds = 0.1},
             std::chrono::system_clock::now());
  }};
  bool finite = true;
  const std::array<std::function<void()>, 3> ways{
      [&] { time_steps(world, training, {}, options.steps, false, plain); },
      [&] {
        auto check = make_check(world, training);
        const Accompaniment checking{.after_backward = [&](const torch::Tensor& loss) {
          const TimedCall timed(checked);
          finite &= !check.check(loss).has_value();
        }};
        time_steps(world, training, checking, options.steps, false, checked);
      },
      [&] { time_steps(world, training, logging, options.steps, false, logged); }};

  for (int step = 0; step < kWarmUpSteps; ++step) training.step();
  for (int round = 0; round < options.rounds; ++round) {
    // Each comes first, in the middle and last as often as the others.
    for (std::size_t i = 0; i < ways.size(); ++i) {
      ways[(static_cast<std::size_t>(round) + i) % ways.size()]();
    }
  }
  log.epoch({}, std::chrono::system_clock::now());
  const bool wrong_check = !finite || !finds_nan(world, training);
  const bool wrong_log = writes && lines_with("\"step\"", json) != logged_steps;
  return {measurement_of(ranks, plain, plain, false),
          measurement_of(ranks, checked, plain, wrong_check),
          measurement_of(ranks, logged, plain, wrong_log)};
}

std::vector<Measurement> measure_intervals(const hora::Context& world, const Ranks& ranks,
                                           const Options& options) {
  const SharedFolder folder(world, options.folder);
  Training training(world, options);
  hora::Checkpoint checkpoint(world, {.folder = folder.path("checkpoints")});
  checkpoint.add_weights(training.model());
  checkpoint.add_optimizer("optimizer", training.optimizer());
  checkpoint.add_random_state();
  Timings unsaved;
  Timings saved;
  std::int64_t saves = 0;
  for (int step = 0; step < kWarmUpSteps; ++step) training.step();
  for (int i = 0; i < 2; ++i) {  // from the second on memory is there
    checkpoint.save({.step = ++saves});
    training.step();
    checkpoint.wait();
  }
  for (int interval = 0; interval < 2 * options.intervals; ++interval) {
    // There and back: what drifts concerns both.
    if (interval % 4 == 1 || interval % 4 == 2) {
      int step = 0;
      const Accompaniment saving{.before_step = [&] {
        if (step++ > 0) return;
        const TimedCall timed(saved);
        checkpoint.save({.step = ++saves});
      }};
      time_steps(world, training, saving, options.every, true, saved);
      checkpoint.wait();
    } else {
      time_steps(world, training, {}, options.every, true, unsaved);
    }
  }
  const auto loaded = checkpoint.load();
  return {measurement_of(ranks, unsaved, unsaved, false),
          measurement_of(ranks, saved, unsaved, !loaded || loaded->step != saves)};
}

void add_options(CLI::App& app, Options& options) {
  const auto positive = [](CLI::Option* option) {
    option->check(CLI::PositiveNumber)->capture_default_str();
  };
  positive(app.add_option("--batch", options.batch, "images a rank"));
  positive(app.add_option("--threads", options.threads, "LibTorch's threads a rank"));
  positive(app.add_option("--rounds", options.rounds, "of plain, finite_check and logs"));
  positive(app.add_option("--steps", options.steps, "of each in a round"));
  positive(app.add_option("--intervals", options.intervals, "with a checkpoint, and without"));
  positive(app.add_option("--every", options.every, "steps of an interval"));
  app.add_option("--folder", options.folder, "for files; empty: the system's temporary folder");
}

}  // namespace

int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  const Ranks ranks;
  Program program(ranks);
  Options options;
  CLI::App app("Times training steps with and without checkpoints, logs and the finite check");
  add_options(app, options);
  if (const auto code = program.parse(app, argc, argv)) return *code;

  torch::set_num_threads(options.threads);
  torch::manual_seed(1 + static_cast<std::uint64_t>(world.rank()));
  program.describe("ranks", std::to_string(world.size()));
  program.describe("batch", std::to_string(options.batch));
  program.describe("checkpoint every", std::to_string(options.every) + " steps");
  program.add_whole({"training_costs/plain", "training_costs/finite_check", "training_costs/logs"},
                    benchmark::kMillisecond,
                    [&] { return measure_each_step(world, ranks, options); });
  program.add_whole({"training_costs/unsaved", "training_costs/checkpoint"},
                    benchmark::kMillisecond,
                    [&] { return measure_intervals(world, ranks, options); });
  return program.run();
}
