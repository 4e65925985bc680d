#include "bench/allreduce_perf/contenders.h"

#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>

#include "bench/allreduce_perf/slices.h"
#include "bench/harness/values.h"

namespace bench {
namespace {

constexpr std::size_t alignment = 64 / sizeof(float);

struct NamedTensor {
  hora::TensorView view;
  hora::AllreduceOptions options;
};

}  // namespace

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

}  // namespace bench
