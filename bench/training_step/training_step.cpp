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
#include <string>
#include <vector>

#include "bench/harness/program.h"
#include "bench/harness/ranks.h"
#include "bench/training_step/alternation.h"
#include "bench/training_step/contender.h"
#include "bench/training_step/network.h"
#include "bench/training_step/record.h"
#include "bench/training_step/step_options.h"

namespace bench {
namespace {

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
  program.add_whole(names, benchmark::kMillisecond,
                    [&] { return measure_alternately(world, ranks, options); });
  return program.run();
}
