// The order between collectives and the streams of the application.
#include <gtest/gtest.h>
#include <hora/hora.h>

#include <cstring>
#include <optional>
#include <vector>

#include "tests/gpu/collectives/device_array.h"
#include "tests/gpu/collectives/values.h"
#include "tests/gpu/require_gpu.h"

namespace hora::internal::test {
namespace {

constexpr std::int64_t kStreamCount = 1 << 20;
constexpr std::size_t kLoadBytes = std::size_t{256} << 20;

Bytes floats(float value) {
  std::vector<float> values(kStreamCount, value);
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class GpuStreams : public GpuTest {
 protected:
  /// Keeps `stream` busy for some milliseconds, so that what comes later would be overtaken if
  /// nothing ordered it.
  void load(const TestStream& stream) {
    for (int i = 0; i < 40; ++i) {
      cuda(cudaMemsetAsync(ballast_.data(), i, kLoadBytes, stream.get()));
    }
  }

  /// Sum over ranks of 1 + rank, in round `round` times more.
  static float sum(const Context& world, int round) {
    return static_cast<float>(round * world.size() * (world.size() + 1) / 2);
  }

  /// The input comes on `stream` behind a long load; both inputs are made ahead of time.
  void write_late(const Context& world, const TestStream& stream, int round) {
    source_.write(floats(static_cast<float>(round * (1 + world.rank()))), stream.get());
    cuda(cudaStreamSynchronize(stream.get()));
    cuda(cudaMemsetAsync(tensor_.data(), 0xff, tensor_.bytes(), stream.get()));
    load(stream);
    cuda(cudaMemcpyAsync(tensor_.data(), source_.data(), tensor_.bytes(), cudaMemcpyDeviceToDevice,
                         stream.get()));
  }

  /// Only where there is a GPU; after init(), which chooses it where there are several.
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    world_.emplace(init());
    ballast_ = DeviceArray(DataType::uint8, kLoadBytes);
    source_ = DeviceArray(DataType::float32, kStreamCount);
    tensor_ = DeviceArray(DataType::float32, kStreamCount);
  }

  std::optional<Context> world_;
  DeviceArray ballast_, source_, tensor_;
};

/// How the application waits for a result, and so the stream that may read it.
enum class Waits { on_its_stream, on_another, on_the_host };

TEST_F(GpuStreams, ACollectiveTakesWhatItsStreamHasWrittenForWhoeverWaits) {
  const Context& world = *world_;
  const TestStream producer, consumer, unrelated;
  for (const Waits waits : {Waits::on_its_stream, Waits::on_another, Waits::on_the_host}) {
    for (int round = 1; round <= 5; ++round) {
      write_late(world, producer, round);
      Handle handle = allreduce_async(world, tensor_.view(world.device(), producer.get()),
                                      {.name = "x", .op = ReduceOp::sum});
      const TestStream* reader = &producer;  // its own order, no synchronisation between
      if (waits == Waits::on_its_stream) {
        handle.wait();
      } else if (waits == Waits::on_another) {
        handle.wait(consumer.get());
        reader = &consumer;
      } else {
        handle.synchronize();
        reader = &unrelated;  // that nothing orders: the values are there already
      }
      EXPECT_EQ(tensor_.read(reader->get()), floats(sum(world, round)))
          << static_cast<int>(waits) << ", round " << round;
    }
  }
}

TEST_F(GpuStreams, TheNullStreamIsTheDefault) {
  const Context& world = *world_;
  tensor_.write(floats(static_cast<float>(1 + world.rank())), nullptr);
  allreduce(world, tensor_.view(world.device()), {.name = "x", .op = ReduceOp::sum});
  EXPECT_EQ(tensor_.read(nullptr), floats(sum(world, 1)));
}

TEST_F(GpuStreams, ResultsMayBeTheNextInput) {
  const Context& world = *world_;
  const TestStream stream;
  tensor_.write(floats(1.0F), stream.get());
  cuda(cudaStreamSynchronize(stream.get()));
  float expected = 1.0F;
  for (int round = 0; round < 10; ++round) {
    allreduce(world, tensor_.view(world.device(), stream.get()),
              {.name = "x", .op = ReduceOp::sum});
    expected *= static_cast<float>(world.size());
  }
  EXPECT_EQ(tensor_.read(stream.get()), floats(expected));
}

}  // namespace
}  // namespace hora::internal::test
