// One rank of mpirun's, with tensors in host memory.
#include <mpi.h>

#include <deque>

#include "tests/conformance/ranks.h"
#include "tests/support/environment_variable.h"

namespace hora::internal::test {
namespace {

class MpiRank final : public Ranks {
 public:
  explicit MpiRank(const Variables& settings) {
    for (const auto& [variable, value] : settings) settings_.emplace_back(variable, value);
  }
  int count() const override { return 1; }
  Context start(int, const InitOptions& options) override { return init(options); }
  DeviceOfRank* device(int) override { return nullptr; }
  void meet() override { MPI_Barrier(MPI_COMM_WORLD); }
  std::string complaints() override { return {}; }

 private:
  std::deque<EnvironmentVariable> settings_;  ///< for init() to read
};

}  // namespace

std::pair<int, int> Ranks::place() {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return {rank, size};
}

std::unique_ptr<Ranks> Ranks::make(const Variables& settings) {
  return std::make_unique<MpiRank>(settings);
}

}  // namespace hora::internal::test
