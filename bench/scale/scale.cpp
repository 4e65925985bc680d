/// Negotiation and allreduce of many ranks in simulated time (SimGrid's SMPI).
///
/// One process simulates all ranks; computation costs no simulated time but what memory.h lets
/// pass. Prints, and writes as JSON in Google Benchmark's format, the slowest rank's time of each
/// round: of equal rounds the last one.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <simgrid/s4u.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/scale/world.h"
#include "core/base/log.h"
#include "ops/cross/cross_group.h"

namespace bench::scale {
namespace {

using hora::internal::OperationKind;
using hora::internal::Signature;

/// One operation of all ranks, which begin at one moment.
struct Round {
  std::string name;                 ///< "contender/operation"
  double seconds = 0;               ///< of the slowest rank
  std::uint64_t root_messages = 0;  ///< that rank 0 sent and received
};

/// The rounds of a run, as the ranks find them. They are in one process and one thread: no locks.
class Rounds {
 public:
  /// Blocks the simulated rank until the next round of all ranks begins, which is always at the
  /// same simulated time; the round's number.
  std::size_t begin(int rank, const std::string& name) {
    const auto index = static_cast<std::size_t>(rank);
    if (next_.size() <= index) next_.resize(index + 1);
    const std::size_t round = next_[index]++;
    if (round == rounds_.size()) rounds_.push_back({.name = name});
    simgrid::s4u::this_actor::sleep_until(begin_of(round));
    return round;
  }
  void end(std::size_t round, int rank, const MessageCount& before, const MessageCount& after) {
    Round& of = rounds_[round];
    of.seconds = std::max(of.seconds, simgrid::s4u::Engine::get_clock() - begin_of(round));
    if (rank == 0) {
      of.root_messages = after.sent - before.sent + after.received - before.received;
    }
  }
  const std::vector<Round>& all() const { return rounds_; }

 private:
  /// In simulated seconds, further apart than any round takes.
  static double begin_of(std::size_t round) { return static_cast<double>(round + 1) * 1000; }

