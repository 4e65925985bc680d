// Collectives on a GPU's memory against the same on the CPU.
#include <gtest/gtest.h>
#include <hora/hora.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu/collectives/device_array.h"
#include "tests/gpu/collectives/values.h"
#include "tests/gpu/require_gpu.h"
#include "tests/support/reference/elements.h"

namespace hora::internal::test {
namespace {

class GpuCollectives : public GpuTest {};

/// True on every rank when all ranks hold these very bytes. Collective.
bool same_everywhere(const Context& world, const void* data, std::size_t bytes) {
  std::vector<std::uint8_t> of_root(bytes);
  if (bytes > 0) std::memcpy(of_root.data(), data, bytes);
  broadcast(world, view(of_root.data(), static_cast<std::int64_t>(bytes)), {.name = "test.root"});
  std::int32_t same = bytes == 0 || std::memcmp(of_root.data(), data, bytes) == 0 ? 1 : 0;
  allreduce(world, view(&same, 1), {.name = "test.same", .op = ReduceOp::sum});
  return same == world.size();
}

std::uint64_t salt_of(const Context& world, std::uint64_t round) {
  return round * 1000 + static_cast<std::uint64_t>(world.rank());
}

TEST_F(GpuCollectives, TheContextNamesTheGpu) {
  const Context world = init();
  ASSERT_EQ(world.device().kind, DeviceKind::cuda);
  int count = 0;
  cuda(cudaGetDeviceCount(&count));
  EXPECT_LT(world.device().index, count);
  int current = -1;
  cuda(cudaGetDevice(&current));
  EXPECT_EQ(current, world.device().index);
}

TEST_F(GpuCollectives, AllreduceGivesWhatTheCpuPathGives) {
  const Context world = init();
  std::uint64_t round = 0;
  for (const DataType type : kNcclTypes) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
      if (op == ReduceOp::average && !is_floating_point(type)) continue;
      for (const std::int64_t count : {0, 1, 17, 1000, 70001, 3000017}) {
        const std::string what = std::string(name_of(op)) + " of " + std::to_string(count) + " " +
                                 std::string(name_of(type));
        Bytes expected = random_values(type, count, salt_of(world, ++round));
        const DeviceArray array(type, expected);
        // One byte more: a vector without elements may have no address.
        expected.push_back(std::byte{0});
        allreduce(world, {expected.data(), type, {count}, {}, nullptr}, {.name = "cpu", .op = op});
        expected.pop_back();
        allreduce(world, array.view(world.device()), {.name = "gpu", .op = op});
        const Bytes result = array.read(nullptr);
        expect_close(world.size(), type, result, expected, what);
        EXPECT_TRUE(same_everywhere(world, result.data(), result.size())) << what;
      }
    }
  }
}

TEST_F(GpuCollectives, BroadcastGivesTheRootsBytes) {
  const Context world = init();
  for (const DataType type : kNcclTypes) {
    for (const std::int64_t count : {1, 1001, 1500003}) {
      for (int root = 0; root < world.size(); ++root) {
        const auto values = [&](int rank) {
          return random_values(type, count, static_cast<std::uint64_t>(rank));
        };
        const DeviceArray array(type, values(world.rank()));
        broadcast(world, array.view(world.device()), {.name = "b", .root = root});
        EXPECT_EQ(array.read(nullptr), values(root)) << name_of(type) << ", root " << root;
      }
    }
  }
}

TEST_F(GpuCollectives, ManyInAnyOrderOnBothDevices) {
  const Context world = init();
  constexpr int kTensors = 40;
  struct Item {
    Bytes expected;
    Bytes on_host;
    DeviceArray on_device;
    DataType type;
  };
  std::vector<Item> items;
  for (int i = 0; i < kTensors; ++i) {
    const DataType type = kNcclTypes[static_cast<std::size_t>(i) % kNcclTypes.size()];
    const std::int64_t count = 1 + i * 997;
    const Bytes values = random_values(type, count, salt_of(world, static_cast<std::uint64_t>(i)));
    items.push_back({values, values, DeviceArray(type, values), type});
    allreduce(world, {items.back().expected.data(), type, {count}, {}, nullptr},
              {.name = "expected", .op = ReduceOp::sum});
  }
  for (int round = 0; round < 3; ++round) {
    std::vector<Handle> handles;
    for (int i = 0; i < kTensors; ++i) {
      const int which = world.rank() % 2 == 0 ? i : kTensors - 1 - i;
      Item& item = items[static_cast<std::size_t>(which)];
      const auto count = static_cast<std::int64_t>(item.on_host.size() / size_of(item.type));
      const std::string name = std::to_string(which);
      item.on_host =
          random_values(item.type, count, salt_of(world, static_cast<std::uint64_t>(which)));
      item.on_device.write(item.on_host, nullptr);
      handles.push_back(allreduce_async(world, item.on_device.view(world.device()),
                                        {.name = "gpu" + name, .op = ReduceOp::sum}));
      handles.push_back(allreduce_async(world,
                                        {item.on_host.data(), item.type, {count}, {}, nullptr},
                                        {.name = "cpu" + name, .op = ReduceOp::sum}));
    }
    for (Handle& handle : handles) handle.wait();
    for (const Item& item : items) {
      expect_close(world.size(), item.type, item.on_device.read(nullptr), item.expected,
                   "on the GPU");
      expect_close(world.size(), item.type, item.on_host, item.expected, "on the CPU");
    }
  }
}

TEST_F(GpuCollectives, BuffersOfTheGpuWorkInPlaceAndTheirPartsToo) {
  const Context world = init();
  constexpr std::int64_t kCount = 300007;
  const Buffer buffer(world, kCount * sizeof(float), world.device());
  EXPECT_EQ(buffer.device(), world.device());
  Bytes expected = random_values(DataType::float32, kCount, salt_of(world, 0));
  cuda(cudaMemcpy(buffer.data(), expected.data(), expected.size(), cudaMemcpyHostToDevice));
  allreduce(world, {expected.data(), DataType::float32, {kCount}, {}, nullptr}, {.name = "cpu"});
  // In three parts, each a tensor of its own.
  std::vector<Handle> handles;
  for (const auto& [first, end] : {std::pair{0, 1000}, {1000, 200001}, {200001, 300007}}) {
    handles.push_back(
        allreduce_async(world,
                        {buffer.data() + static_cast<std::size_t>(first) * sizeof(float),
                         DataType::float32,
                         {end - first},
                         world.device(),
                         nullptr},
                        {.name = "part" + std::to_string(first)}));
  }
  for (Handle& handle : handles) handle.wait();
  expect_close(world.size(), DataType::float32, to_host(buffer.data(), expected.size(), nullptr),
               expected, "buffer");
}

TEST_F(GpuCollectives, TheSameBitsInEveryRun) {
  const Context world = init();
  constexpr std::int64_t kCount = 1000003;
  const Bytes values = random_values(DataType::float32, kCount, salt_of(world, 0));
  Bytes first;
  for (int run = 0; run < 5; ++run) {
    const DeviceArray array(DataType::float32, values);
    allreduce(world, array.view(world.device()), {.name = "x"});
    const Bytes result = array.read(nullptr);
    if (run == 0) first = result;
    EXPECT_TRUE(result == first) << "run " << run;
  }
}

}  // namespace
}  // namespace hora::internal::test
