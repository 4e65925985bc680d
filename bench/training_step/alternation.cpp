#include "bench/training_step/alternation.h"

#include <hora/torch.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <list>
#include <memory>

#include "bench/training_step/contender.h"
#include "bench/training_step/network.h"
#include "bench/training_step/step_times.h"

namespace bench {
namespace {

std::vector<torch::Tensor> copy_of_weights(const Network& network) {
  std::vector<torch::Tensor> copies;
  for (const auto& weight : network.module->parameters()) copies.push_back(weight.detach().clone());
  return copies;
}

void set_weights(Network& network, const std::vector<torch::Tensor>& weights) {
  const torch::NoGradGuard no_grad;
  auto parameters = network.module->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(weights[i]);
}

/// A contender in the run. All have the same weights at first, and the same batch on one rank.
struct Entry {
  Entry(const hora::Context& world, const StepOptions& options, const ContenderKind& its_kind)
      : kind(its_kind),
        network(make_network(options.network, options.batch,
                             1 + static_cast<std::uint64_t>(world.rank()))) {
    hora::broadcast_parameters(world, *network.module);
  }
  void step() {
    contender->begin();
    network.loss().backward();
    contender->step();
  }

  const ContenderKind& kind;
  Network network;
  std::unique_ptr<Contender> contender;
  StepTimes times;
  std::map<std::string, double> counters;  ///< the contender's own, sums over blocks
};

/// What a step must be, in double precision.
struct Expected {
  std::vector<torch::Tensor> weights;    ///< where it begins
  std::vector<torch::Tensor> gradients;  ///< averaged over the ranks
};

/// Collective. Gradients by a network that takes no step.
Expected expected_of(const hora::Context& world, Entry& plain,
                     const std::vector<torch::Tensor>& weights) {
  set_weights(plain.network, weights);
  plain.contender->begin();
  plain.network.loss().backward();
  Expected expected{weights, {}};
  for (const auto& parameter : plain.network.module->parameters()) {
    expected.gradients.push_back(hora::allreduce(world, parameter.grad().to(torch::kDouble)));
  }
  return expected;
}

/// The largest difference between what a step from expected.weights makes of the weights and what
/// SGD with momentum makes of them, as a share of learning rate x the parameter's largest gradient.
/// The momentum is learned from the step before, so that it does not matter who keeps it, and
/// where.
double error_of_step(Entry& entry, const Expected& expected) {
  const auto before = copy_of_weights(entry.network);
  entry.step();
  const auto after = copy_of_weights(entry.network);
  set_weights(entry.network, expected.weights);
  entry.step();
  const auto result = copy_of_weights(entry.network);
  double worst = 0.0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const auto velocity = after[i].to(torch::kDouble) - before[i].to(torch::kDouble);
    const auto wanted = expected.weights[i].to(torch::kDouble) + momentum * velocity -
                        learning_rate * expected.gradients[i];
    const double error = (result[i].to(torch::kDouble) - wanted).abs().max().item<double>();
    // Three sums were rounded to float32.
    const double largest = std::max({before[i].abs().max().item<double>(),
                                     expected.weights[i].abs().max().item<double>(),
                                     result[i].abs().max().item<double>()});
    const double rounding = 3.0 * std::numeric_limits<float>::epsilon() * largest;
    const double gradient = learning_rate * expected.gradients[i].abs().max().item<double>();
    worst = std::max(worst, std::max(error - rounding, 0.0) / std::max(gradient, 1e-30));
  }
  return worst;
}

/// The contenders, and the context that some of them live in.
class Alternation {
 public:
  Alternation(hora::Context& world, const Ranks& ranks, const StepOptions& options)
      : world_(world), ranks_(ranks), options_(options) {
    for (const auto& name : options.contenders) {
      entries_.emplace_back(world, options, contender_kind(name));
    }
    first_weights_ = copy_of_weights(plain().network);
  }

  Entry& plain() { return entries_.front(); }
  std::list<Entry>& entries() { return entries_; }

  /// Collective. Calls `use` for the contenders without the arena, then for those with it, warmed
  /// up, each in its context.
  template <class Use>
  void take_turns(Use use) {
    for (const bool in_arena : {false, true}) {
      std::vector<Entry*> turn;
      for (Entry& entry : entries_) {
        if (entry.kind.in_arena == in_arena) turn.push_back(&entry);
      }
      if (turn.empty()) continue;
      open(in_arena);
      const Surroundings surroundings{world_, ranks_, options_.bucket_bytes};
      for (Entry* entry : turn) {
        if (entry->contender == nullptr) {
          entry->contender = entry->kind.make(surroundings, entry->network);
          const int steps = entry->times.wall.empty() ? warm_up_steps : warm_up_steps_again;
          for (int step = 0; step < steps; ++step) entry->step();
        }
        entry->contender->take_counters();
      }
      for (Entry* entry : turn) use(*entry);
      for (Entry* entry : turn) {
        if (entry->kind.of_context) entry->contender.reset();
      }
    }
  }

  /// Collective.
  void measure_block() {
    take_turns([&](Entry& entry) {
      time_block(world_, options_.steps, options_.blocks, entry.times, entry.network,
                 *entry.contender);
      for (const auto& [key, value] : entry.contender->take_counters()) {
        entry.counters[key] += value / options_.blocks;
      }
    });
  }

  /// Collective. Adds "wrong" to the measurements, one for each contender.
  void verify(std::vector<Measurement>& measurements) {
    const Expected expected = expected_of(world_, plain(), first_weights_);
    take_turns([&](Entry& entry) {
      if (!entry.kind.averages) return;
      auto measurement = measurements.begin();
      for (const Entry& other : entries_) {
        if (&other == &entry) break;
        ++measurement;
      }
      measurement->counters["wrong"] =
          ranks_.max(error_of_step(entry, expected) <= entry.kind.tolerance ? 0.0 : 1.0);
    });
  }

 private:
  /// Collective.
  void open(bool in_arena) {
    constexpr const char* variable = "HORA_TENSOR_ARENA";
    ::setenv(variable, in_arena ? "on" : "off", 1);
    world_.shutdown();
    world_ = hora::init();
  }

  hora::Context& world_;
  const Ranks& ranks_;
  const StepOptions& options_;
  std::list<Entry> entries_;  // which stay where they are
  std::vector<torch::Tensor> first_weights_;
};

}  // namespace

std::vector<Measurement> measure_alternately(hora::Context& world, const Ranks& ranks,
                                             const StepOptions& options) {
  Alternation alternation(world, ranks, options);
  for (int block = 0; block < options.blocks; ++block) alternation.measure_block();
  std::vector<Measurement> result;
  for (Entry& entry : alternation.entries()) {
    Measurement& measurement = result.emplace_back(measurement_of(ranks, entry.times));
    measurement.counters.merge(entry.counters);
    if (entry.kind.averages) {
      add_ratios(ranks, entry.times, alternation.plain().times, "plain", measurement);
    }
  }
  alternation.verify(result);
  return result;
}

}  // namespace bench
