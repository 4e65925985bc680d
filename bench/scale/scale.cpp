/// Negotiation and allreduce of many ranks in simulated time (SimGrid's SMPI).
///
/// One process simulates all ranks; computation costs no simulated time but what memory.h lets
/// pass. Prints, and writes as JSON in Google Benchmark's format, the slowest rank's time of each
/// round: of equal rounds the last one.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/scale/contenders.h"
#include "core/log.h"

namespace {

using bench::scale::Job;

struct Options {
  std::string network = "unnamed";
  std::string out;
  std::vector<std::size_t> sizes = {4, 25 << 20};
  std::string algorithm = "direct";
  int ranks = 0;
  int ranks_per_node = 8;
  double memory_bandwidth = 1e11;
  std::size_t chunk = 0;
  std::size_t ring_sizes = 2;
  bool no_linear = false;
};

Options parse(int argc, char** argv, int ranks) {
  Options options;
  options.ranks = ranks;
  CLI::App app("Negotiation and allreduce in simulated time.");
  app.add_option("--network", options.network, "what the results call it");
  app.add_option("--ranks-per-node", options.ranks_per_node);
  app.add_option("--sizes", options.sizes, "bytes of the allreduces")->delimiter(',');
  app.add_option("--ring-sizes", options.ring_sizes,
                 "so many of these as a flat ring as well, whose messages grow as ranks squared");
  app.add_option("--algorithm", options.algorithm, "HORA_CROSS_ALGORITHM");
  app.add_option("--chunk", options.chunk, "HORA_CHUNK_SIZE");
  app.add_option("--memory-bandwidth", options.memory_bandwidth, "of a node, bytes a second");
  app.add_flag("--no-linear", options.no_linear, "without the linear coordinators");
  app.add_option("--out", options.out, "JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

Job job_of(const Options& options) {
  Job job;
  job.shape.ranks = options.ranks;
  job.shape.ranks_per_node = options.ranks_per_node;
  job.shape.memory_bandwidth = options.memory_bandwidth;
  hora::Settings& settings = job.shape.settings;
  const hora::SettingAssignment algorithm{"HORA_CROSS_ALGORITHM", options.algorithm};
  settings = hora::parse_settings({&algorithm, 1});
  settings.id_capacity = 64;
  settings.chunk_size = options.chunk;
  // Simulated and host's time have nothing in common.
  settings.stall_warning = {};
  settings.timeout = {};
  job.topology = bench::scale::topology_of(options.ranks, options.ranks_per_node);
  for (int node = 0; node < job.topology.nodes(); ++node) {
    job.nodes.push_back(
        std::make_unique<bench::scale::SimulatedNode>(job.topology, settings, node));
  }
  job.sizes = options.sizes;
  job.ring_sizes = options.ring_sizes;
  job.coordinator = !options.no_linear;
  return job;
}

/// The life of one simulated rank.
void run_rank(Job& job, int rank) {
  bench::scale::run_hora(job, rank);
  if (job.coordinator) {
    bench::scale::run_coordinator(job, rank, bench::scale::Senders::ranks);
    bench::scale::run_coordinator(job, rank, bench::scale::Senders::leaders);
  }
  bench::scale::run_ring(job, rank);
}

nlohmann::json results_of(const Options& options, const Job& job, double host_seconds) {
  nlohmann::json benchmarks = nlohmann::json::array();
  std::map<std::string, bench::scale::Round> last;
  for (const auto& round : job.rounds.all()) last[round.name] = round;
  for (const auto& [name, round] : last) {
    benchmarks.push_back({{"name", "scale/" + name + "/ranks:" + std::to_string(options.ranks)},
                          {"run_type", "iteration"},
                          {"iterations", 1},
                          {"real_time", round.seconds * 1e6},
                          {"cpu_time", 0},
                          {"time_unit", "us"},
                          {"ranks", options.ranks},
                          {"root_messages", round.root_messages}});
  }
  return {{"context",
           {{"executable", "scale"},
            {"simulated", true},
            {"network", options.network},
            {"ranks_per_node", options.ranks_per_node},
            {"memory_bandwidth", options.memory_bandwidth},
            {"algorithm", options.algorithm},
            {"chunk_bytes", options.chunk},
            {"host_seconds", std::round(host_seconds)}}},
          {"benchmarks", benchmarks}};
}

/// What all ranks share: SMPI calls main() once for each, in one process and one thread.
struct Simulation {
  explicit Simulation(const Options& given) : options(given), job(job_of(given)) {}
  Options options;
  Job job;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  int ended = 0;  ///< ranks
};

int report(const Simulation& simulation) {
  const std::chrono::duration<double> host = std::chrono::steady_clock::now() - simulation.begin;
  const auto results = results_of(simulation.options, simulation.job, host.count());
  for (const auto& one : results["benchmarks"]) {
    std::cout << one["name"].get<std::string>() << ' ' << one["real_time"].get<double>()
              << " us, messages of rank 0: " << one["root_messages"] << '\n';
  }
  if (simulation.options.out.empty()) return 0;
  std::ofstream file(simulation.options.out);
  file << results.dump(1) << '\n';
  if (file.flush()) return 0;
  std::cerr << "scale: cannot write " << simulation.options.out << '\n';
  return 1;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int main(int argc, char** argv) {
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int result = 0;
  try {
    static Simulation simulation(parse(argc, argv, ranks));
    run_rank(simulation.job, rank);
    if (++simulation.ended == ranks) result = report(simulation);
  } catch (const std::exception& error) {
    std::cerr << "scale: simulated rank " << rank << ": " << error.what() << '\n';
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return result;
}
