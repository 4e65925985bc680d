// Allgather, alltoall and reduce-scatter, and all reductions, on a GPU's memory against the same on
// the CPU.
#include <gtest/gtest.h>
#include <hora/hora.h>

#include <numeric>
#include <string>
#include <utility>

#include "tests/gpu/collectives/device_array.h"
#include "tests/gpu/collectives/values.h"
#include "tests/gpu/require_gpu.h"
#include "tests/support/reference/elements.h"

namespace hora::internal::test {
namespace {

using enum DataType;
constexpr std::int64_t kColumns = 1001;

class GpuExchanges : public GpuTest {};

/// Values of a tensor of rows, on the GPU and on the host.
struct Rows {
  Rows(const Context& world, DataType t, std::int64_t count, std::uint64_t salt)
      : type(t),
        rows(count),
        host(random_values(t, count * kColumns,
                           salt * 1000 + static_cast<std::uint64_t>(world.rank()))),
        array(t, host) {
    host.push_back(std::byte{0});  // a vector without elements may have no address
  }
  TensorView on_gpu(const Context& world) const {
    return {array.data(), type, {rows, kColumns}, world.device(), nullptr};
  }
  TensorView on_host() { return {host.data(), type, {rows, kColumns}, {}, nullptr}; }

  DataType type;
  std::int64_t rows;
  Bytes host;
  DeviceArray array;
};

void expect_same(const Context& world, const Result& gpu, const Result& cpu, bool exact,
                 const std::string& what) {
  ASSERT_EQ(gpu.shape(), cpu.shape()) << what;
  EXPECT_EQ(gpu.rows(), cpu.rows()) << what;
  EXPECT_EQ(gpu.view().device, world.device()) << what;
  const std::size_t bytes = cpu.view().bytes();
  const Bytes result = to_host(gpu.data(), bytes, static_cast<cudaStream_t>(gpu.view().stream));
  const Bytes expected(cpu.data(), cpu.data() + bytes);
  if (!exact) return expect_close(world.size(), cpu.type(), result, expected, what);
  EXPECT_TRUE(result == expected) << what;
}

TEST_F(GpuExchanges, AllgatherGivesWhatTheCpuPathGives) {
  const Context world = init();
  for (const DataType type : kNcclTypes) {
    for (const std::int64_t more : {0, 1}) {
      Rows own(world, type, 3 + more * world.rank(), 1);
      const Result gpu = allgather(world, own.on_gpu(world), {.name = "gpu"});
      expect_same(world, gpu, allgather(world, own.on_host(), {.name = "cpu"}), true,
                  std::string(name_of(type)) + ", uneven by " + std::to_string(more));
    }
  }
}

TEST_F(GpuExchanges, AlltoallGivesWhatTheCpuPathGives) {
  const Context world = init();
  for (const DataType type : kNcclTypes) {
    std::vector<std::int64_t> splits(static_cast<std::size_t>(world.size()));
    std::iota(splits.begin(), splits.end(), world.rank());
    Rows own(world, type, std::reduce(splits.begin(), splits.end()), 2);
    const Result gpu = alltoall(world, own.on_gpu(world), {.name = "gpu", .splits = splits});
    expect_same(world, gpu, alltoall(world, own.on_host(), {.name = "cpu", .splits = splits}), true,
                std::string(name_of(type)));
  }
}

TEST_F(GpuExchanges, ReduceScatterGivesWhatTheCpuPathGives) {
  const Context world = init();
  for (const DataType type : kNcclTypes) {
    for (const ReduceOp op : kElementOps) {
      for (const std::int64_t rows : {std::int64_t{2} * world.size(), std::int64_t{5}}) {
        Rows own(world, type, rows, 3);
        const double scale = is_floating_point(type) ? 0.5 : 1.0;
        const auto options = [&](const char* name) {
          return ReduceScatterOptions{.name = name, .op = op, .prescale = scale};
        };
        const Result gpu = reduce_scatter(world, own.on_gpu(world), options("gpu"));
        expect_same(world, gpu, reduce_scatter(world, own.on_host(), options("cpu")), false,
                    std::string(name_of(op)) + " of " + std::string(name_of(type)));
      }
    }
  }
}

TEST_F(GpuExchanges, ReductionsGiveWhatTheCpuPathGives) {
  const Context world = init();
  for (const DataType type : kNcclTypes) {
    for (const ReduceOp op : kElementOps) {
      for (const double scale : {1.0, 0.5}) {
        if (scale != 1.0 && !is_floating_point(type)) continue;
        Rows own(world, type, 70, 4);
        const auto options = [&](const char* name) {
          return AllreduceOptions{.name = name, .op = op, .prescale = scale, .postscale = scale};
        };
        allreduce(world, own.on_gpu(world), options("gpu"));
        allreduce(world, own.on_host(), options("cpu"));
        own.host.pop_back();
        expect_close(world.size(), type, own.array.read(nullptr), own.host,
                     std::string(name_of(op)) + " of " + std::string(name_of(type)) + ", scale " +
                         std::to_string(scale));
      }
    }
  }
}

TEST_F(GpuExchanges, AResultMayGoAndComeAgainWhileItsStreamReadsIt) {
  const Context world = init();
  const TestStream stream;
  Rows own(world, int32, 64, 5);
  const Result expected = allgather(world, own.on_host(), {.name = "cpu"});
  const std::size_t bytes = expected.view().bytes();
  const DeviceArray kept(int32, static_cast<std::int64_t>(bytes / sizeof(std::int32_t)));
  for (int round = 0; round < 20; ++round) {
    TensorView input = own.on_gpu(world);
    input.stream = stream.get();
    const Result result = allgather(world, input, {.name = "gpu"});
    cuda(
        cudaMemcpyAsync(kept.data(), result.data(), bytes, cudaMemcpyDeviceToDevice, stream.get()));
  }  // gone before the copy has run
  EXPECT_TRUE(kept.read(stream.get()) == Bytes(expected.data(), expected.data() + bytes));
}

TEST_F(GpuExchanges, WhatNcclLacksGoesOverTheHost) {
  const Context world = init();
  for (const auto& [type, op] :
       {std::pair{int16, ReduceOp::sum}, {uint16, ReduceOp::max}, {float32, ReduceOp::adasum}}) {
    Bytes on_host = random_values(type, 100, static_cast<std::uint64_t>(world.rank()));
    const DeviceArray on_gpu(type, on_host);
    allreduce(world, on_gpu.view(world.device()), {.name = "gpu", .op = op});
    allreduce(world, {on_host.data(), type, {100}, {}, nullptr}, {.name = "cpu", .op = op});
    EXPECT_TRUE(on_gpu.read(nullptr) == on_host) << name_of(type);
  }
}

}  // namespace
}  // namespace hora::internal::test
