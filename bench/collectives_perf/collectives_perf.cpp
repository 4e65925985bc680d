/// allgather, broadcast, reduce_scatter and alltoall of float32 over all ranks: hora beside Open
/// MPI. See ../README.md.
#include <hora/hora.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/collectives_perf/operation.h"
#include "bench/harness/ranks.h"
#include "bench/harness/sweep.h"
#include "bench/peers/gloo.h"

namespace bench {
namespace {

/// `hora_bucket`: the input lies in a hora::Buffer. `hora`: in plain memory. Both give results in
/// hora's memory, the one before destroyed first, as in a loop; a broadcast works in place. `mpi`:
/// between plain arrays that were there and touched before. Thread rule: one thread.
class CollectiveContenders final : public Contenders {
 public:
  /// Collective. `count`: as of extents_of.
  CollectiveContenders(const hora::Context& world, const Ranks& ranks, Operation operation,
                       std::size_t count)
      : world_(world),
        ranks_(ranks),
        operation_(operation),
        count_(count),
        extents_(extents_of(operation, count, ranks.size())),
        buffer_(world, extents_.input * sizeof(float)),
        input_(extents_.input),
        output_(operation == Operation::broadcast ? 0 : extents_.result) {}

  Contender contender(const std::string& name) override {
    if (name == "hora_bucket") return hora(reinterpret_cast<float*>(buffer_.data()), name);
    if (name == "hora") return hora(input_.data(), name);
    float* const result = operation_ == Operation::broadcast ? input_.data() : output_.data();
    if (name == "mpi") {
      return on(
          input_.data(), [this] { call_mpi(); }, [result] { return result; });
    }
    if (name == "gloo") {
      gloo_ = connect_gloo(ranks_);
      return on(
          input_.data(), [this] { call_gloo(); }, [result] { return result; });
    }
    throw std::invalid_argument("no contender is called " + name);
  }

 private:
  Contender hora(float* input, const std::string& name) {
    const auto view = hora::view(input, static_cast<std::int64_t>(extents_.input));
    const std::string tensor = name_of(operation_) + "." + name + "." + std::to_string(count_);
    if (operation_ == Operation::broadcast) {
      return on(
          input,
          [this, view, tensor] { hora::broadcast(world_, view, {.name = tensor, .root = root}); },
          [input] { return input; });
    }
    return on(
        input,
        [this, view, tensor] {
          result_ = {};
          result_ = exchange(view, tensor);
        },
        [this] { return result_.values<float>().data(); });
  }

  Contender on(float* input, std::function<void()> operate, std::function<const float*()> result) {
    return {[this, input](std::uint32_t round) {
              write_values(input, extents_.input, ranks_.rank(), round);
            },
            std::move(operate),
            [this, result = std::move(result)](std::uint32_t round) {
              return count_wrong(operation_, result(), count_, ranks_.rank(), ranks_.size(), round);
            }};
  }

  hora::Result exchange(const hora::TensorView& view, const std::string& name) const {
    if (operation_ == Operation::allgather) return hora::allgather(world_, view, {.name = name});
    if (operation_ == Operation::alltoall) return hora::alltoall(world_, view, {.name = name});
    return hora::reduce_scatter(world_, view, {.name = name, .op = hora::ReduceOp::sum});
  }

  /// All but reduce_scatter, which gloo has for its older interface alone.
  void call_gloo() {
    const std::size_t part = count_ / static_cast<std::size_t>(ranks_.size());
    if (operation_ == Operation::broadcast) gloo_->broadcast(input_.data(), count_, root);
    if (operation_ == Operation::allgather) gloo_->allgather(input_.data(), output_.data(), part);
    if (operation_ == Operation::alltoall) gloo_->alltoall(input_.data(), output_.data(), part);
  }

  void call_mpi() {
    const auto count = static_cast<int>(count_);
    const int part = count / ranks_.size();
    const MPI_Comm comm = ranks_.comm();
    float* const in = input_.data();
    float* const out = output_.data();
    switch (operation_) {
      case Operation::allgather:
        MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, comm);
        return;
      case Operation::broadcast:
        MPI_Bcast(in, count, MPI_FLOAT, root, comm);
        return;
      case Operation::reduce_scatter:
        MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, comm);
        return;
      case Operation::alltoall:
        MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, comm);
        return;
    }
  }

  const hora::Context& world_;
  const Ranks& ranks_;
  Operation operation_;
  std::size_t count_;
  Extents extents_;
  hora::Buffer buffer_;
  std::vector<float> input_;
  std::vector<float> output_;  ///< MPI's and gloo's
  std::unique_ptr<GlooRanks> gloo_;
  hora::Result result_;
};

}  // namespace
}  // namespace bench

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
      std::vector<std::string> contenders{"hora_bucket", "hora", "mpi"};
      if (has_gloo() && operation != Operation::reduce_scatter) contenders.emplace_back("gloo");
      sweep.add(volume, contenders, [=, &world, &ranks] {
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
