#include "ops/cuda/functions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include "tests/support/fake_gpu/fake_gpu.h"

namespace hora::internal {
namespace {

class CudaCheckTest : public testing::Test {
 protected:
  Error failure(cudaError_t error) {
    try {
      cuda_check(gpu_.cuda(), error, "cudaEventRecord");
    } catch (const Error& thrown) {
      return thrown;
    }
    ADD_FAILURE() << "nothing was thrown";
    return {ErrorCode::invalid_use, ""};
  }

  test::FakeNcclWorld world_;
  test::FakeGpu gpu_{world_};
};

TEST_F(CudaCheckTest, SuccessThrowsNothing) {
  EXPECT_NO_THROW(cuda_check(gpu_.cuda(), cudaSuccess, "cudaEventRecord"));
}

TEST_F(CudaCheckTest, NamesCallReasonAndNumber) {
  const Error error = failure(cudaErrorInvalidValue);
  EXPECT_EQ(error.code(), ErrorCode::transport);
  EXPECT_STREQ(error.what(), "cudaEventRecord failed: invalid argument (error 1)");
}

TEST_F(CudaCheckTest, LackOfMemoryHasItsOwnCode) {
  const Error error = failure(cudaErrorMemoryAllocation);
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  EXPECT_THAT(error.what(), testing::HasSubstr("out of memory (error 2)"));
}

TEST_F(CudaCheckTest, ClearsTheLastError) {
  gpu_.fail("set_device", 1, cudaErrorInvalidDevice);
  EXPECT_THROW(cuda_check(gpu_.cuda(), gpu_.cuda().set_device(0), "cudaSetDevice"), Error);
  EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess);

  gpu_.fail("set_device", 1, cudaErrorInvalidDevice);
  cuda_check_release(gpu_.cuda(), gpu_.cuda().set_device(0), "cudaSetDevice");
  EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess);
}

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As the kernel writes it: four mappings of each library, one of them executable.
constexpr std::string_view kOneCopy =
    "55d0c6a00000-55d0c6a10000 r-xp 00000000 fd:00 101                        /home/u/train\n"
    "7f11a0000000-7f11a0021000 rw-p 00000000 00:00 0 \n"
    "7f11b0000000-7f11b0001000 r--p 00000000 fd:00 2001                       "
    "/usr/local/cuda-13.0/lib/libcudart.so.13.0.96\n"
    "7f11b0001000-7f11b0051000 r-xp 00001000 fd:00 2001                       "
    "/usr/local/cuda-13.0/lib/libcudart.so.13.0.96\n"
    "7f11b0051000-7f11b0052000 rw-p 00051000 fd:00 2001                       "
    "/usr/local/cuda-13.0/lib/libcudart.so.13.0.96\n"
    "7f11c0000000-7f11c0100000 r-xp 00001000 fd:00 2002                       "
    "/opt/nccl/lib/libnccl.so.2.28.9\n"
    "7f11d0000000-7f11d0100000 r-xp 00001000 fd:00 2003                       "
    "/opt/plugins/libnccl-net.so\n"
    "7ffd3c5e0000-7ffd3c601000 rw-p 00000000 00:00 0                          [stack]\n";

std::string line(std::string_view file, std::string_view path, std::string_view mode = "r-xp") {
  return "7f2000000000-7f2000001000 " + std::string(mode) + " 00001000 " + std::string(file) +
         "      " + std::string(path) + "\n";
}

std::string message_of(std::string_view maps) {
  try {
    check_one_copy(maps);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_use);
    return error.what();
  }
  return {};
}

TEST(LoadedLibraries, OneCopyOfEach) {
  const LoadedLibraries libraries = check_one_copy(kOneCopy);
  EXPECT_EQ(libraries.cuda_runtime, "/usr/local/cuda-13.0/lib/libcudart.so.13.0.96");
  EXPECT_EQ(libraries.nccl, "/opt/nccl/lib/libnccl.so.2.28.9");
}

