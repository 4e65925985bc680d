// The reduction kernel against the host's, bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "ops/cuda/functions.h"
#include "ops/local/kernels.h"
#include "tests/gpu/batched_copy/arena.h"
#include "tests/gpu/batched_copy/device.h"
#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using enum DataType;

struct Case {
  DataType type = float32;
  std::size_t inputs = 2;
  std::size_t count = 0;
  std::size_t shift = 0;  ///< elements from an aligned address; of the output and every third input
  double scale = 1.0;
  bool in_place = false;  ///< the output is the last input
  ReduceOp op = ReduceOp::sum;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << name_of(c.op) << " of " << c.inputs << " inputs of " << c.count << " "
             << name_of(c.type) << ", shift " << c.shift << ", scale " << c.scale
             << (c.in_place ? ", in place" : "");
}

/// The blocks of a case in one block of memory: its inputs, then its output.
struct Places {
  explicit Places(const Case& c) {
    for (std::size_t i = 0; i <= c.inputs; ++i) {
      if (i == c.inputs && c.in_place) {
        offsets.push_back(offsets.back());
        break;
      }
      const bool shifted = i == c.inputs || i % 3 == 2;
      const std::size_t size = size_of(c.type);
      offsets.push_back(place(bytes, c.count * size, shifted ? c.shift * size : 0));
    }
  }
  std::vector<const std::byte*> inputs(const std::byte* memory) const {
    std::vector<const std::byte*> result;
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) result.push_back(memory + offsets[i]);
    return result;
  }
  std::byte* output(std::byte* memory) const { return memory + offsets.back(); }

  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
};

class DeviceReduceTest : public KernelTest {
 protected:
  static void expect_hosts_bits(const Case& c, std::mt19937_64& random) {
    const Places places(c);
    std::vector<std::byte> memory(places.bytes);
    fill(memory, c.type, random);
    const auto result = on_device(memory, [&](std::byte* block, cudaStream_t stream) {
      // Gone once the call returns, before the kernel has run.
      const auto inputs = places.inputs(block);
      check(device().device_reduce({.type = c.type,
                                    .op = c.op,
                                    .inputs = inputs,
                                    .output = places.output(block),
                                    .count = static_cast<std::int64_t>(c.count),
                                    .scale = c.scale},
                                   stream));
    });
    std::byte* const output = places.output(memory.data());
    reduce(c.type, c.op, places.inputs(memory.data()), {&output, 1}, c.count, {.post = c.scale});
    const std::size_t begin = places.offsets.back();
    const std::size_t size = size_of(c.type);
    for (std::size_t i = 0; i < c.count; ++i) {
      const std::size_t at = begin + i * size;
      ASSERT_EQ(distance(c.type, result.data() + at, memory.data() + at), 0U)
          << c << ", element " << i;
    }
    const auto same = [&](std::size_t from, std::size_t to) {
      return std::equal(result.begin() + static_cast<std::ptrdiff_t>(from),
                        result.begin() + static_cast<std::ptrdiff_t>(to),
                        memory.begin() + static_cast<std::ptrdiff_t>(from));
    };
    EXPECT_TRUE(same(0, begin) && same(begin + c.count * size, memory.size()))
        << c << ": wrote beside its output";
  }
};

TEST_F(DeviceReduceTest, GivesTheHostsBits) {
  auto random = generator();
  for (const DataType type : kAllTypes) {
    for (const std::size_t inputs : {1, 2, 3, 4, 5, 8, 9, 14, 33}) {
      for (const std::size_t count : {0, 1, 3, 8, 17, 255, 1000, 4099}) {
        const double scale = random() % 2 == 0 ? 1.0 : 1.0 / static_cast<double>(inputs);
        for (const ReduceOp op : kElementOps) {
          expect_hosts_bits(
              {type, inputs, count, random() % 3 == 0 ? 1U : 0U, scale, random() % 2 == 0, op},
              random);
        }
      }
    }
  }
}

TEST_F(DeviceReduceTest, LongOnesAndAsManyInputsAsPossible) {
  auto random = generator();
  for (const DataType type : kAllTypes) {
    expect_hosts_bits({type, 3, 1000003, 0, 1.0 / 3, true}, random);
    expect_hosts_bits({type, DeviceReduction::kMaximumInputs, 1003, 0, 0.25, false}, random);
  }
  expect_hosts_bits({boolean, 1, 1000, 0, 1.0, true}, random);  // no copy: truths become 0 and 1
  // Longer than the largest grid takes in one go.
  expect_hosts_bits({uint8, 2, (std::size_t{1} << 24) + 5, 1, 1.0, false}, random);
}

}  // namespace
}  // namespace hora::internal::test
