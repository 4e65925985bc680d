/// allreduce of float32 over all ranks: hora beside Open MPI and beside memory itself.
///
/// Sizes from 4 B to 64 MiB as one tensor (`allreduce/...`), and ResNet-50's 161 gradients one by
/// one by name (`resnet50/...`). See ../README.md.
#include <hora/hora.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/allreduce_perf/comparison.h"
#include "bench/allreduce_perf/contenders.h"
#include "bench/allreduce_perf/resnet50.h"
#include "bench/harness/program.h"
#include "bench/harness/timed_loop.h"

namespace {

using namespace bench;

struct Options {
  std::size_t min_bytes = 4;
  std::size_t max_bytes = std::size_t{64} << 20;
  int factor = 4;
  int blocks = 10;
};

constexpr double resnet50_bar_ms = 15.0;

Contender make(Contenders& contenders, const std::string& name) {
  if (name == "hora_bucket") return contenders.hora(/*in_buffer=*/true);
  if (name == "hora") return contenders.hora(/*in_buffer=*/false);
  if (name == "mpi") return contenders.mpi(/*in_place=*/true);
  if (name == "mpi_out_of_place") return contenders.mpi(/*in_place=*/false);
  if (name == "mpi_copy") return contenders.mpi_copy();
  if (name == "private_memory") return contenders.private_memory();
  throw std::invalid_argument("no contender is called " + name);
}

class AllreducePerf {
 public:
  AllreducePerf(const hora::Context& world, const Ranks& ranks, Program& program,
                const Options& options)
      : world_(world), ranks_(ranks), program_(program), options_(options) {}

  void add(const std::string& operation, const Layout& layout,
           const std::vector<std::string>& contenders) {
    Group group;
    for (const std::string& contender : contenders) {
      group.names.push_back(operation + "/" + contender + "/" + std::to_string(layout.bytes()));
    }
    group.measure = [=, this](const std::vector<std::size_t>& selected) {
      std::vector<std::string> chosen;
      for (const std::size_t i : selected) chosen.push_back(contenders[i]);
      return measure(operation, layout, chosen);
    };
    program_.add(std::move(group));
  }

  void print_comparison() const {
    if (ranks_.rank() != 0) return;
    const bool judge = ranks_.size() == 2 && world_.cross_size() == 1;
    if (!ratios_.empty()) std::printf("%s", table_of_ratios(ratios_, judge).c_str());
    if (resnet50_ms_) {
      std::printf("# resnet50/hora: %.2f ms (<= %g)%s\n", *resnet50_ms_, resnet50_bar_ms,
                  judge && *resnet50_ms_ > resnet50_bar_ms ? " *" : "");
    }
  }

 private:
  std::vector<Measurement> measure(const std::string& operation, const Layout& layout,
                                   const std::vector<std::string>& names) {
    Contenders memory(world_, ranks_, layout, operation);
    std::vector<Contender> contenders;
    for (const std::string& name : names) contenders.push_back(make(memory, name));
    LoopOptions loop;
    loop.min_seconds = program_.min_time();
    loop.blocks = options_.blocks;
    const auto timings = time_alternately(ranks_, contenders, loop);

    std::map<std::string, Blocks> blocks;
    std::vector<Measurement> measurements;
    for (std::size_t i = 0; i < names.size(); ++i) {
      blocks[names[i]] = timings[i].blocks;
      measurements.push_back(measurement_of(timings[i], layout));
    }
    const auto ratios = operation == "allreduce" ? ratios_of(blocks) : no_ratios_;
    for (std::size_t i = 0; i < names.size(); ++i) {
      for (const auto& [column, ratio] : ratios) {
        const auto space = column.find(' ');
        if (column.substr(0, space) == names[i]) {
          measurements[i].counters[column.substr(space + 1)] = ratio;
        }
      }
      if (operation == "resnet50" && names[i] == "hora") {
        resnet50_ms_ = measurements[i].seconds * 1e3;
      }
    }
    if (!ratios.empty()) ratios_[layout.bytes()] = ratios;
    return measurements;
  }

  Measurement measurement_of(const Timing& timing, const Layout& layout) const {
    const auto seconds = flatten(timing.blocks);
    Measurement result;
    result.seconds = quantile(seconds, 0.5);
    result.iterations = timing.iterations();
    result.label = "float sum";
    const auto bytes = static_cast<double>(layout.bytes());
    const double algorithm_bandwidth = bytes / result.seconds / 1e9;
    const double ranks = ranks_.size();
    result.counters = {{"bytes", bytes},
                       {"count", bytes / sizeof(float)},
                       {"tensors", static_cast<double>(layout.counts.size())},
                       {"p99_us", quantile(seconds, 0.99) * 1e6},
                       {"algbw", algorithm_bandwidth},
                       {"busbw", algorithm_bandwidth * 2.0 * (ranks - 1.0) / ranks},
                       {"wrong", static_cast<double>(timing.wrong)}};
    return result;
  }

  const hora::Context& world_;
  const Ranks& ranks_;
  Program& program_;
  const Options& options_;
  const std::map<std::string, double> no_ratios_;
  std::map<std::size_t, std::map<std::string, double>> ratios_;
  std::optional<double> resnet50_ms_;
};

// hora::init raises malloc's thresholds, from which MPI gains too.
std::string malloc_thresholds(const hora::Context& world) {
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr) return "from the environment";
  return world.settings().malloc_tuning ? "raised by hora::init" : "the C library's";
}

}  // namespace

int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  const Ranks ranks;
  Program program(ranks);
  Options options;
  CLI::App app("Times allreduce of hora beside MPI_Allreduce and beside memory itself");
  app.add_option("--min-bytes", options.min_bytes, "smallest tensor")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::size_t{4}, std::size_t{1} << 30))
      ->capture_default_str();
  app.add_option("--max-bytes", options.max_bytes, "largest tensor")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::size_t{4}, std::size_t{1} << 30))
      ->capture_default_str();
  app.add_option("--factor", options.factor, "between sizes")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--blocks", options.blocks, "blocks of each contender")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  if (const auto code = program.parse(app, argc, argv)) return *code;

  program.describe("ranks", std::to_string(world.size()));
  program.describe("nodes", std::to_string(world.cross_size()));
  program.describe("malloc_thresholds", malloc_thresholds(world));

  AllreducePerf perf(world, ranks, program, options);
  for (std::size_t bytes = options.min_bytes / sizeof(float) * sizeof(float);
       bytes <= options.max_bytes; bytes *= static_cast<std::size_t>(options.factor)) {
    perf.add("allreduce", Layout({bytes / sizeof(float)}),
             {"hora_bucket", "hora", "mpi", "mpi_out_of_place", "mpi_copy", "private_memory"});
  }
  perf.add("resnet50", Layout(resnet50_gradients()), {"hora", "hora_bucket", "mpi"});
  const int code = program.run(/*columns=*/true);
  perf.print_comparison();
  return code;
}