TEST(LoadedLibraries, NoneLoaded) {
  EXPECT_THAT(loaded_files("", "libnccl"), IsEmpty());
  EXPECT_THAT(loaded_files("\n\nnonsense\n7f-7f r-xp", "libnccl"), IsEmpty());
  EXPECT_EQ(check_one_copy("").cuda_runtime, "");
}

TEST(LoadedLibraries, TwoCopiesAreRefusedByBothNames) {
  EXPECT_THAT(message_of(std::string(kOneCopy) +
                         line("fd:00 3001", "/site-packages/nvidia/nccl/lib/libnccl.so.2")),
              AllOf(HasSubstr("two copies of NCCL (libnccl)"),
                    HasSubstr("/opt/nccl/lib/libnccl.so.2.28.9 and "
                              "/site-packages/nvidia/nccl/lib/libnccl.so.2. "),
                    HasSubstr("LD_LIBRARY_PATH")));
  EXPECT_THAT(message_of(std::string(kOneCopy) + line("fd:00 3002", "/torch/libcudart.so.12")),
              HasSubstr("libcudart.so.13.0.96 and /torch/libcudart.so.12"));
}

TEST(LoadedLibraries, OneFileUnderSeveralNamesIsOne) {
  EXPECT_THAT(loaded_files(std::string(kOneCopy) + line("fd:00 2002", "/other/name/libnccl.so.2"),
                           "libnccl"),
              ElementsAre("/opt/nccl/lib/libnccl.so.2.28.9"));
  // Equal inodes of two devices are two files.
  EXPECT_THAT(
      loaded_files(line("fd:00 7", "/a/libnccl.so") + line("fd:01 7", "/b/libnccl.so"), "libnccl"),
      ElementsAre("/a/libnccl.so", "/b/libnccl.so"));
}

TEST(LoadedLibraries, PathsWithSpacesAndWithoutAnEndOfLine) {
  EXPECT_THAT(
      loaded_files("7f00-7f01 r-xp 00000000 fd:00 9   /my project/of 2/libnccl.so.2", "libnccl"),
      ElementsAre("/my project/of 2/libnccl.so.2"));
}

TEST(LoadedLibraries, AFileReplacedWhileTheProgramRunsIsTwo) {
  EXPECT_THAT(loaded_files(line("fd:00 10", "/usr/lib/libnccl.so.2 (deleted)") +
                               line("fd:00 11", "/usr/lib/libnccl.so.2"),
                           "libnccl"),
              ElementsAre("/usr/lib/libnccl.so.2 (deleted)", "/usr/lib/libnccl.so.2"));
  EXPECT_EQ(check_one_copy(line("fd:00 10", "/usr/lib/libcudart.so (deleted)")).cuda_runtime,
            "/usr/lib/libcudart.so (deleted)");
}

TEST(LoadedLibraries, NamesOfOneLibraryAndOfOthers) {
  const auto named = [](std::string_view path) {
    return !loaded_files(line("fd:00 5", path), "libcudart").empty();
  };
  EXPECT_TRUE(named("/l/libcudart.so"));
  EXPECT_TRUE(named("/l/libcudart.so.13.0.96"));
  EXPECT_TRUE(named("/l/libcudart-9335f6a2.so.11.0"));
  EXPECT_FALSE(named("/l/libcudart_static.so"));
  EXPECT_FALSE(named("/l/libcudart-tools.so"));
  EXPECT_FALSE(named("/l/libcudart.sock"));
  EXPECT_FALSE(named("/l/libcudart.so/train"));
}

TEST(LoadedLibraries, AFileThatIsOnlyReadIsNotLoaded) {
  EXPECT_THAT(loaded_files(line("fd:00 5", "/l/libcudart.so.12", "r--p"), "libcudart"), IsEmpty());
}

TEST(LoadedLibraries, OfThisProcess) {
  EXPECT_NO_THROW(check_one_copy());
}

}  // namespace

}  // namespace hora::internal
