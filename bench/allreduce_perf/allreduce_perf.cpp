/// allreduce over all ranks: hora beside Open MPI, gloo and memory itself.
///
/// Sizes from 4 B to 64 MiB as one tensor (`allreduce/...`), and in float32 ResNet-50's 161
/// gradients one by one by name (`resnet50/...`). See ../README.md.
#include <hora/hora.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/allreduce_perf/typed_values.h"
#include "bench/allreduce_perf/workload.h"
#include "bench/harness/ranks.h"
#include "bench/harness/sweep.h"
#include "bench/harness/timed_loop.h"
#include "bench/peers/gloo.h"

namespace bench {
namespace {

constexpr double resnet50_bar_ms = 15.0;

/// Tensors laid out one after the other, each beginning at a multiple of 64 bytes.
struct Layout {
  explicit Layout(const std::vector<std::size_t>& element_counts) : counts(element_counts) {
    constexpr std::size_t alignment = 64;  // elements: of every type a multiple of 64 bytes
    for (const std::size_t count : counts) {
      offsets.push_back(end);
      end += (count + alignment - 1) / alignment * alignment;
    }
  }
  std::vector<std::size_t> counts;
  std::vector<std::size_t> offsets;  ///< in elements
  std::size_t end = 0;               ///< elements, padding included
};

/// MPI_DATATYPE_NULL where MPI has none.
MPI_Datatype mpi_type(hora::DataType type) {
  using enum hora::DataType;
  const std::pair<hora::DataType, MPI_Datatype> types[] = {
      {float32, MPI_FLOAT}, {float64, MPI_DOUBLE},  {int8, MPI_INT8_T},   {uint8, MPI_UINT8_T},
      {int16, MPI_INT16_T}, {uint16, MPI_UINT16_T}, {int32, MPI_INT32_T}, {uint32, MPI_UINT32_T},
      {int64, MPI_INT64_T}, {uint64, MPI_UINT64_T}};
  for (const auto& [own, its] : types) {
    if (own == type) return its;
  }
  return MPI_DATATYPE_NULL;
}

/// Memory of this rank for all contenders of one layout; they take turns in it. Contenders refer to
/// it. Thread rule: one thread.
class AllreduceContenders final : public Contenders {
 public:
  /// Collective. `operation` stands in front of the tensors' names.
  AllreduceContenders(const hora::Context& world, const Ranks& ranks, hora::DataType type,
                      Layout layout, std::string operation)
      : world_(world),
        ranks_(ranks),
        values_(type, ranks.size()),
        layout_(std::move(layout)),
        operation_(std::move(operation)),
        buffer_(world, layout_.end * values_.size()),
        // A slice of private_memory is rounded up.
        plain_((layout_.end + static_cast<std::size_t>(ranks.size())) * values_.size()),
        other_(layout_.end * values_.size()) {}

  Contender contender(const std::string& name) override {
    if (name == "hora_bucket") return hora(/*in_buffer=*/true);
    if (name == "hora") return hora(/*in_buffer=*/false);
    if (name == "mpi") return mpi(/*in_place=*/true);
    if (name == "mpi_out_of_place") return mpi(/*in_place=*/false);
    if (name == "mpi_copy") return mpi_copy();
    if (name == "gloo") return gloo();
    if (name == "private_memory") return private_memory();
    throw std::invalid_argument("no contender is called " + name);
  }

 private:
  struct NamedTensor {
    hora::TensorView view;
    hora::AllreduceOptions options;
  };

  /// hora on plain memory, or in a hora::Buffer. One tensor: a blocking call. Several: all are
  /// submitted, then all are waited for.
  Contender hora(bool in_buffer) {
    std::byte* data = in_buffer ? buffer_.data() : plain_.data();
    std::vector<NamedTensor> tensors;
    for (std::size_t i = 0; i < layout_.counts.size(); ++i) {
      const auto count = static_cast<std::int64_t>(layout_.counts[i]);
      tensors.push_back({hora::TensorView{data + offset(i), values_.type(), {count}, {}, nullptr},
                         {.name = operation_ + (in_buffer ? ".hora_bucket." : ".hora.") +
                                  std::to_string(count) + "." + std::to_string(i),
                          .op = hora::ReduceOp::sum}});
    }
    if (tensors.size() == 1) {
      return on(data, [&world = world_, tensor = tensors.front()] {
        hora::allreduce(world, tensor.view, tensor.options);
      });
    }
    return on(data, [&world = world_, tensors = std::move(tensors)] {
      std::vector<hora::Handle> handles;
      for (const NamedTensor& tensor : tensors) {
        handles.push_back(hora::allreduce_async(world, tensor.view, tensor.options));
      }
      for (hora::Handle& handle : handles) handle.wait();
    });
  }

  /// MPI_Allreduce, tensor by tensor.
  Contender mpi(bool in_place) {
    std::byte* out = in_place ? plain_.data() : other_.data();
    Contender contender = on(out, [this, in_place, out, type = mpi_type(values_.type())] {
      for (std::size_t i = 0; i < layout_.counts.size(); ++i) {
        MPI_Allreduce(in_place ? MPI_IN_PLACE : plain_.data() + offset(i), out + offset(i),
                      static_cast<int>(layout_.counts[i]), type, MPI_SUM, ranks_.comm());
      }
    });
    contender.write = [this](std::uint32_t round) { write(plain_.data(), round); };
    return contender;
  }

