/// What averaging gradients adds to a training step: hora in its ways beside the bare optimizer and
/// beside others that average. See ../README.md.
///
/// Blocks of steps of the contenders alternate, in the same processes. A time is the slowest rank's
/// median; the first step of a block is left out, and four before all.
/// Run under mpirun with --bind-to none.
#include <hora/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/program.h"
#include "bench/harness/ranks.h"
#include "bench/training_step/contender.h"
#include "bench/training_step/network.h"
#include "bench/training_step/record.h"
#include "bench/training_step/step_options.h"
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
  Entry(const Surroundings& surroundings, const StepOptions& options, const ContenderKind& its_kind)
      : kind(its_kind),
        network(make_network(options.network, options.batch,
                             1 + static_cast<std::uint64_t>(surroundings.world.rank()))) {
    hora::broadcast_parameters(surroundings.world, *network.module);
    contender = kind.make(surroundings, network);
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

std::vector<Measurement> measure(const hora::Context& world, const Ranks& ranks,
                                 const StepOptions& options) {
  const Surroundings surroundings{world, ranks, options.bucket_bytes};
  std::list<Entry> entries;  // which stay where they are
  for (const auto& name : options.contenders) {
    entries.emplace_back(surroundings, options, contender_kind(name));
  }
  Entry& plain = entries.front();
  const auto first_weights = copy_of_weights(plain.network);
  for (int step = 0; step < warm_up_steps; ++step) {
    for (Entry& entry : entries) entry.step();
  }
  for (Entry& entry : entries) entry.contender->take_counters();
  for (int block = 0; block < options.blocks; ++block) {
    for (Entry& entry : entries) {
      time_block(world, options.steps, options.blocks, entry.times, entry.network,
                 *entry.contender);
    }
  }

  std::vector<Measurement> result;
  for (Entry& entry : entries) {
    Measurement& measurement = result.emplace_back(measurement_of(ranks, entry.times));
    measurement.counters.merge(entry.contender->take_counters());
  }
  const Expected expected = expected_of(world, plain, first_weights);
  auto measurement = result.begin();
  for (Entry& entry : entries) {
    Measurement& its = *measurement++;
    if (!entry.kind.averages) continue;
    add_ratios(ranks, entry.times, plain.times, "plain", its);
    its.counters["wrong"] =
        ranks.max(error_of_step(entry, expected) <= entry.kind.tolerance ? 0.0 : 1.0);
  }
  return result;
}

void add_options(CLI::App& app, StepOptions& options) {
  std::vector<std::string> networks;
  for (const NetworkKind& kind : network_kinds()) networks.emplace_back(kind.name);
  app.add_option("--network", options.network, "what is trained")
      ->check(CLI::IsMember(networks))
      ->capture_default_str();
  app.add_option("--contenders", options.contenders,
                 "which of them, with commas between; plain is always among them")
      ->delimiter(',')
      ->check(CLI::IsMember(present_contenders()))
      ->default_str("all");
  const auto positive = [](CLI::Option* option) {
    option->check(CLI::PositiveNumber)->capture_default_str();
  };
  app.add_option("--batch", options.batch, "samples a rank; 0: the network's own")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  positive(app.add_option("--blocks", options.blocks, "blocks of each contender"));
  positive(app.add_option("--steps", options.steps, "timed steps of a block"));
  positive(app.add_option("--threads", options.threads, "LibTorch's threads a rank"));
  app.add_flag("--record", options.record, "what the flight record and the ledger take of a step");
  app.add_option("--bucket-bytes", options.bucket_bytes, "0: hora's default")
      ->capture_default_str();
}

/// In the table's order; `plain` first.
std::vector<std::string> chosen_contenders(const std::vector<std::string>& asked_for) {
  std::vector<std::string> names;
  for (const std::string& name : present_contenders()) {
    const bool wanted = asked_for.empty() || names.empty() ||
                        std::find(asked_for.begin(), asked_for.end(), name) != asked_for.end();
    if (wanted) names.push_back(name);
  }
  return names;
}

void print_absent() {
  for (const ContenderKind& kind : contender_kinds()) {
    if (kind.make == nullptr)
      std::fprintf(stderr, "# %s is left out: %s\n", kind.name, kind.absent);
  }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  using namespace bench;
  hora::Context world = hora::init(argc, argv);
  const Ranks ranks;
  Program program(ranks);
  StepOptions options;
  CLI::App app("Times a training step with and without averaging of gradients");
  add_options(app, options);
  if (const auto code = program.parse(app, argc, argv)) return *code;
  options.contenders = chosen_contenders(options.contenders);
  torch::set_num_threads(options.threads);

  const NetworkKind& network = network_kind(options.network);
  program.describe("ranks", std::to_string(world.size()));
  program.describe("nodes", std::to_string(world.cross_size()));
  program.describe("network", network.name);
  program.describe("batch", std::to_string(options.batch > 0 ? options.batch : network.batch));
  if (options.record) {
    program.add_whole({"training_step/record_watched", "training_step/record_off"},
                      benchmark::kMillisecond,
                      [&] { return measure_record(world, ranks, options); });
    return program.run();
  }
  if (ranks.rank() == 0) print_absent();
  std::vector<std::string> names;
  for (const std::string& name : options.contenders) names.push_back("training_step/" + name);
  program.add_whole(names, benchmark::kMillisecond, [&] { return measure(world, ranks, options); });
  return program.run();
}
