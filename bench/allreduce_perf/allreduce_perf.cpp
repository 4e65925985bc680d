/// allreduce over all ranks: hora beside Open MPI, gloo and memory itself.
///
/// Sizes from 4 B to 64 MiB as one tensor (`allreduce/...`), and in float32 ResNet-50's 161
/// gradients one by one by name (`resnet50/...`). See ../README.md.
#include <hora/hora.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/allreduce_perf/contenders.h"
#include "bench/allreduce_perf/typed_values.h"
#include "bench/allreduce_perf/workload.h"
#include "bench/harness/ranks.h"
#include "bench/harness/sweep.h"

namespace {

using namespace bench;

constexpr double resnet50_bar_ms = 15.0;

void print_comparison(const Sweep& allreduce, const Sweep& resnet50, bool judge) {
  std::printf("%s", allreduce.table(judge).c_str());
  const auto found = resnet50.seconds().find("hora");
  if (found == resnet50.seconds().end()) return;
  const double milliseconds = found->second * 1e3;
  std::printf("# resnet50/hora: %.2f ms (<= %g)%s\n", milliseconds, resnet50_bar_ms,
              judge && milliseconds > resnet50_bar_ms ? " *" : "");
}

}  // namespace

int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  const Ranks ranks;
  Program program(ranks);
  SweepOptions options;
  CLI::App app("Times allreduce of hora beside MPI_Allreduce and beside memory itself");
  options.add_to(app);
  std::string type_name = "float";
  app.add_option("--type", type_name, "of the elements")
      ->check(CLI::IsMember(type_names()))
      ->capture_default_str();
  if (const auto code = program.parse(app, argc, argv)) return *code;

  const hora::DataType type = type_of(type_name);
  program.describe("type", type_name);
  program.describe("ranks", std::to_string(world.size()));
  program.describe("nodes", std::to_string(world.cross_size()));
  program.describe("malloc_thresholds", malloc_thresholds(world.settings().malloc_tuning));

  Sweep allreduce(ranks, program, options, "allreduce", allreduce_bars());
  Sweep resnet50(ranks, program, options, "resnet50", {});
  const auto add = [&](Sweep& sweep, const std::string& operation, hora::DataType of_type,
                       const Layout& layout, const std::vector<std::string>& contenders) {
    const Volume volume{.bytes = layout.elements() * hora::size_of(of_type),
                        .element_bytes = hora::size_of(of_type),
                        .tensors = layout.counts.size(),
                        .bus_factor = 2.0 * (ranks.size() - 1) / ranks.size(),
                        .label = type_name + " sum"};
    sweep.add(volume, contenders, [=, &world, &ranks] {
      return std::make_unique<AllreduceContenders>(world, ranks, of_type, layout, operation);
    });
  };
  for (const std::size_t bytes : options.sizes(hora::size_of(type))) {
    add(allreduce, "allreduce", type, Layout({bytes / hora::size_of(type)}),
        allreduce_contenders(type));
  }
  if (type == hora::DataType::float32) {
    add(resnet50, "resnet50", type, Layout(resnet50_gradients()), resnet50_contenders());
  }
  const int code = program.run(/*columns=*/true);
  if (ranks.rank() == 0) {
    print_comparison(allreduce, resnet50, ranks.size() == 2 && world.cross_size() == 1);
  }
  return code;
}