  std::vector<Round> rounds_;
  std::vector<std::size_t> next_;  ///< by rank
};

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

constexpr int kRepetitions = 2;

struct Job {
  Options options;
  WorldShape shape;
  hora::internal::Topology topology;
  std::vector<std::unique_ptr<SimulatedNode>> nodes;
  Rounds rounds;
};

// About what hora's report of a name takes.
constexpr std::size_t kRequestBytes = 128;

std::string allreduce_name(const char* contender, std::size_t bytes) {
  return std::string(contender) + "/allreduce/bytes:" + std::to_string(bytes);
}

void check_sum(const std::byte* data, std::size_t bytes, int ranks, int rank) {
  std::vector<float> values(bytes / sizeof(float));
  std::memcpy(values.data(), data, bytes);
  const auto wrong =
      std::ranges::find_if(values, [&](float value) { return value != static_cast<float>(ranks); });
  if (wrong == values.end()) return;
  throw std::runtime_error("an allreduce of ones over " + std::to_string(ranks) + " ranks gave " +
                           std::to_string(*wrong) + " on rank " + std::to_string(rank));
}

void fill_ones(std::byte* data, std::size_t bytes) {
  const std::vector<float> ones(bytes / sizeof(float), 1.0F);
  std::memcpy(data, ones.data(), bytes);
}

void send(int to, std::size_t bytes, MessageCount& count) {
  const std::array<std::byte, kRequestBytes> message{};
  MPI_Send(message.data(), static_cast<int>(bytes), MPI_BYTE, to, kCoordinatorTag, MPI_COMM_WORLD);
  ++count.sent;
}

void receive(int from, MessageCount& count) {
  std::array<std::byte, kRequestBytes> message;
  MPI_Recv(message.data(), static_cast<int>(message.size()), MPI_BYTE, from, kCoordinatorTag,
           MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  ++count.received;
}

/// hora's engine: a barrier by a new name, by a known one, and allreduces by known names. Results
/// of real memory (memory.h) are checked. Throws std::runtime_error for a wrong one.
void run_hora(Job& job, int rank) {
  const WorldShape& shape = job.shape;
  SimulatedRank own(job.topology, shape,
                    *job.nodes[static_cast<std::size_t>(rank / shape.ranks_per_node)], rank);
  const auto round = [&](const std::string& name, const std::string& tensor,
                         const Signature& signature, std::byte* data) {
    const std::size_t number = job.rounds.begin(rank, name);
    const MessageCount before = own.count();
    own.carry_out(tensor, signature, data);
    job.rounds.end(number, rank, before, own.count());
  };
  Signature barrier;
  barrier.kind = OperationKind::barrier;
  for (int i = 0; i < kRepetitions; ++i) {
    round("hora/first_by_name", "name " + std::to_string(i), barrier, nullptr);
  }
  for (int i = 0; i < kRepetitions; ++i) round("hora/cached", "name 0", barrier, nullptr);
  for (const std::size_t bytes : job.options.sizes) {
    Signature sum;
    sum.shape = hora::Shape({static_cast<std::int64_t>(bytes / sizeof(float))});
    const auto block = own.memory().allocate(bytes);
    const std::string name = allreduce_name("hora", bytes);
    for (int i = 0; i <= kRepetitions; ++i) {
      if (!is_folded(block.data)) fill_ones(block.data, bytes);
      round(i == 0 ? name + "/first" : name, name, sum, block.data);
      if (!is_folded(block.data)) check_sum(block.data, bytes, shape.ranks, rank);
    }
    own.memory().release(block.data);
  }
}

/// Every rank (`ranks`), or every leader for its node, sends what it is ready for to rank 0, which
/// answers each one: as Horovod's controller gathers requests.
enum class Senders { ranks, leaders };
void run_coordinator(Job& job, int rank, Senders senders) {
  const bool by_leaders = senders == Senders::leaders;
  const int per_node = by_leaders ? job.shape.ranks_per_node : 1;
  const bool leads = rank % per_node == 0;
  std::vector<int> of_node;
  std::vector<int> others;
  if (leads) {
    for (int r = 1; r < per_node; ++r) of_node.push_back(rank + r);
  }
  if (rank == 0) {
    for (int r = per_node; r < job.shape.ranks; r += per_node) others.push_back(r);
  }
  for (int i = 0; i < kRepetitions; ++i) {
    MessageCount count;
    const std::size_t number =
        job.rounds.begin(rank, by_leaders ? "linear_of_leaders/negotiation" : "linear/negotiation");
    if (!leads) {
      send(rank / per_node * per_node, 0, count);
      receive(rank / per_node * per_node, count);
    } else {
      for (std::size_t child = 0; child < of_node.size() + others.size(); ++child) {
        receive(MPI_ANY_SOURCE, count);
      }
      if (rank != 0) {
        send(0, kRequestBytes, count);
        receive(0, count);
      }
      for (const int leader : others) send(leader, kRequestBytes, count);
      for (const int neighbour : of_node) send(neighbour, 0, count);
    }
    job.rounds.end(number, rank, {}, count);
  }
}

/// A ring over all ranks, without negotiation.
void run_ring(Job& job, int rank) {
  OpenRequests requests;
  MessageCount count;
  std::vector<int> members(static_cast<std::size_t>(job.shape.ranks));
  std::iota(members.begin(), members.end(), 0);
  SmpiPointToPoint link(requests, count, rank, members);
  SimulatedSpace space({job.shape.memory_bandwidth, job.shape.ranks_per_node});
  hora::internal::CrossResources resources(link, space);
  SimulatedMemory memory;
  std::uint64_t sequence = 0;
  for (std::size_t s = 0; s < std::min(job.options.ring_sizes, job.options.sizes.size()); ++s) {
    const std::size_t bytes = job.options.sizes[s];
    const auto block = memory.allocate(bytes);
    if (!is_folded(block.data)) fill_ones(block.data, bytes);
    const std::size_t number = job.rounds.begin(rank, allreduce_name("flat_ring", bytes));
    const MessageCount before = count;
    auto work =
        hora::internal::kRingAllreduce.start(resources, {}, {block.data, bytes}, sequence++);
    while (!work.poll()) requests.await();
    job.rounds.end(number, rank, before, count);
    if (!is_folded(block.data)) check_sum(block.data, bytes, job.shape.ranks, rank);
    memory.release(block.data);
  }
}

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
  job.options = options;
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
  const bool rdma = options.network == "100g";
  job.topology = topology_of(options.ranks, options.ranks_per_node,
                             rdma ? hora::internal::kRdmaHop : hora::internal::kSocketHop);
  for (int node = 0; node < job.topology.nodes(); ++node) {
    job.nodes.push_back(std::make_unique<SimulatedNode>(job.topology, settings, node));
  }
  return job;
}

/// The life of one simulated rank.
void run_rank(Job& job, int rank) {
  run_hora(job, rank);
  if (!job.options.no_linear) {
    run_coordinator(job, rank, Senders::ranks);
    run_coordinator(job, rank, Senders::leaders);
  }
  run_ring(job, rank);
}

nlohmann::json results_of(const Job& job, double host_seconds) {
  const Options& options = job.options;
  nlohmann::json benchmarks = nlohmann::json::array();
  std::map<std::string, Round> last;
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

/// Shared by all ranks: SMPI calls main() once for each, in one process and one thread.
struct Simulation {
  explicit Simulation(const Options& options) : job(job_of(options)) {}
  Job job;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  int ended = 0;  ///< ranks
};

int report(const Simulation& simulation) {
  const std::chrono::duration<double> host = std::chrono::steady_clock::now() - simulation.begin;
  const auto results = results_of(simulation.job, host.count());
  for (const auto& one : results["benchmarks"]) {
    std::cout << one["name"].get<std::string>() << ' ' << one["real_time"].get<double>()
              << " us, messages of rank 0: " << one["root_messages"] << '\n';
  }
  if (simulation.job.options.out.empty()) return 0;
  std::ofstream file(simulation.job.options.out);
  file << results.dump(1) << '\n';
  if (file.flush()) return 0;
  std::cerr << "scale: cannot write " << simulation.job.options.out << '\n';
  return 1;
}

}  // namespace
}  // namespace bench::scale

extern "C" __attribute__((visibility("default"))) int main(int argc, char** argv) {
  using namespace bench::scale;
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
