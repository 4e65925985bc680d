// The update kernel against the host's, bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <variant>
#include <vector>

#include "ops/cuda/functions.h"
#include "ops/local/kernels.h"
#include "tests/gpu/batched_copy/arena.h"
#include "tests/gpu/batched_copy/device.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

constexpr std::size_t kArrays = 5;  ///< parameter, gradient, three states
using Step = std::variant<SgdStep, AdamStep>;

/// Tensors of these lengths in one block of memory, each of the arrays `shift` elements past an
/// aligned address.
struct Places {
  Places(const std::vector<std::size_t>& lengths, std::size_t element, std::size_t shift)
      : counts(lengths) {
    for (const std::size_t count : counts) {
      std::vector<std::size_t>& arrays = offsets.emplace_back();
      for (std::size_t a = 0; a < kArrays; ++a) {
        arrays.push_back(place(bytes, count * element, shift * element));
      }
    }
  }
  std::vector<UpdatePiece> pieces(std::byte* memory) const {
    std::vector<UpdatePiece> result;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const auto at = [&](std::size_t array) { return memory + offsets[i][array]; };
      result.push_back({at(0), at(1), {at(2), at(3), at(4)}, static_cast<std::int64_t>(counts[i])});
    }
    return result;
  }

  std::vector<std::size_t> counts;
  std::vector<std::vector<std::size_t>> offsets;
  std::size_t bytes = 0;
};

template <class T>
void fill_with_normals(std::vector<std::byte>& memory, std::mt19937_64& random) {
  std::normal_distribution<double> normal(0, 1);
  for (std::size_t at = 0; at + sizeof(T) <= memory.size(); at += sizeof(T)) {
    // Squares are not negative.
    const T value = static_cast<T>(std::abs(normal(random)));
    std::memcpy(memory.data() + at, &value, sizeof value);
  }
}

class BatchedUpdateTest : public KernelTest {
 protected:
  static void on_host(const Places& places, DataType type, const Step& step,
                      std::vector<std::byte>& memory) {
    for (const UpdatePiece& piece : places.pieces(memory.data())) {
      const std::byte* const gradients[] = {static_cast<const std::byte*>(piece.gradient)};
      UpdateMemory own{.parameter = static_cast<std::byte*>(piece.parameter),
                       .gradients = gradients};
      for (int s = 0; s < 3; ++s) own.state[s] = static_cast<std::byte*>(piece.state[s]);
      std::visit(
          [&](const auto& values) {
            update(type, values, own, 0, static_cast<std::size_t>(piece.elements));
          },
          step);
    }
  }

  static void expect_hosts_bits(const std::vector<std::size_t>& lengths, const Step& step,
                                std::mt19937_64& random) {
    for (const DataType type : {DataType::float32, DataType::float64}) {
      for (const std::size_t shift : {0, 1}) {
        const Places places(lengths, size_of(type), shift);
        std::vector<std::byte> memory(places.bytes);
        if (type == DataType::float32) {
          fill_with_normals<float>(memory, random);
        } else {
          fill_with_normals<double>(memory, random);
        }
        const auto result = on_device(memory, [&](std::byte* block, cudaStream_t stream) {
          // Gone once the call returns, before the kernel has run.
          const auto pieces = places.pieces(block);
          check(device().batched_update({pieces, type, step}, stream));
        });
        on_host(places, type, step, memory);
        const auto differs = std::ranges::mismatch(result, memory).in1 - result.begin();
        ASSERT_EQ(static_cast<std::size_t>(differs), result.size())
            << "byte " << differs << ", " << name_of(type) << ", shift " << shift << ", step "
            << step.index();
      }
    }
  }
};

std::vector<Step> steps() {
  std::vector<Step> all;
  for (const Rounding rounding : {Rounding::separate, Rounding::fused}) {
    all.emplace_back(SgdStep{.rate = 0.1, .rounding = rounding});
    for (const bool first : {false, true}) {
      for (const bool nesterov : {false, true}) {
        all.emplace_back(SgdStep{.rate = 0.1,
                                 .momentum = 0.9,
                                 .dampening = nesterov ? 0 : 0.1,
                                 .weight_decay = 0.01,
                                 .nesterov = nesterov,
                                 .first = first,
                                 .rounding = rounding});
      }
      all.emplace_back(AdamStep{.rate = 0.03,
                                .root = 0.2,
                                .beta1 = 0.9,
                                .beta2 = 0.99,
                                .epsilon = 1e-6,
                                .weight_decay = first ? 0.01 : 0,
                                .decay = first ? 1 : 0.97,
                                .amsgrad = first,
                                .rounding = rounding,
                                .square_rounding = rounding});
    }
  }
  return all;
}

TEST_F(BatchedUpdateTest, GivesTheHostsBits) {
  auto random = generator();
  for (const Step& step : steps()) {
    expect_hosts_bits({1, 3, 0, 17, 255, 1000, 2048, 2049, 4096, 4099, 20000}, step, random);
  }
}

TEST_F(BatchedUpdateTest, ManyTensorsTakeSeveralLaunchesAndALongOneManyBlocks) {
  auto random = generator();
  expect_hosts_bits(std::vector<std::size_t>(301, 37), SgdStep{.rate = 0.1, .momentum = 0.9},
                    random);
  expect_hosts_bits({3000017}, SgdStep{.rate = 0.1, .momentum = 0.9}, random);
}

}  // namespace
}  // namespace hora::internal::test
