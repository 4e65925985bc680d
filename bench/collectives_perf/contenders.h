/// The ways of running one collective on float32 tensors that are compared.
#pragma once

#include <hora/hora.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bench/collectives_perf/operation.h"
#include "bench/harness/ranks.h"
#include "bench/harness/sweep.h"

namespace bench {

/// `hora_bucket`: the input lies in a hora::Buffer. `hora`: in plain memory. Both give results in
/// hora's memory, the one before destroyed first, as in a loop; a broadcast works in place. `mpi`:
/// between plain arrays that were there and touched before. Thread rule: one thread.
class CollectiveContenders final : public Contenders {
 public:
  /// Collective. `count`: as of extents_of.
  CollectiveContenders(const hora::Context& world, const Ranks& ranks, Operation operation,
                       std::size_t count);
  Contender contender(const std::string& name) override;

 private:
  Contender hora(float* input, const std::string& name);
  Contender mpi();
  /// Reads the result at `*result`, or the input where a broadcast has left it.
  Contender on(float* input, std::function<void()> operate, std::function<const float*()> result);
  hora::Result exchange(const hora::TensorView& view, const std::string& name) const;
  void call_mpi();

  const hora::Context& world_;
  const Ranks& ranks_;
  Operation operation_;
  std::size_t count_;
  Extents extents_;
  hora::Buffer buffer_;
  std::vector<float> input_;
  std::vector<float> output_;  ///< MPI's
  hora::Result result_;
};

}  // namespace bench
