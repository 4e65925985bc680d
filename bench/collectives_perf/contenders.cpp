#include "bench/collectives_perf/contenders.h"

#include <mpi.h>

#include <stdexcept>
#include <utility>

#include "bench/harness/values.h"

namespace bench {

CollectiveContenders::CollectiveContenders(const hora::Context& world, const Ranks& ranks,
                                           Operation operation, std::size_t count)
    : world_(world),
      ranks_(ranks),
      operation_(operation),
      count_(count),
      extents_(extents_of(operation, count, ranks.size())),
      buffer_(world, extents_.input * sizeof(float)),
      input_(extents_.input),
      output_(operation == Operation::broadcast ? 0 : extents_.result) {}

Contender CollectiveContenders::contender(const std::string& name) {
  if (name == "hora_bucket") return hora(reinterpret_cast<float*>(buffer_.data()), name);
  if (name == "hora") return hora(input_.data(), name);
  if (name == "mpi") return mpi();
  throw std::invalid_argument("no contender is called " + name);
}

Contender CollectiveContenders::on(float* input, std::function<void()> operate,
                                   std::function<const float*()> result) {
  Contender contender;
  contender.write = [this, input](std::uint32_t round) {
    write_values(input, extents_.input, ranks_.rank(), round);
  };
  contender.operate = std::move(operate);
  contender.count_wrong = [this, result = std::move(result)](std::uint32_t round) {
    return count_wrong(operation_, result(), count_, ranks_.rank(), ranks_.size(), round);
  };
  return contender;
}

Contender CollectiveContenders::hora(float* input, const std::string& name) {
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

hora::Result CollectiveContenders::exchange(const hora::TensorView& view,
                                            const std::string& name) const {
  if (operation_ == Operation::allgather) return hora::allgather(world_, view, {.name = name});
  if (operation_ == Operation::alltoall) return hora::alltoall(world_, view, {.name = name});
  return hora::reduce_scatter(world_, view, {.name = name, .op = hora::ReduceOp::sum});
}

Contender CollectiveContenders::mpi() {
  const bool in_place = operation_ == Operation::broadcast;
  return on(
      input_.data(), [this] { call_mpi(); },
      [this, in_place] { return in_place ? input_.data() : output_.data(); });
}

void CollectiveContenders::call_mpi() {
  const auto count = static_cast<int>(count_);
  const int part = count / ranks_.size();
  switch (operation_) {
    case Operation::allgather:
      MPI_Allgather(input_.data(), part, MPI_FLOAT, output_.data(), part, MPI_FLOAT, ranks_.comm());
      return;
    case Operation::broadcast:
      MPI_Bcast(input_.data(), count, MPI_FLOAT, root, ranks_.comm());
      return;
    case Operation::reduce_scatter:
      MPI_Reduce_scatter_block(input_.data(), output_.data(), part, MPI_FLOAT, MPI_SUM,
                               ranks_.comm());
      return;
    case Operation::alltoall:
      MPI_Alltoall(input_.data(), part, MPI_FLOAT, output_.data(), part, MPI_FLOAT, ranks_.comm());
      return;
  }
}

}  // namespace bench
