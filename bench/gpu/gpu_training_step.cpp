/// What averaging gradients adds to a training step of ResNet-50 on a GPU: 224x224 images, SGD with
/// momentum, in fp32, TF32, and fp16 and bf16 by autocast.
///
/// Blocks of steps alternate between the bare optimizer (`plain`) and hora (`hora`), in the same
/// process and on models of their own. `step` is a block's time from one synchronisation with the
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
#include <optional>
#include <string>
#include <vector>

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

class Training {
 public:
  Training(const hora::Context& world, const Options& options, bool averaged)
      : model_(vision::make_model("resnet50", {.channels_last = options.channels_last})),
        sgd_(model_->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)) {
    const auto device = hora::local_device(world);
    const auto format =
        options.channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
    model_->to(device);
    images_ = torch::randn({options.batch, 3, 224, 224}, device).contiguous(format);
    labels_ = torch::randint(1000, {options.batch}, torch::dtype(torch::kLong).device(device));
    if (!averaged) return;
    hora::broadcast_parameters(world, *model_);
    optimizer_.emplace(world, sgd_, model_->named_parameters());
  }

  void step(const Precision& precision) {
    if (optimizer_) {
      optimizer_->zero_grad();
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
  bool finite() const { return torch::isfinite(model_->parameters().front()).all().item<bool>(); }

 private:
  std::shared_ptr<vision::Classifier> model_;
  torch::optim::SGD sgd_;
  torch::Tensor images_, labels_;
  std::optional<hora::DistributedOptimizer> optimizer_;
};

struct Times {
  bench::Blocks step;
  std::vector<double> host;
};

void time_block(const hora::Context& world, const Options& options, const Precision& precision,
                Training& training, Times& times) {
  hora::barrier(world);
  training.step(precision);
  torch::cuda::synchronize();
  auto begin = Clock::now();
  for (int i = 0; i < options.steps; ++i) training.step(precision);
  torch::cuda::synchronize();
  times.step.push_back({seconds_since(begin) / options.steps});
  for (int i = 0; i < 3; ++i) {
    begin = Clock::now();
    training.step(precision);
    times.host.push_back(seconds_since(begin));
    torch::cuda::synchronize();
  }
}

bool measure(const hora::Context& world, const Options& options, const Precision& precision) {
  at::globalContext().setAllowTF32CuBLAS(precision.tf32);
  at::globalContext().setAllowTF32CuDNN(precision.tf32);
  at::globalContext().setBenchmarkCuDNN(true);
  torch::manual_seed(1);
  Training plain(world, options, false);
  Training averaged(world, options, true);
  for (int i = 0; i < 5; ++i) {
    plain.step(precision);
    averaged.step(precision);
  }
  torch::cuda::synchronize();
  averaged.optimizer().reset_statistics();
  Times plain_times;
  Times hora_times;
  for (int block = 0; block < options.blocks; ++block) {
    time_block(world, options, precision, plain, plain_times);
    time_block(world, options, precision, averaged, hora_times);
  }
  const auto statistics = averaged.optimizer().statistics();
  const auto milliseconds = [](std::vector<double> values) {
    return bench::quantile(std::move(values), 0.5) * 1e3;
  };
  const double waited = std::chrono::duration<double, std::milli>(statistics.waited).count() /
                        static_cast<double>(statistics.steps);
  if (world.rank() == 0) {
    std::printf(
        "%s: step plain %.3f ms, hora %.3f ms, hora/plain %.4f; host plain %.3f ms, hora %.3f ms, "
        "difference %.3f ms, of it waiting %.3f ms; hidden share %.2f\n",
        precision.name, milliseconds(bench::flatten(plain_times.step)),
        milliseconds(bench::flatten(hora_times.step)),
        bench::ratio_of_blocks(hora_times.step, plain_times.step), milliseconds(plain_times.host),
        milliseconds(hora_times.host),
        milliseconds(hora_times.host) - milliseconds(plain_times.host), waited,
        statistics.hidden_share());
    std::fflush(stdout);
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
  app.add_option("--precision", only, "fp32, tf32, fp16 or bf16; otherwise all");
  CLI11_PARSE(app, argc, argv);
  bool right = true;
  for (const Precision& precision : precisions) {
    if (only.empty() || only == precision.name) right &= measure(world, options, precision);
  }
  return right ? 0 : 1;
}
