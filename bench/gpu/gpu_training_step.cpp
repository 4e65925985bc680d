/// Cost of averaging gradients in a training step of ResNet-50 on a GPU: 224x224 images, SGD with
/// momentum, in fp32, TF32, and fp16 and bf16 by autocast.
///
/// Blocks of steps alternate between the bare optimizer (`plain`), hora (`hora`) and, on one rank,
/// LibTorch's own DistributedDataParallel (`c10d`), in the same process and on models of their own.
/// `step` is a block's time from one synchronisation with the
/// GPU to the next, over its steps; `host` the median time until a step's calls have returned, each
/// step begun on an idle GPU, so that nothing waits for room in the launch queue. The difference
/// between the two host times is what hora's calls and hooks take of the training thread.
/// Run under mpirun; 77: no GPU.
#include <ATen/autocast_mode.h>
#include <hora/torch.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/gpu/c10d_ddp.h"
#include "bench/harness/comparison.h"
#include "examples/vision/models/model.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Options {
  std::int64_t batch = 128;
  int blocks = 10;
  int steps = 10;
  bool channels_last = true;
  bool c10d = true;
};

struct Precision {
  const char* name;
  bool tf32;
  std::optional<at::ScalarType> autocast;
};
const Precision precisions[] = {{"fp32", false, {}},
                                {"tf32", true, {}},
                                {"fp16", true, torch::kHalf},
                                {"bf16", true, torch::kBFloat16}};

/// As long as it lives, operations run in `type`; nothing changes without one.
class Autocast {
 public:
  explicit Autocast(const std::optional<at::ScalarType>& type) : on_(type.has_value()) {
    if (!on_) return;
    at::autocast::set_autocast_dtype(at::kCUDA, *type);
    at::autocast::set_autocast_enabled(at::kCUDA, true);
  }
  ~Autocast() {
    if (!on_) return;
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCUDA, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool on_;
};

enum class Way { plain, hora, c10d };

/// A model of its own, trained on one batch.
class Training {
 public:
  Training(const hora::Context& world, const Options& options, Way way)
      : model_(vision::make_model("resnet50", {.channels_last = options.channels_last})),
        sgd_(model_->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)) {
    const auto device = hora::local_device(world);
    const auto format =
        options.channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
    model_->to(device);
    images_ = torch::randn({options.batch, 3, 224, 224}, device).contiguous(format);
    labels_ = torch::randint(1000, {options.batch}, torch::dtype(torch::kLong).device(device));
    if (way == Way::c10d) reducer_ = bench::make_ddp_reducer(*model_);
    if (way != Way::hora) return;
    hora::broadcast_parameters(world, *model_);
    optimizer_.emplace(world, sgd_, model_->named_parameters());
  }

  void step(const Precision& precision) {
    if (optimizer_) {
      optimizer_->zero_grad();
    } else if (reducer_) {
      reducer_->begin();
    } else {
      for (auto& parameter : model_->parameters()) parameter.mutable_grad().reset();
    }
    torch::Tensor loss;
    {
      const Autocast autocast(precision.autocast);
      loss = torch::cross_entropy_loss(model_->forward(images_), labels_);
    }
    loss.backward();
    if (optimizer_) {
      optimizer_->step();
    } else {
      sgd_.step();
    }
  }

  hora::DistributedOptimizer& optimizer() { return *optimizer_; }
  bool averages() const { return optimizer_ || reducer_; }
  bool finite() const { return torch::isfinite(model_->parameters().front()).all().item<bool>(); }

 private:
  std::shared_ptr<vision::Classifier> model_;
  torch::optim::SGD sgd_;
  torch::Tensor images_, labels_;
  std::optional<hora::DistributedOptimizer> optimizer_;
  std::unique_ptr<bench::DdpReducer> reducer_;
};

struct Contender {
  const char* name;
  std::unique_ptr<Training> training;
  bench::Blocks step = {};
  std::vector<double> host = {};
};

void time_block(const hora::Context& world, const Options& options, const Precision& precision,
                Contender& contender) {
  Training& training = *contender.training;
  hora::barrier(world);
  training.step(precision);
  torch::cuda::synchronize();
  auto begin = Clock::now();
  for (int i = 0; i < options.steps; ++i) training.step(precision);
  torch::cuda::synchronize();
  contender.step.push_back({seconds_since(begin) / options.steps});
  for (int i = 0; i < 3; ++i) {
    begin = Clock::now();
    training.step(precision);
    contender.host.push_back(seconds_since(begin));
    torch::cuda::synchronize();
  }
}

