#include "bench/training_step/contender.h"

#include <hora/torch.h>
#include <hora/torch/finite_check.h>
#include <hora/torch/optim.h>
#include <mpi.h>

#include <chrono>
#include <optional>
#include <stdexcept>

namespace bench {
namespace {

/// The bare optimizer.
class Plain : public Contender {
 public:
  explicit Plain(Network& network)
      : parameters_(network.module->parameters()), sgd_(parameters_, sgd_options()) {}

  void begin() override {
    for (auto& parameter : parameters_) parameter.mutable_grad().reset();
  }
  void step() override { sgd_.step(); }

 protected:
  std::vector<torch::Tensor> parameters_;
  torch::optim::SGD sgd_;
};

/// MPI_Allreduce of each gradient after backward, in place.
class MpiBlocking final : public Plain {
 public:
  MpiBlocking(const Ranks& ranks, Network& network) : Plain(network), ranks_(ranks) {}

  void step() override {
    for (auto& parameter : parameters_) {
      auto& gradient = parameter.mutable_grad();
      MPI_Allreduce(MPI_IN_PLACE, gradient.data_ptr<float>(), static_cast<int>(gradient.numel()),
                    MPI_FLOAT, MPI_SUM, ranks_.comm());
      gradient.div_(ranks_.size());
    }
    Plain::step();
  }

 private:
  const Ranks& ranks_;
};

/// hora's wrapper around an optimizer.
class Hora final : public Contender {
 public:
  Hora(const Surroundings& surroundings, Network& network,
       std::unique_ptr<torch::optim::Optimizer> optimizer,
       hora::DistributedOptimizerOptions options)
      : optimizer_(std::move(optimizer)) {
    options.bucket_bytes = surroundings.bucket_bytes;
    averaged_.emplace(surroundings.world, *optimizer_, network.module->named_parameters(), options);
  }

  void begin() override { averaged_->zero_grad(); }
  void step() override {
    if (finite_) finite_->check({});
    averaged_->step();
  }
  /// Looks for NaN and Inf before each step.
  void check_finite(const hora::Context& world, Network& network) {
    finite_.emplace(world, network.module->named_parameters());
  }
  std::map<std::string, double> take_counters() override {
    const hora::OptimizerStatistics statistics = averaged_->statistics();
    averaged_->reset_statistics();
    if (statistics.steps == 0) return {};
    return {{"hidden_share", statistics.hidden_share()},
            {"waited_ms", std::chrono::duration<double, std::milli>(statistics.waited).count() /
                              static_cast<double>(statistics.steps)},
            {"gradients_mib", static_cast<double>(statistics.gradient_bytes) * 0x1p-20}};
  }

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<hora::DistributedOptimizer> averaged_;
  std::optional<hora::FiniteCheck> finite_;
};

template <class Sgd>
auto wrapped(const hora::DistributedOptimizerOptions& options = {}) {
  return [options](const Surroundings& surroundings, Network& network) {
    return std::make_unique<Hora>(
        surroundings, network, std::make_unique<Sgd>(network.module->parameters(), sgd_options()),
        options);
  };
}

// Rounded to 8 bits before the sum and after it. (In float16 small gradients would vanish.)
constexpr double bfloat16_tolerance = 0x1p-7;

}  // namespace

torch::optim::SGDOptions sgd_options() {
  return torch::optim::SGDOptions(learning_rate).momentum(momentum);
}

const std::vector<ContenderKind>& contender_kinds() {
  static const std::vector<ContenderKind> kinds{
      {.name = "plain",
       .make = [](const Surroundings&,
                  Network& network) { return std::make_unique<Plain>(network); },
       .averages = false},
      {.name = "hora_copies", .make = wrapped<torch::optim::SGD>(), .of_context = true},
      {.name = "hora_arena",
       .in_arena = true,
       .make = wrapped<torch::optim::SGD>(),
       .of_context = true},
      {.name = "hora_fused",
       .in_arena = true,
       .make = wrapped<hora::optim::SGD>(),
       .of_context = true},
      {.name = "hora_one_pass",
       .in_arena = true,
       .tolerance = float32_tolerance,
       .make = wrapped<hora::optim::SGD>({.sharding = hora::Sharding::fused}),
       .of_context = true},
      {.name = "hora_fused_backward",
       .in_arena = true,
       .tolerance = float32_tolerance,
       .make = wrapped<hora::optim::SGD>({.sharding = hora::Sharding::in_backward}),
       .of_context = true},
      {.name = "hora_bfloat16",
       .in_arena = true,
       .tolerance = bfloat16_tolerance,
       .make = wrapped<torch::optim::SGD>({.compression = hora::Compression::bfloat16}),
       .of_context = true},
      {.name = "hora_finite_check",
       .in_arena = true,
       .make =
           [](const Surroundings& surroundings, Network& network) {
             auto hora = wrapped<torch::optim::SGD>()(surroundings, network);
             hora->check_finite(surroundings.world, network);
             return hora;
           },
       .of_context = true},
      {.name = "c10d_gloo",
       .make = c10d_gloo(),
       .absent = "this LibTorch was built without c10d on gloo, is another than 1.13, or gloo's "
                 "headers (libgloo-dev) were not there"},
      {.name = "mpi_blocking",
       .make =
           [](const Surroundings& surroundings, Network& network) {
             return std::make_unique<MpiBlocking>(surroundings.ranks, network);
           }},
  };
  return kinds;
}

const ContenderKind& contender_kind(const std::string& name) {
  for (const ContenderKind& kind : contender_kinds()) {
    if (kind.name != name) continue;
    if (kind.make == nullptr) throw std::invalid_argument("no " + name + " here: " + kind.absent);
    return kind;
  }
  throw std::invalid_argument("no contender is called " + name);
}

std::vector<std::string> present_contenders() {
  std::vector<std::string> names;
  for (const ContenderKind& kind : contender_kinds()) {
    if (kind.make != nullptr) names.emplace_back(kind.name);
  }
  return names;
}

}  // namespace bench
