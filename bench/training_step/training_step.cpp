/// Cost of averaging gradients in a training step: hora in its ways beside the bare optimizer and
/// beside others that average. See ../README.md.
///
/// Blocks of steps of the contenders alternate, in the same processes. A time is the slowest rank's
/// median; the first step of a block is left out, and four before all.
/// Run under mpirun with --bind-to none.
#include <hora/torch.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/comparison.h"
#include "bench/harness/program.h"
#include "bench/harness/ranks.h"
#include "bench/training_step/contender.h"
#include "bench/training_step/network.h"

namespace bench {
namespace {

/// Before any is timed: LibTorch's first steps are slow.
constexpr int warm_up_steps = 4;
/// Warm-up of a contender that was made anew in a warm process.
constexpr int warm_up_steps_again = 2;

struct StepOptions {
  std::string network = "resnet18";
  std::int64_t batch = 0;  ///< samples a rank; 0: the network's own
  int blocks = 12;         ///< of each contender
  int steps = 8;           ///< timed, of a block
  int threads = 1;         ///< LibTorch's, a rank
  std::size_t bucket_bytes = 0;
  std::vector<std::string> contenders;
};

/// This rank's, in blocks.
struct StepTimes {
  Blocks wall;
  Blocks cpu;  ///< of all threads of this process, one mean a block
  Blocks forward;
  Blocks backward;
  Blocks update;  ///< what follows backward: waiting for averages, and the optimizer
  // Means of a step.
  double page_faults = 0.0;
  double switches = 0.0;           ///< of threads that waited
  double switches_by_force = 0.0;  ///< of threads that another one replaced
};

using Clock = std::chrono::steady_clock;

double cpu_seconds(const rusage& usage) {
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

rusage usage_of_process() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage;
}

struct Step {
  Clock::time_point begin;
  Clock::time_point forward;
  Clock::time_point backward;
  Clock::time_point end;
};

Step run_step(Network& network, Contender& contender) {
  Step step;
  step.begin = Clock::now();
  contender.begin();
  const auto loss = network.loss();
  step.forward = Clock::now();
  loss.backward();
  step.backward = Clock::now();
  contender.step();
  step.end = Clock::now();
  return step;
}

/// Collective. A step that is not timed, then `steps` that are; `blocks` blocks are expected.
void time_block(const hora::Context& world, int steps, int blocks, StepTimes& times,
                Network& network, Contender& contender) {
  hora::barrier(world);
  run_step(network, contender);
  std::vector<Step> timed(static_cast<std::size_t>(steps));
  const rusage before = usage_of_process();
  for (Step& step : timed) step = run_step(network, contender);
  const rusage after = usage_of_process();

  const auto add = [&timed](Blocks& blocks_of, Clock::time_point Step::*begin,
                            Clock::time_point Step::*end) {
    auto& block = blocks_of.emplace_back();
    for (const Step& step : timed) {
      block.push_back(std::chrono::duration<double>(step.*end - step.*begin).count());
    }
  };
  add(times.wall, &Step::begin, &Step::end);
  add(times.forward, &Step::begin, &Step::forward);
  add(times.backward, &Step::forward, &Step::backward);
  add(times.update, &Step::backward, &Step::end);
  times.cpu.push_back({(cpu_seconds(after) - cpu_seconds(before)) / steps});
  const double share = 1.0 / (static_cast<double>(steps) * blocks);
  times.page_faults += static_cast<double>(after.ru_minflt - before.ru_minflt) * share;
  times.switches += static_cast<double>(after.ru_nvcsw - before.ru_nvcsw) * share;
  times.switches_by_force += static_cast<double>(after.ru_nivcsw - before.ru_nivcsw) * share;
}

/// Collective. The slowest rank's median, what is in it, page faults and switches. Each rank is
/// compared with itself: the largest of several noisy values would be too large.
Measurement measurement_of(const Ranks& ranks, const StepTimes& times) {
  const auto steps = flatten(times.wall);
  const auto slowest_ms = [&](const Blocks& blocks) {
    return ranks.max(quantile(flatten(blocks), 0.5)) * 1e3;
  };
  Measurement result;
  result.seconds = ranks.max(quantile(steps, 0.5));
  result.iterations = static_cast<std::int64_t>(steps.size());
  result.counters = {{"p99_ms", ranks.max(quantile(steps, 0.99)) * 1e3},
                     {"forward_ms", slowest_ms(times.forward)},
                     {"backward_ms", slowest_ms(times.backward)},
                     {"update_ms", slowest_ms(times.update)},
                     {"page_faults", ranks.max(times.page_faults)},
                     {"switches", ranks.max(times.switches)},
                     {"switches_by_force", ranks.max(times.switches_by_force)}};
  return result;
}

/// Collective. Adds how many times longer `times` took than `plain`, wall and processor time, to
/// the counters, with its 95 % confidence interval.
void add_ratios(const Ranks& ranks, const StepTimes& times, const StepTimes& plain,
                Measurement& measurement) {
  const Interval wall = median_interval(ratios_of_blocks(times.wall, plain.wall));
  auto& counters = measurement.counters;
  counters["over_plain"] = ranks.max(wall.median);
  counters["over_plain_low"] = ranks.max(wall.low);
  counters["over_plain_high"] = ranks.max(wall.high);
  counters["cpu_over_plain"] = ranks.max(ratio_of_blocks(times.cpu, plain.cpu));
}

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
  Entry(const hora::Context& world, const StepOptions& options, const ContenderKind& its_kind,
        std::size_t its_index)
      : kind(its_kind),
        index(its_index),
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
  std::size_t index;  ///< in the run
  Network network;
  std::unique_ptr<Contender> contender;
  StepTimes times;
  std::map<std::string, double> counters;  ///< the contender's own, sums over blocks
};

/// The right result of a step, in double precision.
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
      entries_.emplace_back(world, options, contender_kind(name), entries_.size());
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
      measurements[entry.index].counters["wrong"] =
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

/// Collective. Blocks of options.contenders alternate, of which the first is `plain`; those with
/// hora's arena in contexts of their own: `world` is shut down, and afterwards another one. Gives a
/// measurement for each, in this order.
std::vector<Measurement> measure_alternately(hora::Context& world, const Ranks& ranks,
                                             const StepOptions& options) {
  Alternation alternation(world, ranks, options);
  for (int block = 0; block < options.blocks; ++block) alternation.measure_block();
  std::vector<Measurement> result;
  for (Entry& entry : alternation.entries()) {
    Measurement& measurement = result.emplace_back(measurement_of(ranks, entry.times));
    measurement.counters.merge(entry.counters);
    if (entry.kind.averages) {
      add_ratios(ranks, entry.times, alternation.plain().times, measurement);
    }
  }
  alternation.verify(result);
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
  if (ranks.rank() == 0) print_absent();
  std::vector<std::string> names;
  for (const std::string& name : options.contenders) names.push_back("training_step/" + name);
  program.add_whole(names, benchmark::kMillisecond,
                    [&] { return measure_alternately(world, ranks, options); });
  return program.run();
}
