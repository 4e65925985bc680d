// The copy kernel against what tests/support/fake_gpu/batched_copy.h calculates on the host.
#include "tests/support/fake_gpu/batched_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "ops/cuda/functions.h"
#include "tests/gpu/batched_copy/arena.h"
#include "tests/gpu/batched_copy/device.h"
#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using enum DataType;
/// Value of bytes that no piece covers.
constexpr auto kUntouched = std::byte{0xa5};
/// As ops/cuda/kernels.h: bytes of a tile on the side of the larger type.
constexpr std::size_t kTileBytes = 16384;

class BatchedCopyTest : public KernelTest {
 protected:
  /// `most`: units in the last place by which values may differ.
  static void compare(const std::vector<PieceShape>& shapes, const BatchedCopy& types,
                      std::uint64_t most) {
    const std::string what = std::string(name_of(types.source_type)) + " to " +
                             std::string(name_of(types.target_type)) + ", scale " +
                             std::to_string(types.scale);
    const Arena arena = lay_out(shapes, types.source_type, types.target_type);
    std::vector<std::byte> source(arena.source_bytes);
    auto random = generator(size_of(types.source_type));
    fill(source, types.source_type, random);
    std::vector<std::byte> expected(arena.target_bytes, kUntouched);
    BatchedCopy on_host = types;
    const auto pieces = pieces_in(arena, shapes, source.data(), expected.data());
    on_host.pieces = pieces;
    run(on_host);

    source.resize(arena.source_bytes + arena.target_bytes, kUntouched);
    auto result = on_device(source, [&](std::byte* block, cudaStream_t stream) {
      // Gone once the call returns, before the kernel has run.
      const auto own = pieces_in(arena, shapes, block, block + arena.source_bytes);
      BatchedCopy copy = types;
      copy.pieces = own;
      check(device().batched_copy(copy, stream));
    });
    result.erase(result.begin(), result.end() - static_cast<std::ptrdiff_t>(arena.target_bytes));
    std::vector<bool> covered(result.size(), false);
    const std::size_t bytes = size_of(types.target_type);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      for (std::int64_t element = 0; element < shapes[i].elements; ++element) {
        const std::size_t at = arena.target_offset[i] + static_cast<std::size_t>(element) * bytes;
        std::fill_n(covered.begin() + static_cast<std::ptrdiff_t>(at), bytes, true);
        const auto apart = distance(types.target_type, result.data() + at, expected.data() + at);
        const bool bits = types.source_type == types.target_type && types.scale == 1.0;
        ASSERT_LE(apart, most) << what << ": element " << element << " of " << shapes[i].elements
                               << ", shifts " << shapes[i].source_shift << " and "
                               << shapes[i].target_shift;
        ASSERT_TRUE(!bits || std::memcmp(&result[at], &expected[at], bytes) == 0) << what;
      }
    }
    for (std::size_t at = 0; at < result.size(); ++at) {
      ASSERT_TRUE(covered[at] || result[at] == kUntouched) << what << ": byte " << at;
    }
  }

  /// The flag, 0 before, once `source` from element `shift` on has been converted.
  static double flag_of(const std::vector<float>& source, int shift, DataType target, double scale,
                        double limit) {
    constexpr std::size_t kTarget = 256;  // the flag is before it
    const std::size_t begin = kTarget + (source.size() * sizeof(double) + 255) / 256 * 256;
    std::vector<std::byte> memory(begin + source.size() * sizeof(float));
    std::memcpy(memory.data() + begin, source.data(), memory.size() - begin);
    const auto result = on_device(memory, [&](std::byte* block, cudaStream_t stream) {
      const std::array pieces = {
          CopyPiece{block + begin + static_cast<std::size_t>(shift) * sizeof(float),
                    block + kTarget, static_cast<std::int64_t>(source.size()) - shift}};
      check(device().batched_copy({pieces, float32, target, scale, block, limit}, stream));
    });
    double value = 0;
    const CopyPiece widen{result.data(), &value, 1};
    run({std::array{widen}, target, float64, 1.0});
    return value;
  }

  static std::vector<PieceShape> shapes_for(DataType source, DataType target) {
    const std::size_t larger = std::max(size_of(source), size_of(target));
    const std::size_t smaller = std::min(size_of(source), size_of(target));
    return piece_shapes(static_cast<int>(16 / smaller),
                        static_cast<std::int64_t>(kTileBytes / larger));
  }
};

TEST_F(BatchedCopyTest, EqualTypesAreCopiedBitByBit) {
  for (const DataType type : kAllTypes) compare(shapes_for(type, type), {{}, type, type, 1.0}, 0);
}

TEST_F(BatchedCopyTest, PowersOfTwoAreExactToTheBit) {
  for (const DataType source : kFloatTypes) {
    for (const DataType target : kFloatTypes) {
      for (const double scale : {1.0, 0.25, 8.0}) {
        compare(shapes_for(source, target), {{}, source, target, scale}, 0);
      }
    }
  }
}

