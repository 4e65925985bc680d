#include "bench/allreduce_perf/contenders.h"

#include <mpi.h>

#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "bench/allreduce_perf/workload.h"
#include "bench/harness/timed_loop.h"

namespace bench {
namespace {

constexpr std::size_t alignment = 64;  // elements: of every type a multiple of 64 bytes

struct NamedTensor {
  hora::TensorView view;
  hora::AllreduceOptions options;
};

/// MPI_DATATYPE_NULL where MPI has none.
MPI_Datatype mpi_type(hora::DataType type) {
  switch (type) {
    case hora::DataType::float32:
      return MPI_FLOAT;
    case hora::DataType::float64:
      return MPI_DOUBLE;
    case hora::DataType::int8:
      return MPI_INT8_T;
    case hora::DataType::uint8:
      return MPI_UINT8_T;
    case hora::DataType::int16:
      return MPI_INT16_T;
    case hora::DataType::uint16:
      return MPI_UINT16_T;
    case hora::DataType::int32:
      return MPI_INT32_T;
    case hora::DataType::uint32:
      return MPI_UINT32_T;
    case hora::DataType::int64:
      return MPI_INT64_T;
    case hora::DataType::uint64:
      return MPI_UINT64_T;
    default:
      return MPI_DATATYPE_NULL;
  }
}

}  // namespace

Layout::Layout(const std::vector<std::size_t>& element_counts) : counts(element_counts) {
  for (const std::size_t count : counts) {
    offsets.push_back(end);
    end += (count + alignment - 1) / alignment * alignment;
  }
}

std::size_t Layout::elements() const {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

AllreduceContenders::AllreduceContenders(const hora::Context& world, const Ranks& ranks,
                                         hora::DataType type, Layout layout, std::string operation)
    : world_(world),
      ranks_(ranks),
      values_(type, ranks.size()),
      layout_(std::move(layout)),
      operation_(std::move(operation)),
      buffer_(world, layout_.end * values_.size()),
      // A slice of private_memory is rounded up.
      plain_((layout_.end + static_cast<std::size_t>(ranks.size())) * values_.size()),
      other_(layout_.end * values_.size()) {}

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

void AllreduceContenders::write(std::byte* data, std::uint32_t round) const {
  for (std::size_t i = 0; i < layout_.counts.size(); ++i) {
    values_.write(data + offset(i), layout_.counts[i], ranks_.rank(), round);
  }
}

std::int64_t AllreduceContenders::count_wrong(const std::byte* data, std::uint32_t round) const {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < layout_.counts.size(); ++i) {
    wrong += values_.count_wrong_sums(data + offset(i), layout_.counts[i], round);
  }
  return wrong;
}

Contender AllreduceContenders::on(std::byte* data, std::function<void()> operate) {
  return {[this, data](std::uint32_t round) { write(data, round); }, std::move(operate),
          [this, data](std::uint32_t round) { return count_wrong(data, round); }};
}

Contender AllreduceContenders::hora(bool in_buffer) {
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

Contender AllreduceContenders::mpi(bool in_place) {
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

Contender AllreduceContenders::mpi_copy() {
  return on(plain_.data(), [this, type = mpi_type(values_.type())] {
    const std::size_t bytes = layout_.end * values_.size();
    std::memcpy(other_.data(), plain_.data(), bytes);
    MPI_Allreduce(MPI_IN_PLACE, other_.data(), static_cast<int>(layout_.end), type, MPI_SUM,
                  ranks_.comm());
    std::memcpy(plain_.data(), other_.data(), bytes);
  });
}

Contender AllreduceContenders::gloo() {
  gloo_ = std::make_unique<GlooRanks>(ranks_);
  return on(plain_.data(), [this] {
    for (std::size_t i = 0; i < layout_.counts.size(); ++i) {
      gloo_->allreduce(reinterpret_cast<float*>(plain_.data() + offset(i)), layout_.counts[i]);
    }
  });
}

Contender AllreduceContenders::private_memory() {
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

std::vector<std::string> allreduce_contenders(hora::DataType type) {
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

std::vector<std::string> resnet50_contenders() {
  std::vector<std::string> names{"hora", "hora_bucket", "mpi"};
  if (has_gloo()) names.emplace_back("gloo");
  return names;
}

}  // namespace bench
