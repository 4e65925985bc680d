#include "core/launch/program/check_build.h"

#include <dlfcn.h>
#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/command/mpi.h"
#include "core/launch/control/system.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

constexpr std::string_view kAnswer = "horarun-answer: ";
constexpr std::string_view kFailure = "horarun-failure: ";
constexpr char kMpi[] = "mpi";
constexpr char kNccl[] = "nccl";
constexpr char kCudaDriver[] = "cuda-driver";

using Answer = tl::expected<std::string, std::string>;

template <class Function>
Function* function_of(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

/// As MPI's standard orders them; Open MPI and MPICH count from 0.
constexpr std::array<const char*, 4> kLevels = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED",
                                                "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE"};

Answer ask_mpi(void* library) {
  constexpr int kMultiple = 3;
  constexpr std::size_t kLongest = 8192;  // MPICH's MPI_MAX_LIBRARY_VERSION_STRING is largest
  const auto version = function_of<int(char*, int*)>(library, "MPI_Get_library_version");
  const auto init = function_of<int(int*, char***, int, int*)>(library, "MPI_Init_thread");
  const auto finalize = function_of<int()>(library, "MPI_Finalize");
  if (version == nullptr || init == nullptr || finalize == nullptr) {
    return tl::unexpected(
        std::string("it has no function MPI_Get_library_version, MPI_Init_thread or MPI_Finalize"));
  }
  std::array<char, kLongest + 1> text{};
  int length = 0;
  version(text.data(), &length);
  const std::string_view all(text.data());
  int granted = -1;
  if (init(nullptr, nullptr, kMultiple, &granted) != 0) {
    return tl::unexpected(std::string("MPI_Init_thread has failed"));
  }
  finalize();
  return fmt::format("{}, {}", all.substr(0, all.find_first_of(",\n")),
                     kLevels.at(static_cast<std::size_t>(granted)));
}

/// Functions that give a version as a number.
tl::expected<int, std::string> number_of(void* library, const char* name) {
  const auto function = function_of<int(int*)>(library, name);
  if (function == nullptr) return tl::unexpected(fmt::format("it has no function {}", name));
  int number = 0;
  const int error = function(&number);
  if (error == 0) return number;
  return tl::unexpected(fmt::format("{} has failed with error {}", name, error));
}

/// 21903 is 2.19.3 (nccl.h, NCCL_VERSION).
Answer ask_nccl(void* library) {
  return number_of(library, "ncclGetVersion").map([](int number) {
    return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  });
}

/// 12040 is 12.4 (cuda.h, CUDA_VERSION).
Answer ask_cuda_driver(void* library) {
  return number_of(library, "cuDriverGetVersion").map([](int number) {
    return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
  });
}

Answer ask(std::string_view library, std::span<const std::string> files) {
  std::string tried;
  for (const std::string& file : files) {
    // Open MPI's components look for its symbols among the global ones.
    void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr) {
      tried += (tried.empty() ? "" : "; ") + std::string(::dlerror());
      continue;
    }
    if (library == kMpi) return ask_mpi(handle);
    return library == kNccl ? ask_nccl(handle) : ask_cuda_driver(handle);
  }
  return tl::unexpected(tried);
}

/// The rest of the line that starts with `begin`; empty where there is no such line.
std::string line_after(std::string_view output, std::string_view begin) {
  for (const std::string_view line : split(output, '\n')) {
    if (line.starts_with(begin)) return std::string(line.substr(begin.size()));
  }
  return {};
}

/// Asks a library in a process of its own. `files` are paths or names that the dynamic linker
/// searches for. The error says what was tried and what failed.
Answer query(const std::string& self, const char* library, const std::vector<std::string>& files) {
  constexpr std::chrono::seconds kLimit{20};
  std::vector<std::string> command{self, "--query-library", library};
  command.insert(command.end(), files.begin(), files.end());
  const auto output = captured_output(command, kLimit);
  if (!output) return tl::unexpected(output.error());
  // MPI has words of its own.
  if (std::string answer = line_after(output->text, kAnswer); !answer.empty()) return answer;
  std::string failure = line_after(output->text, kFailure);
  if (failure.empty()) failure = "no answer came, but " + in_quotes(output->text.substr(0, 300));
  return tl::unexpected(failure);
}