  /// Copies in, calls MPI_Allreduce in place, copies out, as Horovod does with a fused buffer.
  Contender mpi_copy() {
    return on(plain_.data(), [this, type = mpi_type(values_.type())] {
      const std::size_t bytes = layout_.end * values_.size();
      std::memcpy(other_.data(), plain_.data(), bytes);
      MPI_Allreduce(MPI_IN_PLACE, other_.data(), static_cast<int>(layout_.end), type, MPI_SUM,
                    ranks_.comm());
      std::memcpy(plain_.data(), other_.data(), bytes);
    });
  }

  /// gloo::allreduce in place, tensor by tensor.
  Contender gloo() {
    gloo_ = connect_gloo(ranks_);
    return on(plain_.data(), [this] {
      for (std::size_t i = 0; i < layout_.counts.size(); ++i) {
        gloo_->allreduce(reinterpret_cast<float*>(plain_.data() + offset(i)), layout_.counts[i]);
      }
    });
  }

  /// The memory traffic of one rank of an ideal allreduce, without any other rank: reads a slice of
  /// each rank's tensor, adds, writes the sum into all; the "ranks" are private arrays.
  Contender private_memory() {
    const auto ranks = static_cast<std::size_t>(ranks_.size());
    const std::size_t slice = (layout_.end + ranks - 1) / ranks;
    std::vector<float*> slices;
    auto* const memory = reinterpret_cast<float*>(plain_.data());
    for (std::size_t rank = 0; rank < ranks; ++rank) slices.push_back(memory + rank * slice);
    Contender contender;
    contender.write = [slices, slice](std::uint32_t round) {
      for (std::size_t rank = 0; rank < slices.size(); ++rank) {
        write_values(slices[rank], slice, static_cast<int>(rank), round);
      }
    };
    contender.operate = [slices, slice] { sum_into_all(slices, slice); };
    contender.count_wrong = [slices, slice](std::uint32_t round) {
      std::int64_t wrong = 0;
      for (const float* data : slices) {
        wrong += count_wrong_sums(data, slice, static_cast<int>(slices.size()), round);
      }
      return wrong;
    };
    return contender;
  }

  Contender on(std::byte* data, std::function<void()> operate) {
    return {[this, data](std::uint32_t round) { write(data, round); }, std::move(operate),
            [this, data](std::uint32_t round) {
              std::int64_t wrong = 0;
              for (std::size_t i = 0; i < layout_.counts.size(); ++i) {
                wrong += values_.count_wrong_sums(data + offset(i), layout_.counts[i], round);
              }
              return wrong;
            }};
  }
  void write(std::byte* data, std::uint32_t round) const {
    for (std::size_t i = 0; i < layout_.counts.size(); ++i) {
      values_.write(data + offset(i), layout_.counts[i], ranks_.rank(), round);
    }
  }
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

/// Those that there are for one tensor of a type. MPI has no float16 and no bfloat16; gloo and
/// private_memory are measured in float32 alone.
std::vector<std::string> contenders_of(hora::DataType type) {
  std::vector<std::string> names{"hora_bucket", "hora"};
  if (mpi_type(type) != MPI_DATATYPE_NULL) {
    names.insert(names.end(), {"mpi", "mpi_out_of_place", "mpi_copy"});
  }
  if (type == hora::DataType::float32) {
    names.emplace_back("private_memory");
    if (has_gloo()) names.emplace_back("gloo");
  }
  return names;
}

void print_comparison(const Sweep& allreduce, const Sweep& resnet50, bool judge) {
  std::printf("%s", allreduce.table(judge).c_str());
  const auto found = resnet50.seconds().find("hora");
  if (found == resnet50.seconds().end()) return;
  const double milliseconds = found->second * 1e3;
  std::printf("# resnet50/hora: %.2f ms (<= %g)%s\n", milliseconds, resnet50_bar_ms,
              judge && milliseconds > resnet50_bar_ms ? " *" : "");
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  using namespace bench;
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
  const std::size_t size = hora::size_of(type);
  program.describe("type", type_name);
  program.describe("ranks", std::to_string(world.size()));
  program.describe("nodes", std::to_string(world.cross_size()));
  program.describe("malloc_thresholds", malloc_thresholds(world.settings().malloc_tuning));

  Sweep allreduce(ranks, program, options, "allreduce", allreduce_bars());
  Sweep resnet50(ranks, program, options, "resnet50", {});
  const auto add = [&](Sweep& sweep, const std::string& operation, const Layout& layout,
                       const std::vector<std::string>& contenders) {
    const Volume volume{.bytes = std::reduce(layout.counts.begin(), layout.counts.end()) * size,
                        .element_bytes = size,
                        .tensors = layout.counts.size(),
                        .bus_factor = 2.0 * (ranks.size() - 1) / ranks.size(),
                        .label = type_name + " sum"};
    sweep.add(volume, contenders, [=, &world, &ranks] {
      return std::make_unique<AllreduceContenders>(world, ranks, type, layout, operation);
    });
  };
  for (const std::size_t bytes : options.sizes(size)) {
    add(allreduce, "allreduce", Layout({bytes / size}), contenders_of(type));
  }
  if (type == hora::DataType::float32) {
    std::vector<std::string> contenders{"hora", "hora_bucket", "mpi"};
    if (has_gloo()) contenders.emplace_back("gloo");
    add(resnet50, "resnet50", Layout(resnet50_gradients()), contenders);
  }
  const int code = program.run(/*columns=*/true);
  if (ranks.rank() == 0) {
    print_comparison(allreduce, resnet50, ranks.size() == 2 && world.cross_size() == 1);
  }
  return code;
}
