/// allreduce of float32 over all ranks: hora beside Open MPI and beside memory itself.
///
/// Sizes from 4 B to 64 MiB as one tensor (`allreduce/...`), and ResNet-50's 161 gradients one by
/// one by name (`resnet50/...`). See ../README.md.
#include <hora/hora.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/allreduce_perf/workload.h"
#include "bench/harness/ranks.h"
#include "bench/harness/sweep.h"
#include "bench/peers/gloo.h"

namespace bench {
namespace {

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
  /// gloo::allreduce in place, tensor by tensor.
  Contender gloo();
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
  std::unique_ptr<GlooRanks> gloo_;
};

constexpr std::size_t alignment = 64 / sizeof(float);

struct NamedTensor {
  hora::TensorView view;
  hora::AllreduceOptions options;
};

Layout::Layout(const std::vector<std::size_t>& element_counts) : counts(element_counts) {
  for (const std::size_t count : counts) {
    offsets.push_back(end);
    end += (count + alignment - 1) / alignment * alignment;
  }
}

std::size_t Layout::bytes() const {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) * sizeof(float);
}

AllreduceContenders::AllreduceContenders(const hora::Context& world, const Ranks& ranks,
                                         Layout layout, std::string operation)
    : world_(world),
      ranks_(ranks),
      layout_(std::move(layout)),
      operation_(std::move(operation)),
      buffer_(world, layout_.end * sizeof(float)),
      // A slice of private_memory is rounded up.
      plain_(layout_.end + static_cast<std::size_t>(ranks.size())),
      other_(layout_.end) {}

Contender AllreduceContenders::contender(const std::string& name) {
  if (name == "hora_bucket") return hora(/*in_buffer=*/true);
  if (name == "hora") return hora(/*in_buffer=*/false);
  if (name == "mpi") return mpi(/*in_place=*/true);
  if (name == "mpi_out_of_place") return mpi(/*in_place=*/false);
  if (name == "mpi_copy") return mpi_copy();
  if (name == "gloo") return gloo();
  if (name == "private_memory") return private_memory();
  throw std::invalid_argument("no contender is called " + name);
}

void AllreduceContenders::write(float* data, std::uint32_t round) const {
  for (std::size_t i = 0; i < layout_.counts.size(); ++i) {
    write_values(data + layout_.offsets[i], layout_.counts[i], ranks_.rank(), round);
  }
}

std::int64_t AllreduceContenders::count_wrong(const float* data, std::uint32_t round) const {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < layout_.counts.size(); ++i) {
    wrong += count_wrong_sums(data + layout_.offsets[i], layout_.counts[i], ranks_.size(), round);
  }
  return wrong;
}

Contender AllreduceContenders::on(float* data, std::function<void()> operate) {
  return {[this, data](std::uint32_t round) { write(data, round); }, std::move(operate),
          [this, data](std::uint32_t round) { return count_wrong(data, round); }};
}

