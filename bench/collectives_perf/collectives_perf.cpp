/// allgather, broadcast, reduce_scatter and alltoall of float32 over all ranks: hora beside Open
/// MPI. See ../README.md.
#include <hora/hora.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>

#include "bench/collectives_perf/contenders.h"
#include "bench/collectives_perf/operation.h"
#include "bench/harness/sweep.h"

int main(int argc, char** argv) {
  using namespace bench;
  hora::Context world = hora::init(argc, argv);
  const Ranks ranks;
  Program program(ranks);
  SweepOptions options{.min_bytes = 64 * kib};
  CLI::App app("Times hora's collectives other than allreduce beside MPI's");
  options.add_to(app);
  if (const auto code = program.parse(app, argc, argv)) return *code;

  program.describe("ranks", std::to_string(world.size()));
  program.describe("nodes", std::to_string(world.cross_size()));
  program.describe("malloc_thresholds", malloc_thresholds(world.settings().malloc_tuning));

  std::deque<Sweep> sweeps;
  for (const Operation operation : all_operations) {
    Sweep& sweep = sweeps.emplace_back(ranks, program, options, name_of(operation),
                                       collective_bars(world.cross_size() == 1));
    for (const std::size_t bytes :
         options.sizes(sizeof(float) * static_cast<std::size_t>(ranks.size()))) {
      const Volume volume{
          .bytes = bytes,
          .bus_factor = bus_factor(operation, ranks.size()),
          .label = operation == Operation::reduce_scatter ? "float sum" : "float none"};
      sweep.add(volume, {"hora_bucket", "hora", "mpi"}, [=, &world, &ranks] {
        return std::make_unique<CollectiveContenders>(world, ranks, operation,
                                                      bytes / sizeof(float));
      });
    }
  }
  const int code = program.run(/*columns=*/true);
  if (ranks.rank() != 0) return code;
  for (const Sweep& sweep : sweeps) std::printf("%s", sweep.table(ranks.size() == 2).c_str());
  return code;
}
