/// What averaging gradients adds to a training step: ResNet-18, 32x32 images, SGD with momentum.
///
/// Blocks of steps alternate, in the same processes, between the bare optimizer on a network
/// without hooks (`training_step/plain`: no communication at all) and hora (`training_step/hora`,
/// and `training_step/hora_bfloat16` with compression).
/// With --record, in place of these, between hora with its flight record and its ledger of who came
/// last, watched, and hora without (`training_step/record_watched`, `training_step/record_off`).
/// A time is the slowest rank's median; the first step of a block is left out, and four before all.
/// Run under mpirun with --bind-to none.
#include <hora/torch.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/harness/comparison.h"
#include "bench/harness/program.h"
#include "examples/vision/models/model.h"

namespace bench {
namespace {

struct StepOptions {
  vision::Stem stem = vision::Stem::imagenet;
  std::int64_t batch = 32;  ///< images a rank
  std::size_t bucket_bytes = 0;
};

/// ResNet-18 and SGD with momentum on one batch of noise that stays the same.
class PlainStep {
 public:
  explicit PlainStep(const StepOptions& options);
  /// Gradients undefined, forward, backward, step; no communication.
  void run();
  void forward_and_backward();

  vision::Classifier& model() { return *model_; }
  torch::optim::SGD& sgd() { return sgd_; }

 private:
  std::shared_ptr<vision::Classifier> model_;
  torch::optim::SGD sgd_;
  torch::Tensor images_;
  torch::Tensor labels_;
};

/// The same with averaged gradients.
class AveragedStep {
 public:
  /// Collective.
  AveragedStep(const hora::Context& world, const StepOptions& options,
               hora::Compression compression);
  void run();

  /// Collective: the largest difference between the last step's gradients and the average, in
  /// double precision, of those that each rank computes without hora from `weights`, the weights
  /// before that step. Relative to the parameter's largest gradient. Removes the hooks: run()
  /// must not be called after it.
  double error_of_gradients(const std::vector<torch::Tensor>& weights);
  std::vector<torch::Tensor> copy_of_weights();
  hora::DistributedOptimizer& optimizer() { return *optimizer_; }

 private:
  const hora::Context& world_;
  PlainStep plain_;
  std::optional<hora::DistributedOptimizer> optimizer_;
};

PlainStep::PlainStep(const StepOptions& options)
    : model_(vision::make_model("resnet18", {.classes = 10, .stem = options.stem})),
      sgd_(model_->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)),
      images_(torch::randn({options.batch, 3, 32, 32})),
      labels_(torch::randint(10, {options.batch}, torch::kLong)) {}

void PlainStep::run() {
  for (auto& parameter : model_->parameters()) parameter.mutable_grad().reset();
  forward_and_backward();
  sgd_.step();
}

void PlainStep::forward_and_backward() {
  torch::cross_entropy_loss(model_->forward(images_), labels_).backward();
}

AveragedStep::AveragedStep(const hora::Context& world, const StepOptions& options,
                           hora::Compression compression)
    : world_(world), plain_(options) {
  hora::broadcast_parameters(world, plain_.model());
  optimizer_.emplace(world, plain_.sgd(), plain_.model().named_parameters(),
                     hora::DistributedOptimizerOptions{.bucket_bytes = options.bucket_bytes,
                                                       .compression = compression});
}

void AveragedStep::run() {
  optimizer_->zero_grad();
  plain_.forward_and_backward();
  optimizer_->step();
}

std::vector<torch::Tensor> AveragedStep::copy_of_weights() {
  std::vector<torch::Tensor> copies;
  for (const auto& weight : plain_.model().parameters()) {
    copies.push_back(weight.detach().clone());
  }
  return copies;
}

double AveragedStep::error_of_gradients(const std::vector<torch::Tensor>& weights) {
  const torch::NoGradGuard no_grad;
  auto parameters = plain_.model().parameters();
  std::vector<torch::Tensor> averaged;
  for (const auto& parameter : parameters) averaged.push_back(parameter.grad().to(torch::kDouble));

  optimizer_.reset();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].copy_(weights[i]);
    parameters[i].mutable_grad().reset();
  }
  {
    const torch::AutoGradMode grad(true);
    plain_.forward_and_backward();
  }
  double worst = 0.0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto expected = hora::allreduce(world_, parameters[i].grad().to(torch::kDouble));
    const auto error = (averaged[i] - expected).abs().max();
    worst = std::max(worst, (error / expected.abs().max().clamp_min(1e-30)).item<double>());
  }
  return worst;
}

}  // namespace
}  // namespace bench