Contender AllreduceContenders::hora(bool in_buffer) {
  float* data = in_buffer ? reinterpret_cast<float*>(buffer_.data()) : plain_.data();
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < layout_.counts.size(); ++i) {
    const auto count = static_cast<std::int64_t>(layout_.counts[i]);
    tensors.push_back({hora::view(data + layout_.offsets[i], count),
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

Contender AllreduceContenders::mpi(bool in_place) {
  float* out = in_place ? plain_.data() : other_.data();
  Contender contender = on(out, [this, in_place, out] {
    for (std::size_t i = 0; i < layout_.counts.size(); ++i) {
      const std::size_t offset = layout_.offsets[i];
      MPI_Allreduce(in_place ? MPI_IN_PLACE : plain_.data() + offset, out + offset,
                    static_cast<int>(layout_.counts[i]), MPI_FLOAT, MPI_SUM, ranks_.comm());
    }
  });
  contender.write = [this](std::uint32_t round) { write(plain_.data(), round); };
  return contender;
}

Contender AllreduceContenders::mpi_copy() {
  return on(plain_.data(), [this] {
    const std::size_t bytes = layout_.end * sizeof(float);
    std::memcpy(other_.data(), plain_.data(), bytes);
    MPI_Allreduce(MPI_IN_PLACE, other_.data(), static_cast<int>(layout_.end), MPI_FLOAT, MPI_SUM,
                  ranks_.comm());
    std::memcpy(plain_.data(), other_.data(), bytes);
  });
}

Contender AllreduceContenders::gloo() {
  gloo_ = std::make_unique<GlooRanks>(ranks_);
  return on(plain_.data(), [this] {
    for (std::size_t i = 0; i < layout_.counts.size(); ++i) {
      gloo_->allreduce(plain_.data() + layout_.offsets[i], layout_.counts[i]);
    }
  });
}

Contender AllreduceContenders::private_memory() {
  const auto ranks = static_cast<std::size_t>(ranks_.size());
  const std::size_t slice = (layout_.end + ranks - 1) / ranks;
  std::vector<float*> slices;
  for (std::size_t rank = 0; rank < ranks; ++rank) slices.push_back(plain_.data() + rank * slice);
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

}  // namespace
}  // namespace bench

namespace {

using namespace bench;

constexpr double resnet50_bar_ms = 15.0;

void print_comparison(const Sweep& allreduce, const Sweep& resnet50, bool judge) {
  std::printf("%s", allreduce.table(judge).c_str());
  const auto found = resnet50.seconds().find("hora");
  if (found == resnet50.seconds().end()) return;
  const double milliseconds = found->second * 1e3;
  std::printf("# resnet50/hora: %.2f ms (<= %g)%s\n", milliseconds, resnet50_bar_ms,
              judge && milliseconds > resnet50_bar_ms ? " *" : "");
}

}  // namespace

int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  const Ranks ranks;
  Program program(ranks);
  SweepOptions options;
  CLI::App app("Times allreduce of hora beside MPI_Allreduce and beside memory itself");
  options.add_to(app);
  if (const auto code = program.parse(app, argc, argv)) return *code;

  program.describe("ranks", std::to_string(world.size()));
  program.describe("nodes", std::to_string(world.cross_size()));
  program.describe("malloc_thresholds", malloc_thresholds(world.settings().malloc_tuning));

  Sweep allreduce(ranks, program, options, "allreduce", allreduce_bars());
  Sweep resnet50(ranks, program, options, "resnet50", {});
  const auto add = [&](Sweep& sweep, const std::string& operation, const Layout& layout,
                       const std::vector<std::string>& contenders) {
    const Volume volume{.bytes = layout.bytes(),
                        .tensors = layout.counts.size(),
                        .bus_factor = 2.0 * (ranks.size() - 1) / ranks.size(),
                        .label = "float sum"};
    sweep.add(volume, contenders, [=, &world, &ranks] {
      return std::make_unique<AllreduceContenders>(world, ranks, layout, operation);
    });
  };
  std::vector<std::string> contenders{"hora_bucket",      "hora",     "mpi",
                                      "mpi_out_of_place", "mpi_copy", "private_memory"};
  std::vector<std::string> of_resnet50{"hora", "hora_bucket", "mpi"};
  if (has_gloo()) {
    contenders.emplace_back("gloo");
    of_resnet50.emplace_back("gloo");
  }
  for (const std::size_t bytes : options.sizes(sizeof(float))) {
    add(allreduce, "allreduce", Layout({bytes / sizeof(float)}), contenders);
  }
  add(resnet50, "resnet50", Layout(resnet50_gradients()), of_resnet50);
  const int code = program.run(/*columns=*/true);
  if (ranks.rank() == 0) {
    print_comparison(allreduce, resnet50, ranks.size() == 2 && world.cross_size() == 1);
  }
  return code;
}
