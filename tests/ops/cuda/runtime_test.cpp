// CUDA's own functions and the kernels, as far as they answer on a machine without a GPU.
#include <gtest/gtest.h>
#include <hora/types.h>

#include <array>
#include <vector>

#include "ops/cuda/functions.h"

namespace hora::internal {
namespace {

TEST(CudaRuntime, AnswersWithoutADevice) {
  int devices = -1;
  const cudaError_t error = cuda_runtime().get_device_count(&devices);
  if (error == cudaSuccess) {
    EXPECT_GE(devices, 0);
  } else {
    EXPECT_STRNE(cuda_runtime().get_error_string(error), "");
    EXPECT_EQ(cuda_runtime().get_last_error(), error);
  }
}

TEST(CudaRuntime, ItsFileIsFound) {
  EXPECT_NE(check_one_copy().cuda_runtime.find("libcudart"), std::string::npos);
}

TEST(CudaRuntime, NothingIsLaunchedForNothing) {
  const std::vector<CopyPiece> empty(1000);
  for (const DataType type : {DataType::uint8, DataType::float16, DataType::float64}) {
    EXPECT_EQ(cuda_runtime().batched_copy({{}, type, type, 1.0}, nullptr), cudaSuccess);
    EXPECT_EQ(cuda_runtime().batched_copy({empty, type, type, 1.0}, nullptr), cudaSuccess);
  }
}

TEST(CudaRuntime, CopiesThatHaveNoMeaningAreInvalid) {
  const auto copy = [](DataType source, DataType target, double scale, CopyPiece piece = {}) {
    const std::array pieces = {piece};
    return cuda_runtime().batched_copy({pieces, source, target, scale}, nullptr);
  };
  EXPECT_EQ(copy(DataType::int32, DataType::float32, 1.0), cudaErrorInvalidValue);
  EXPECT_EQ(copy(DataType::float32, DataType::int64, 1.0), cudaErrorInvalidValue);
  EXPECT_EQ(copy(DataType::int32, DataType::int32, 0.5), cudaErrorInvalidValue);
  const DataType type = DataType::float32;
  EXPECT_EQ(copy(type, type, 1.0, {nullptr, nullptr, 1}), cudaErrorInvalidValue);
  alignas(8) std::array<char, 16> memory;  // the rest: CopyPlan
  EXPECT_EQ(copy(type, type, 1.0, {&memory[1], &memory[0], 1}), cudaErrorInvalidValue);
}

TEST(CudaRuntime, ReductionsOfNothingAreNotLaunchedAndWrongOnesAreInvalid) {
  alignas(8) std::array<std::byte, 16> memory;
  std::byte* const output = memory.data();
  const auto reduced = [&](std::vector<const std::byte*> inputs, std::int64_t count,
                           DataType type = DataType::float32) {
    return cuda_runtime().device_reduce(
        {.type = type, .inputs = inputs, .output = output, .count = count, .scale = 0.5}, nullptr);
  };
  EXPECT_EQ(reduced({output, output}, 0), cudaSuccess);
  EXPECT_EQ(reduced({output}, 4, DataType::int32), cudaSuccess) << "a copy onto itself";
  EXPECT_EQ(reduced({}, 4), cudaErrorInvalidValue);
  EXPECT_EQ(reduced({output, nullptr}, 4), cudaErrorInvalidValue);
  EXPECT_EQ(reduced({output, output + 1}, 1), cudaErrorInvalidValue);
  EXPECT_EQ(reduced({output, output}, -1), cudaErrorInvalidValue);
  EXPECT_EQ(reduced({output, output}, 1, static_cast<DataType>(99)), cudaErrorInvalidValue);
  const std::vector<const std::byte*> too_many(DeviceReduction::kMaximumInputs + 1, output);
  EXPECT_EQ(reduced(too_many, 4), cudaErrorInvalidValue);
}

TEST(CudaRuntime, UpdatesOfNothingAreNotLaunchedAndWrongOnesAreInvalid) {
  alignas(8) std::array<std::byte, 64> memory;
  const auto updated = [&](UpdatePiece piece, DataType type = DataType::float32,
                           SgdStep step = {.momentum = 0.9}) {
    const std::array pieces = {piece};
    return cuda_runtime().batched_update({pieces, type, step}, nullptr);
  };
  void* const at = memory.data();
  EXPECT_EQ(cuda_runtime().batched_update({}, nullptr), cudaSuccess);
  EXPECT_EQ(updated({at, at, {at}, 0}), cudaSuccess);
  EXPECT_EQ(updated({at, at, {at}, 0}, DataType::bfloat16), cudaErrorInvalidValue);
  EXPECT_EQ(updated({at, at, {}, 1}), cudaErrorInvalidValue) << "no momentum buffer";
  EXPECT_EQ(updated({&memory[1], at, {at}, 1}), cudaErrorInvalidValue);
  EXPECT_EQ(updated({&memory[4], at, {at}, 1}, DataType::float64), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace hora::internal