namespace {

using namespace bench;

struct Options : StepOptions {
  int blocks = 12;  // of each contender
  int steps = 8;    // timed steps of a block
  int threads = 1;
  bool record = false;
};

constexpr int warm_up_steps = 4;

/// hora, in one of its ways.
struct Way {
  const char* name;
  hora::Compression compression;
  double tolerance;  ///< of gradients, as a share of their parameter's largest
};
constexpr std::array ways{
    // Sums of a few floats, rounded once each.
    Way{"training_step/hora", hora::Compression::none, 1e-5},
    // Rounded to 8 bits before the sum and after it. (In float16 small gradients would vanish.)
    Way{"training_step/hora_bfloat16", hora::Compression::bfloat16, 0x1p-7},
};

struct Timings {
  Blocks wall;
  Blocks cpu;                // of all threads of this process, one mean a block
  double page_faults = 0.0;  // mean of a step
};

double cpu_seconds(const rusage& usage) {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

template <class Step>
void time_block(const hora::Context& world, const Options& options, Timings& timings, Step step) {
  using Clock = std::chrono::steady_clock;
  hora::barrier(world);
  step();
  std::vector<double> seconds;
  rusage before{};
  rusage after{};
  getrusage(RUSAGE_SELF, &before);
  for (int i = 0; i < options.steps; ++i) {
    const auto begin = Clock::now();
    step();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  getrusage(RUSAGE_SELF, &after);
  timings.wall.push_back(std::move(seconds));
  timings.cpu.push_back({(cpu_seconds(after) - cpu_seconds(before)) / options.steps});
  timings.page_faults +=
      static_cast<double>(after.ru_minflt - before.ru_minflt) / (options.steps * options.blocks);
}

// Each rank is compared with itself: the largest of several noisy values would be too large.
Measurement measurement_of(const Ranks& ranks, const Timings& timings) {
  const auto steps = flatten(timings.wall);
  Measurement result;
  result.seconds = ranks.max(quantile(steps, 0.5));
  result.iterations = static_cast<std::int64_t>(steps.size());
  result.counters = {{"p99_ms", ranks.max(quantile(steps, 0.99)) * 1e3},
                     {"page_faults", ranks.max(timings.page_faults)}};
  return result;
}

/// One way of hora's and its times.
struct Contender {
  Contender(const hora::Context& world, const Options& options, const Way& its_way)
      : way(its_way), step(world, options, its_way.compression) {}

  // Collective; run() must not be called after it.
  Measurement measurement(const Ranks& ranks, const Timings& plain) {
    const hora::OptimizerStatistics statistics = step.optimizer().statistics();
    // A step more than was timed, for copying the weights takes time.
    const auto weights = step.copy_of_weights();
    step.run();
    const double error = step.error_of_gradients(weights);

    Measurement result = measurement_of(ranks, times);
    auto& counters = result.counters;
    counters["over_plain"] = ranks.max(ratio_of_blocks(times.wall, plain.wall));
    counters["cpu_over_plain"] = ranks.max(ratio_of_blocks(times.cpu, plain.cpu));
    counters["hidden_share"] = statistics.hidden_share();
    counters["waited_ms"] = std::chrono::duration<double, std::milli>(statistics.waited).count() /
                            static_cast<double>(statistics.steps);
    counters["wrong"] = ranks.max(error <= way.tolerance ? 0.0 : 1.0);
    return result;
  }

  Way way;
  AveragedStep step;
  Timings times;
};

std::vector<Measurement> measure(const hora::Context& world, const Ranks& ranks,
                                 const Options& options) {
  torch::set_num_threads(options.threads);
  torch::manual_seed(1 + static_cast<std::uint64_t>(world.rank()));
  PlainStep plain(options);
  Timings plain_times;
  std::list<Contender> contenders;  // which stay where they are
  for (const Way& way : ways) contenders.emplace_back(world, options, way);
  for (int step = 0; step < warm_up_steps; ++step) {
    plain.run();
    for (Contender& contender : contenders) contender.step.run();
  }
  for (Contender& contender : contenders) contender.step.optimizer().reset_statistics();

  for (int block = 0; block < options.blocks; ++block) {
    time_block(world, options, plain_times, [&] { plain.run(); });
    for (Contender& contender : contenders) {
      time_block(world, options, contender.times, [&] { contender.step.run(); });
    }
  }
  std::vector<Measurement> result{measurement_of(ranks, plain_times)};
  for (Contender& contender : contenders) {
    result.push_back(contender.measurement(ranks, plain_times));
  }
  return result;
}

/// Blocks with the flight record and the ledger and without, each in a context of its own: `world`
/// is shut down, and afterwards another one.
std::vector<Measurement> measure_record(hora::Context& world, const Ranks& ranks,
                                        const Options& options) {
  constexpr const char* kVariable = "HORARUN_RECORD";
  torch::set_num_threads(options.threads);
  torch::manual_seed(1 + static_cast<std::uint64_t>(world.rank()));
  std::array<Timings, 2> times;  // watched, off
  for (int block = 0; block < 2 * options.blocks; ++block) {
    // There and back: what drifts concerns both.
    const std::size_t is_off = block % 4 == 1 || block % 4 == 2 ? 1 : 0;
    ::setenv(kVariable, is_off ? "off" : "watched", 1);
    world.shutdown();
    world = hora::init();
    AveragedStep step(world, options, hora::Compression::none);
    for (int i = 0; i < warm_up_steps; ++i) step.run();
    time_block(world, options, times[is_off], [&] { step.run(); });
  }
  ::unsetenv(kVariable);
  world.shutdown();
  world = hora::init();
  std::vector<Measurement> result{measurement_of(ranks, times[0]), measurement_of(ranks, times[1])};
  result[0].counters["over_off"] = ranks.max(ratio_of_blocks(times[0].wall, times[1].wall));
  result[0].counters["cpu_over_off"] = ranks.max(ratio_of_blocks(times[0].cpu, times[1].cpu));
  return result;
}

void add_options(CLI::App& app, Options& options) {
  app.add_option("--stem", options.stem, "imagenet (7x7, max-pool) or cifar (3x3)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, vision::Stem>{
          {"imagenet", vision::Stem::imagenet}, {"cifar", vision::Stem::cifar}}))
      ->default_str("imagenet");
  const auto positive = [](CLI::Option* option) {
    option->check(CLI::PositiveNumber)->capture_default_str();
  };
  positive(app.add_option("--batch", options.batch, "images a rank"));
  positive(app.add_option("--blocks", options.blocks, "blocks of each contender"));
  positive(app.add_option("--steps", options.steps, "timed steps of a block"));
  positive(app.add_option("--threads", options.threads, "LibTorch's threads a rank"));
  app.add_flag("--record", options.record, "what the flight record and the ledger take of a step");
  app.add_option("--bucket-bytes", options.bucket_bytes, "0: hora's default")
      ->capture_default_str();
}

}  // namespace

int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  const Ranks ranks;
  Program program(ranks);
  Options options;
  CLI::App app("Times a training step with and without averaging of gradients");
  add_options(app, options);
  if (const auto code = program.parse(app, argc, argv)) return *code;

  program.describe("ranks", std::to_string(world.size()));
  program.describe("nodes", std::to_string(world.cross_size()));
  program.describe("stem", options.stem == vision::Stem::cifar ? "cifar" : "imagenet");
  if (options.record) {
    program.add_whole({"training_step/record_watched", "training_step/record_off"},
                      benchmark::kMillisecond,
                      [&] { return measure_record(world, ranks, options); });
  } else {
    program.add_whole({"training_step/plain", ways[0].name, ways[1].name}, benchmark::kMillisecond,
                      [&] { return measure(world, ranks, options); });
  }
  return program.run();
}