// The host forms the product without rounding; the kernel rounds the scale (by less than half of a
// float32's last place, for these scales) and the product to float32 where no type is float64, and
// then once more to the target's type.
TEST_F(BatchedCopyTest, OtherScalesAreWithinOneUnitInTheLastPlace) {
  for (const DataType source : kFloatTypes) {
    for (const DataType target : kFloatTypes) {
      for (const double scale : {1.0 / 3, 0.1}) {
        compare(shapes_for(source, target), {{}, source, target, scale}, 1);
      }
    }
  }
}

// A tile has a head and a tail of single elements and a body of vectors; where source and target
// are not aligned alike it is all single elements.
TEST_F(BatchedCopyTest, TellsOfOneValueOutsideTheLimitWhereverItIs) {
  constexpr double kLimit = 10.0;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::array outside = {kInfinity, -kInfinity, std::nanf(""), 41.0F, -41.0F};
  std::size_t which = 0;
  for (const DataType target : kFloatTypes) {
    const auto tile =
        static_cast<std::int64_t>(kTileBytes / std::max(sizeof(float), size_of(target)));
    for (const std::int64_t elements : {std::int64_t{1}, std::int64_t{37}, 2 * tile + 5}) {
      for (const int shift : {0, 1}) {
        for (const std::int64_t where :
             {std::int64_t{-1}, std::int64_t{0}, elements / 2, elements - 1}) {
          std::vector<float> source(static_cast<std::size_t>(elements + shift), -40.0F);
          const bool inside = where < 0;
          if (!inside) {
            source[static_cast<std::size_t>(where + shift)] = outside[which++ % outside.size()];
          }
          EXPECT_EQ(flag_of(source, shift, target, 0.25, kLimit), inside ? 0.0 : 1.0)
              << name_of(target) << ", element " << where << " of " << elements << ", shift "
              << shift;
        }
      }
    }
  }
}

TEST_F(BatchedCopyTest, APieceMayBeItsOwnTarget) {
  std::vector<float> values(10001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 5000.0F;
  const std::size_t bytes = values.size() * sizeof(float);
  std::vector<std::byte> memory(bytes + 64);
  std::memcpy(memory.data() + 4, values.data(), bytes);
  const auto result = on_device(memory, [&](std::byte* block, cudaStream_t stream) {
    const std::array pieces = {
        CopyPiece{block + 4, block + 4, static_cast<std::int64_t>(values.size())}};
    check(device().batched_copy({pieces, float32, float32, 0.5, block + bytes + 32, 1e30}, stream));
  });
  for (float& value : values) value *= 0.5F;
  EXPECT_EQ(std::memcmp(result.data() + 4, values.data(), bytes), 0);
}

TEST_F(BatchedCopyTest, BytesBecomeTruths) {
  compare(shapes_for(uint8, boolean), {{}, uint8, boolean, 1.0}, 0);
}

TEST_F(BatchedCopyTest, MorePiecesThanOneLaunchHolds) {
  std::vector<PieceShape> shapes;
  for (int i = 0; i < 5000; ++i) shapes.push_back({i % 9, i % 5, i % 3, i % 11 == 0});
  compare(shapes, {}, 0);
  compare({}, {}, 0);
}

TEST_F(BatchedCopyTest, OneLargePiece) {
  constexpr std::int64_t kElements = (std::int64_t{1} << 20) + 3;
  compare({{kElements, 0, 0, false}}, {{}, float32, float16, 1.0}, 0);
  compare({{kElements, 1, 2, false}}, {}, 0);
}

TEST_F(BatchedCopyTest, RefusesWhatCannotBeCopied) {
  const CudaStream stream(device(), 0);
  const DeviceMemory memory(device(), 256);
  const auto refused = [&](const CopyPiece& piece, DataType source, DataType target) {
    const std::array pieces = {piece};
    const BatchedCopy copy{pieces, source, target, 1.0};
    EXPECT_EQ(device().batched_copy(copy, stream.get()), cudaErrorInvalidValue);
  };
  refused({memory.data(), memory.data() + 128, 4}, int32, float32);
  refused({memory.data() + 1, memory.data() + 128, 4}, float32, float32);
  refused({memory.data(), memory.data() + 130, 4}, float16, float32);
  refused({memory.data(), memory.data() + 128, -1}, float32, float32);
  const std::array pieces = {CopyPiece{memory.data(), memory.data() + 128, 4}};
  for (const BatchedCopy& copy : {BatchedCopy{pieces, float32, float32, 1.0, memory.data() + 65},
                                  BatchedCopy{pieces, int32, int32, 1.0, memory.data() + 64}}) {
    EXPECT_EQ(device().batched_copy(copy, stream.get()), cudaErrorInvalidValue) << "its flag";
  }
  check(device().stream_synchronize(stream.get()));
}

}  // namespace
}  // namespace hora::internal::test