std::string mpirun_text(const std::string& path) {
  const auto mpi = find_mpi(mpi_search(path));
  if (!mpi) return fmt::format("built with {}; {}", HORA_BUILT_WITH_MPI, mpi.error());
  const std::string text = fmt::format("built with {}; started by {} ({} {})", HORA_BUILT_WITH_MPI,
                                       mpi->mpirun, name_of(mpi->flavour), mpi->version);
  if (std::string_view(HORA_BUILT_WITH_MPI).starts_with(name_of(mpi->flavour))) return text;
  return fmt::format("{}, which starts other programs: name the mpirun of {} with --mpirun", text,
                     HORA_BUILT_WITH_MPI);
}

std::string mpi_library_text(const std::string& self) {
  // Without the packages for compiling there are the names alone with which programs are linked.
  const bool is_open_mpi = std::string_view(HORA_BUILT_WITH_MPI).starts_with("Open MPI");
  std::vector<std::string> files{HORA_BUILT_WITH_MPI_LIBRARY};
  for (const char* name : {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12"}) {
    if (is_open_mpi == std::string_view(name).ends_with(".40")) files.emplace_back(name);
  }
  const Answer answer = query(self, kMpi, files);
  if (!answer) {
    return fmt::format(
        "its library cannot be used: {}; install it (Debian: libopenmpi3 or libmpich12), or set "
        "LD_LIBRARY_PATH to its folder",
        answer.error());
  }
  const bool enough = !answer->ends_with("_SINGLE") && !answer->ends_with("_FUNNELED");
  const char* const advice =
      ", which is too little: hora needs MPI_THREAD_SERIALIZED; install an MPI that was built with "
      "threads";
  return fmt::format("its library: {}{}", *answer, enough ? "" : advice);
}

std::string cuda_text(const std::string& self) {
  if (*HORA_BUILT_WITH_CUDA == '\0') {
    return "no: cmake --preset cuda, where CUDA 12 and NCCL 2.19 are installed";
  }
  const Answer driver = query(self, kCudaDriver, {"libcuda.so.1"});
  return fmt::format(
      "built with {}; {}", HORA_BUILT_WITH_CUDA,
      driver ? "the driver supports " + *driver
             : fmt::format("no driver: {}; install NVIDIA's driver (containers: docker run "
                           "--gpus all)",
                           driver.error()));
}

std::string nccl_text(const std::string& self) {
  if (*HORA_BUILT_WITH_CUDA == '\0') return "no: it belongs to a build with CUDA";
  const Answer nccl = query(self, kNccl, {HORA_BUILT_WITH_NCCL_LIBRARY, "libnccl.so.2"});
  return fmt::format(
      "built with {}; {}", HORA_BUILT_WITH_NCCL,
      nccl ? "loaded is " + *nccl
           : fmt::format("it cannot be loaded: {}; install libnccl2, or set LD_LIBRARY_PATH to its "
                         "folder",
                         nccl.error()));
}

/// The widest vector instructions of this processor that hora has kernels for.
const char* vector_instructions() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0) return "AVX-512";
  if (__builtin_cpu_supports("avx2") != 0) return "AVX2";
  return "SSE2";
#else
  return "the compiler's";
#endif
}

}  // namespace

int run_library_query(std::span<const std::string> arguments) {
  if (arguments.size() < 2) {
    std::fputs("horarun --query-library: it is started by horarun --check-build alone\n", stderr);
    return 2;
  }
  const Answer answer = ask(arguments.front(), arguments.subspan(1));
  const std::string text = printable(answer ? *answer : answer.error());
  std::fputs(fmt::format("\n{}{}\n", answer ? kAnswer : kFailure, text).c_str(), stdout);
  std::fflush(stdout);  // before what the library does when the process exits
  return answer ? 0 : 1;
}

std::string check_build(const std::string& self, const std::string& mpirun) {
  const std::string torch =
      *HORA_BUILT_WITH_TORCH != '\0'
          ? HORA_BUILT_WITH_TORCH
          : "no: configure with -DHORA_TORCH=ON, where libtorch-dev or another "
            "LibTorch is installed";
  return fmt::format(
      "hora      {}\nMPI       {}\n          {}\nLibTorch  {}\nCUDA      {}\nNCCL      {}\n"
      "vectors   {}\n",
      HORA_VERSION, mpirun_text(mpirun), mpi_library_text(self), torch, cuda_text(self),
      nccl_text(self), vector_instructions());
}

}  // namespace hora::launch
