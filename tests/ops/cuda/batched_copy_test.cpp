// The kernel on a GPU against the same arithmetic on the host; skipped where there is none.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>
#include <hora/types.h>

#include <cstring>
#include <random>
#include <vector>

#include "ops/cuda/functions.h"
#include "tests/support/seed.h"

namespace hora {
namespace {

struct Float16 {
  using Value = __half;
  static constexpr DataType kType = DataType::float16;
  static float widened(Value value) { return __half2float(value); }
  static Value rounded(float value) { return __float2half_rn(value); }
  static Value rounded(double value) { return __double2half(value); }
};
struct Bfloat16 {
  using Value = __nv_bfloat16;
  static constexpr DataType kType = DataType::bfloat16;
  static float widened(Value value) { return __bfloat162float(value); }
  static Value rounded(float value) { return __float2bfloat16_rn(value); }
  static Value rounded(double value) { return __double2bfloat16(value); }
};
template <class T>
struct Plain {
  using Value = T;
  static constexpr DataType kType = data_type_of<T>;
  static T widened(T value) { return value; }
  template <class Wide>
  static T rounded(Wide value) {
    return static_cast<T>(value);
  }
};

/// One allocation on the device for a test's sources, one for its targets.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes) {
    EXPECT_EQ(cuda_runtime().malloc(&data_, bytes), cudaSuccess);
  }
  ~DeviceBytes() { cuda_runtime().free(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

void transfer(void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind) {
  ASSERT_EQ(cuda_runtime().memcpy_async(target, source, bytes, kind, nullptr), cudaSuccess);
  ASSERT_EQ(cuda_runtime().stream_synchronize(nullptr), cudaSuccess);
}

/// Pieces of random lengths at random elements, of one kind of alignment in a third of the cases
/// each; between the pieces of the targets nothing may change.
template <class Source, class Target>
void check(double scale, bool bits = false) {
  using From = typename Source::Value;
  using To = typename Target::Value;
  using Wide = decltype(Source::widened(From{}) + Target::widened(To{}));
  auto generator = test::generator();
  const auto random = [&](std::size_t end) {
    return std::uniform_int_distribution<std::size_t>(0, end - 1)(generator);
  };
  struct Place {
    std::size_t from, to, elements;
    bool zeros;
  };
  std::vector<Place> places;
  std::size_t from = 0;
  std::size_t to = 0;
  for (int i = 0; i < 400; ++i) {
    const std::size_t shift = random(16);
    from += 16 - from % 16 + shift;
    to += 16 - to % 16 + (random(3) == 0 ? random(16) : shift);
    places.push_back({from, to, i % 8 == 0 ? random(50'000) : random(70), random(8) == 0});
    from += places.back().elements;
    to += places.back().elements;
  }

  std::vector<From> sources(from);
  std::vector<To> expected(to);
  std::memset(static_cast<void*>(expected.data()), 0x5a, to * sizeof(To));
  std::uniform_real_distribution<double> value(0, 200);
  for (From& source : sources) {
    source = Source::rounded(value(generator));
  }
  const DeviceBytes device_sources(from * sizeof(From));
  const DeviceBytes device_targets(to * sizeof(To));
  std::vector<CopyPiece> pieces;
  transfer(device_sources.data(), sources.data(), from * sizeof(From), cudaMemcpyHostToDevice);
  transfer(device_targets.data(), expected.data(), to * sizeof(To), cudaMemcpyHostToDevice);
  for (const Place& place : places) {
    pieces.push_back({place.zeros ? nullptr : device_sources.data() + place.from * sizeof(From),
                      device_targets.data() + place.to * sizeof(To),
                      static_cast<std::int64_t>(place.elements)});
    for (std::size_t i = 0; i < place.elements; ++i) {
      const Wide wide = Source::widened(sources[place.from + i]);
      expected[place.to + i] = place.zeros ? To{}
                               : bits      ? Target::rounded(wide)
                                           : Target::rounded(wide * static_cast<Wide>(scale));
    }
  }
  ASSERT_EQ(cuda_runtime().batched_copy({pieces, Source::kType, Target::kType, scale}, nullptr),
            cudaSuccess);
  std::vector<To> targets(to);
  transfer(targets.data(), device_targets.data(), to * sizeof(To), cudaMemcpyDeviceToHost);
  EXPECT_EQ(std::memcmp(targets.data(), expected.data(), to * sizeof(To)), 0)
      << name_of(Source::kType) << " to " << name_of(Target::kType) << " times " << scale;
}

class BatchedCopyOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cuda_runtime().get_device_count(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no GPU here";
    }
  }
};

template <class Source>
void check_targets() {
  for (const double scale : {1.0, 1.0 / 3.0}) {
    check<Source, Float16>(scale);
    check<Source, Bfloat16>(scale);
    check<Source, Plain<float>>(scale);
    check<Source, Plain<double>>(scale);
  }
}

TEST_F(BatchedCopyOnGpu, FromFloat16) {
  check_targets<Float16>();
}
TEST_F(BatchedCopyOnGpu, FromBfloat16) {
  check_targets<Bfloat16>();
}
TEST_F(BatchedCopyOnGpu, FromFloat32) {
  check_targets<Plain<float>>();
}
TEST_F(BatchedCopyOnGpu, FromFloat64) {
  check_targets<Plain<double>>();
}
TEST_F(BatchedCopyOnGpu, BitsOfIntegers) {
  check<Plain<std::uint8_t>, Plain<std::uint8_t>>(1.0, true);
  check<Plain<std::int32_t>, Plain<std::int32_t>>(1.0, true);
  check<Plain<std::int64_t>, Plain<std::int64_t>>(1.0, true);
}

}  // namespace
}  // namespace hora
