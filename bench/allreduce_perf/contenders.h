/// The contenders of allreduce_perf: hora, MPI, gloo, and memory itself.
#pragma once

#include <hora/hora.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/allreduce_perf/typed_values.h"
#include "bench/harness/ranks.h"
#include "bench/harness/sweep.h"
#include "bench/peers/gloo.h"

namespace bench {

/// Tensors laid out one after the other, each beginning at a multiple of 64 bytes.
struct Layout {
  explicit Layout(const std::vector<std::size_t>& element_counts);
  std::vector<std::size_t> counts;
  std::vector<std::size_t> offsets;  ///< in elements
  std::size_t end = 0;               ///< elements, padding included
  std::size_t elements() const;      ///< without padding
};

/// Memory of this rank for all contenders of one layout; they take turns in it. Contenders refer to
/// it. Thread rule: one thread.
class AllreduceContenders final : public Contenders {
 public:
  /// Collective. `operation` stands in front of the tensors' names.
  AllreduceContenders(const hora::Context& world, const Ranks& ranks, hora::DataType type,
                      Layout layout, std::string operation);
  Contender contender(const std::string& name) override;

 private:
  /// hora on plain memory, or in a hora::Buffer. One tensor: a blocking call. Several: all are
  /// submitted, then all are waited for.
  Contender hora(bool in_buffer);
  /// MPI_Allreduce, tensor by tensor.
  Contender mpi(bool in_place);
  /// What Horovod does with a fused buffer: copy in, MPI_Allreduce in place, copy out.
  Contender mpi_copy();
  /// gloo::allreduce in place, tensor by tensor.
  Contender gloo();
  /// The memory traffic of one rank of an ideal allreduce, without any other rank: reads a slice of
  /// each rank's tensor, adds, writes the sum into all; the "ranks" are private arrays.
  Contender private_memory();

  Contender on(std::byte* data, std::function<void()> operate);
  void write(std::byte* data, std::uint32_t round) const;
  std::int64_t count_wrong(const std::byte* data, std::uint32_t round) const;
  std::size_t offset(std::size_t tensor) const { return layout_.offsets[tensor] * values_.size(); }

  const hora::Context& world_;
  const Ranks& ranks_;
  TypedValues values_;
  Layout layout_;
  std::string operation_;
  hora::Buffer buffer_;
  std::vector<std::byte> plain_;
  std::vector<std::byte> other_;  ///< results out of place, and the copies
  std::unique_ptr<GlooRanks> gloo_;
};

/// Those that there are for a type, of one tensor; gloo where the build has it. MPI has no float16
/// and no bfloat16; gloo and private_memory are measured in float32 alone.
std::vector<std::string> allreduce_contenders(hora::DataType type);
std::vector<std::string> resnet50_contenders();

}  // namespace bench