/// Those that can be measured, after some steps each; `plain` is the first, `hora` the second.
std::vector<Contender> make_contenders(const hora::Context& world, const Options& options,
                                       const Precision& precision) {
  constexpr int kWarmUp = 5;
  std::vector<Contender> contenders;
  const auto add = [&](const char* name, Way way) {
    auto training = std::make_unique<Training>(world, options, way);
    if (way != Way::plain && !training->averages()) return;
    for (int i = 0; i < kWarmUp; ++i) training->step(precision);
    torch::cuda::synchronize();
    contenders.push_back({name, std::move(training)});
  };
  add("plain", Way::plain);
  add("hora", Way::hora);
  if (!options.c10d || world.size() > 1) return contenders;
  try {
    add("c10d", Way::c10d);
  } catch (const std::exception& error) {
    std::printf("c10d is left out: %s\n", error.what());
  }
  return contenders;
}

void report(const Precision& precision, const Options& options,
            const std::vector<Contender>& contenders, const hora::OptimizerStatistics& statistics) {
  const auto milliseconds = [](std::vector<double> values) {
    return bench::quantile(std::move(values), 0.5) * 1e3;
  };
  const Contender& plain = contenders.front();
  nlohmann::json figures = {{"precision", precision.name},
                            {"batch", options.batch},
                            {"channels_last", options.channels_last}};
  for (const Contender& contender : contenders) {
    const auto over = bench::median_interval(bench::ratios_of_blocks(contender.step, plain.step));
    const double step = milliseconds(bench::flatten(contender.step));
    const double host = milliseconds(contender.host);
    std::printf("%s %-5s: step %.3f ms, over plain %.4f (%.4f to %.4f); host %.3f ms, %+.3f ms\n",
                precision.name, contender.name, step, over.median, over.low, over.high, host,
                host - milliseconds(plain.host));
    figures[contender.name] = {{"step_ms", step},
                               {"over_plain", over.median},
                               {"over_plain_low", over.low},
                               {"over_plain_high", over.high},
                               {"host_ms", host}};
  }
  const double waited = std::chrono::duration<double, std::milli>(statistics.waited).count() /
                        static_cast<double>(statistics.steps);
  std::printf("%s hora : waiting %.3f ms, hidden share %.2f\n", precision.name, waited,
              statistics.hidden_share());
  figures["hora"]["waited_ms"] = waited;
  figures["hora"]["hidden_share"] = statistics.hidden_share();
  std::printf("%s\n", figures.dump().c_str());
  std::fflush(stdout);
}

bool measure(const hora::Context& world, const Options& options, const Precision& precision) {
  at::globalContext().setAllowTF32CuBLAS(precision.tf32);
  at::globalContext().setAllowTF32CuDNN(precision.tf32);
  at::globalContext().setBenchmarkCuDNN(true);
  torch::manual_seed(1);
  std::vector<Contender> contenders = make_contenders(world, options, precision);
  Training& averaged = *contenders[1].training;
  averaged.optimizer().reset_statistics();
  for (int block = 0; block < options.blocks; ++block) {
    for (Contender& contender : contenders) time_block(world, options, precision, contender);
  }
  if (world.rank() == 0) {
    report(precision, options, contenders, averaged.optimizer().statistics());
  }
  return averaged.finite();
}

}  // namespace

int main(int argc, char** argv) {
  if (!torch::cuda::is_available()) {
    std::printf("no GPU here\n");
    return 77;
  }
  const hora::Context world = hora::init(argc, argv);
  Options options;
  std::string only;
  CLI::App app("Times a training step of ResNet-50 on a GPU with and without averaging");
  app.add_option("--batch", options.batch, "images a rank")->capture_default_str();
  app.add_option("--blocks", options.blocks, "blocks of each contender")->capture_default_str();
  app.add_option("--steps", options.steps, "steps of a block")->capture_default_str();
  app.add_option("--channels-last", options.channels_last, "memory format")->capture_default_str();
  app.add_option("--c10d", options.c10d, "whether LibTorch's own averaging is measured, too")
      ->capture_default_str();
  app.add_option("--precision", only, "fp32, tf32, fp16 or bf16; otherwise all");
  CLI11_PARSE(app, argc, argv);
  bool right = true;
  for (const Precision& precision : precisions) {
    if (only.empty() || only == precision.name) right &= measure(world, options, precision);
  }
  return right ? 0 : 1;
}
