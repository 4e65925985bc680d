/// The ways of adding up float32 tensors over all ranks that are compared.
#pragma once

#include <hora/hora.h>

#include <cstddef>
#include <string>
#include <vector>

#include "bench/harness/ranks.h"
#include "bench/harness/sweep.h"

namespace bench {

/// Tensors laid out one after the other, each beginning at a multiple of 64 bytes.
struct Layout {
  explicit Layout(const std::vector<std::size_t>& element_counts);
  std::vector<std::size_t> counts;
  std::vector<std::size_t> offsets;  ///< in elements
  std::size_t end = 0;               ///< elements, padding included
  std::size_t bytes() const;         ///< without padding
};

/// Memory of this rank for all contenders of one layout; they take turns in it. Contenders refer to
/// it. Thread rule: one thread.
class AllreduceContenders final : public Contenders {
 public:
  /// Collective. `operation` stands in front of the tensors' names.
  AllreduceContenders(const hora::Context& world, const Ranks& ranks, Layout layout,
                      std::string operation);
  Contender contender(const std::string& name) override;

 private:
  /// hora on plain memory, or in a hora::Buffer. One tensor: a blocking call. Several: all are
  /// submitted, then all are waited for.
  Contender hora(bool in_buffer);
  /// MPI_Allreduce, tensor by tensor.
  Contender mpi(bool in_place);
  /// What Horovod does with a fused buffer: copy in, MPI_Allreduce in place, copy out.
  Contender mpi_copy();
  /// The memory traffic of one rank of an ideal allreduce, without any other rank: reads a slice of
  /// each rank's tensor, adds, writes the sum into all; the "ranks" are private arrays.
  Contender private_memory();

  Contender on(float* data, std::function<void()> operate);
  void write(float* data, std::uint32_t round) const;
  std::int64_t count_wrong(const float* data, std::uint32_t round) const;

  const hora::Context& world_;
  const Ranks& ranks_;
  Layout layout_;
  std::string operation_;
  hora::Buffer buffer_;
  std::vector<float> plain_;
  std::vector<float> other_;  ///< results out of place, and the copies
};

}  // namespace bench
