#include "tests/ops/nccl/gpu_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "core/negotiation/signature.h"
#include "tests/support/expect_error.h"
#include "tests/support/reference/elements.h"
#include "tests/support/reference/reference.h"

namespace hora::internal::test {
namespace {

ResultForm form_of(const Exchange& exchange, Device device, void* stream) {
  return {.type = exchange.type, .row = {exchange.columns}, .device = device, .stream = stream};
}

void choose_reduction(Exchange& exchange, int ranks, std::mt19937_64& random) {
  exchange.op = kElementOps[random() % kElementOps.size()];
  if (!is_floating_point(exchange.type)) return;
  if ((ranks & (ranks - 1)) == 0 && random() % 3 == 0) exchange.op = ReduceOp::average;
  exchange.prescale = random() % 2 == 0 ? 1.0 : -0.5;
  exchange.postscale = random() % 2 == 0 ? 1.0 : 2.0;
}

}  // namespace

std::string Exchange::text() const {
  std::string text = std::string(name_of(kind)) + " of " + std::string(hora::name_of(type)) + ", " +
                     std::string(hora::name_of(op)) + ", rows";
  for (const auto& own : extents) {
    text += " [";
    for (const std::int64_t rows : own) text += " " + std::to_string(rows);
    text += " ]";
  }
  return text + " of " + std::to_string(columns);
}

Request Exchange::request(int rank, std::string_view name) const {
  const auto own = static_cast<std::size_t>(rank);
  Request request{name, {}};
  request.rows = extents[own];
  request.bytes = values[own].size();
  request.signature.kind = kind;
  request.signature.type = type;
  request.signature.op = op;
  request.signature.prescale = prescale;
  request.signature.postscale = postscale;
  const bool any = kind != OperationKind::reduce_scatter;
  request.signature.shape = {any ? kAnyExtent : request.rows.front(), columns};
  return request;
}

Exchange random_exchange(OperationKind kind, int ranks, std::mt19937_64& random) {
  Exchange exchange;
  exchange.kind = kind;
  exchange.type = kAllTypes[random() % kAllTypes.size()];
  exchange.columns = static_cast<std::int64_t>(1 + random() % 50);
  if (kind == OperationKind::reduce_scatter) choose_reduction(exchange, ranks, random);
  const bool even = random() % 2 == 0;
  const auto count = [&, common = static_cast<std::int64_t>(random() % 9)] {
    return even ? common : static_cast<std::int64_t>(random() % 9);
  };
  const std::int64_t whole = even ? count() * ranks : static_cast<std::int64_t>(random() % 30);
  for (int rank = 0; rank < ranks; ++rank) {
    auto& own = exchange.extents.emplace_back();
    if (kind == OperationKind::alltoall) {
      for (int to = 0; to < ranks; ++to) own.push_back(count());
    } else {
      own = {kind == OperationKind::allgather ? count() : whole};
    }
    const std::int64_t rows = std::accumulate(own.begin(), own.end(), std::int64_t{0});
    exchange.values.push_back(whole_numbers(exchange.type, rows * exchange.columns, random,
                                            exchange.op == ReduceOp::product ? 4 : 12));
  }
  return exchange;
}

Exchange random_gpu_exchange(OperationKind kind, int ranks, std::mt19937_64& random) {
  while (true) {
    Exchange exchange = random_exchange(kind, ranks, random);
    Signature signature = exchange.request(0, "").signature;
    signature.device = DeviceKind::cuda;
    if (runs_on_device(signature, true)) return exchange;
  }
}

Pending submit_on_gpu(GpuWorld& world, int rank, const Exchange& exchange, const std::string& name,
                      const DeviceTensor& input, ProcessSet set) {
  Pending pending;
  Request request = exchange.request(rank, name);
  request.signature.device = DeviceKind::cuda;
  request.data = input.data();
  request.stream = input.stream();
  const ResultForm form = form_of(exchange, {DeviceKind::cuda, 0}, input.stream());
  if (!world.engine(rank).runs_on_device(request, set)) {
    const auto result = std::make_shared<StagedResult>(world.memory(rank), world.heap(rank), form,
                                                       input.data(), request.bytes, input.stream());
    request.data = result->input();
    pending.result = result;
  } else {
    pending.result = std::make_shared<DeviceResult>(world.heap(rank), form);
  }
  request.result = pending.result;
  pending.submission = world.engine(rank).submit(std::move(request), set);
  return pending;
}

void expect_to_fail_alone_without_memory(GpuWorld& world, OperationKind kind, int culprit) {
  const int ranks = world.size();
  Exchange exchange{.kind = kind, .columns = 10};
  std::vector<std::unique_ptr<DeviceTensor>> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::size_t splits =
        kind == OperationKind::alltoall ? static_cast<std::size_t>(ranks) : 1;
    const std::int64_t rows = kind == OperationKind::alltoall ? 2 : 2 * ranks;
    exchange.extents.emplace_back(splits, rows);
    inputs.push_back(std::make_unique<DeviceTensor>(
        world.gpu(rank), exchange.type,
        exchange.values.emplace_back(static_cast<std::size_t>(2 * ranks) * 40)));
  }
  const int row_blocks = kind == OperationKind::allgather  ? ranks * ranks
                         : kind == OperationKind::alltoall ? ranks
                                                           : 1;
  for (const int attempt : {1, 2}) {
    world.gpu(culprit).fail("malloc_from_pool_async", attempt, cudaErrorMemoryAllocation);
  }
  world.on_all_ranks([&](int rank) {
    const DeviceTensor& input = *inputs[static_cast<std::size_t>(rank)];
    expect_error(ErrorCode::out_of_memory,
                 testing::HasSubstr("the GPU of rank " + std::to_string(culprit) +
                                    " of the set has no memory for its result of " +
                                    std::to_string(row_blocks * 80) + " bytes"),
                 [&] {
                   const Pending pending = submit_on_gpu(world, rank, exchange, "x", input);
                   world.engine(rank).wait(*pending.submission);
                 });
    const Pending next = submit_on_gpu(world, rank, exchange, "x", input);
    EXPECT_NO_THROW(world.engine(rank).wait(*next.submission));
    next.result->collect();
  });
}

std::vector<std::byte> bytes_of(GpuWorld& world, int rank, const ResultMemory& result) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : result.shape()) elements *= extent;
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements) * size_of(result.type()));
  if (result.device().kind == DeviceKind::cpu) {
    std::copy_n(result.data(), bytes.size(), bytes.begin());
  } else {
    world.heap(rank).to_host(bytes.data(), result.data(), bytes.size(), result.stream());
  }
  return bytes;
}

}  // namespace hora::internal::test
