#include "core/launch/program/check_build.h"

#include <dlfcn.h>
#include <hora/printable.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

#include "core/launch/control/child_process.h"

namespace hora::launch {
namespace {

constexpr std::string_view kAnswer = "horarun-answer: ";
constexpr std::string_view kFailure = "horarun-failure: ";
constexpr std::array<std::string_view, 3> kLibraries = {"mpi", "nccl", "cuda-driver"};

using Answer = tl::expected<std::string, std::string>;

template <class Function>
Function* function_of(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

std::string lacks(const char* name) {
  return std::string("it has no function ") + name;
}

/// As MPI's standard orders them; Open MPI and MPICH count from 0.
std::string thread_level(int level) {
  constexpr std::array<const char*, 4> kLevels = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED",
                                                  "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE"};
  return level >= 0 && level < 4 ? kLevels.at(static_cast<std::size_t>(level))
                                 : "thread level " + std::to_string(level);
}

Answer ask_mpi(void* library) {
  constexpr int kMultiple = 3;
  constexpr std::size_t kLongest =
      8192;  // of MPICH, whose MPI_MAX_LIBRARY_VERSION_STRING is largest
  const auto version = function_of<int(char*, int*)>(library, "MPI_Get_library_version");
  const auto init = function_of<int(int*, char***, int, int*)>(library, "MPI_Init_thread");
  const auto finalize = function_of<int()>(library, "MPI_Finalize");
  if (version == nullptr || init == nullptr || finalize == nullptr) {
    return tl::unexpected(lacks("MPI_Get_library_version, MPI_Init_thread or MPI_Finalize"));
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
  return std::string(all.substr(0, all.find_first_of(",\n"))) + ", " + thread_level(granted);
}

/// Functions that give a version as a number.
tl::expected<int, std::string> number_of(void* library, const char* name) {
  const auto function = function_of<int(int*)>(library, name);
  if (function == nullptr) return tl::unexpected(lacks(name));
  int number = 0;
  const int error = function(&number);
  if (error == 0) return number;
  return tl::unexpected(std::string(name) + " has failed with error " + std::to_string(error));
}

/// 21903 is 2.19.3 (nccl.h, NCCL_VERSION).
Answer ask_nccl(void* library) {
  return number_of(library, "ncclGetVersion").map([](int number) {
    return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
           std::to_string(number % 100);
  });
}

/// 12040 is 12.4 (cuda.h, CUDA_VERSION).
Answer ask_cuda_driver(void* library) {
  return number_of(library, "cuDriverGetVersion").map([](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
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
    if (library == kLibraries[0]) return ask_mpi(handle);
    return library == kLibraries[1] ? ask_nccl(handle) : ask_cuda_driver(handle);
  }
  return tl::unexpected(tried);
}

/// What follows `begin` at the start of a line; empty where there is no such line.
std::string_view line_after(std::string_view output, std::string_view begin) {
  while (!output.empty()) {
    const std::string_view line = output.substr(0, output.find('\n'));
    if (line.starts_with(begin)) return line.substr(begin.size());
    output.remove_prefix(std::min(line.size() + 1, output.size()));
  }
  return {};
}

}  // namespace

int run_library_query(std::span<const std::string> arguments) {
  if (arguments.size() < 2 ||
      std::ranges::find(kLibraries, arguments.front()) == kLibraries.end()) {
    std::fprintf(stderr, "horarun --query-library: it is started by horarun --check-build alone\n");
    return 2;
  }
  const Answer answer = ask(arguments.front(), arguments.subspan(1));
  const std::string_view begin = answer ? kAnswer : kFailure;
  const std::string& text = answer ? *answer : answer.error();
  std::printf("\n%.*s%s\n", static_cast<int>(begin.size()), begin.data(), printable(text).c_str());
  std::fflush(stdout);  // before what the library does when the process exits
  return answer ? 0 : 1;
}

tl::expected<std::string, std::string> answer_of(std::string_view output) {
  if (const auto answer = line_after(output, kAnswer); !answer.empty()) return std::string(answer);
  if (const auto failure = line_after(output, kFailure); !failure.empty()) {
    return tl::unexpected(std::string(failure));
  }
  constexpr std::size_t kMostShown = 300;
  return tl::unexpected("no answer came, but " + in_quotes(output.substr(0, kMostShown)));
}

tl::expected<std::string, std::string> query_library(const std::string& self, Library library,
                                                     const std::vector<std::string>& files) {
  constexpr std::chrono::seconds kLimit{20};
  std::vector<std::string> command{self, "--query-library",
                                   std::string(kLibraries.at(static_cast<std::size_t>(library)))};
  command.insert(command.end(), files.begin(), files.end());
  const auto output = captured_output(command, kLimit);
  if (!output) return tl::unexpected(output.error());
  return answer_of(output->text);
}

namespace {

/// A subject's line, or with an empty subject another line of the one before.
std::string line(const std::string& subject, const std::string& text) {
  constexpr std::size_t kColumn = 10;
  return subject + std::string(kColumn - subject.size(), ' ') + text + "\n";
}

std::string mpi_text(const BuildFacts& build, const HostFacts& host) {
  std::string text = "built with " + build.mpi + "; ";
  if (!host.mpirun) return text + host.mpirun.error();
  const std::string found(name_of(host.mpirun->flavour));
  text += "started by " + host.mpirun->mpirun + " (" + found + " " + host.mpirun->version + ")";
  if (build.mpi.starts_with(found)) return text;
  return text + ", which starts other programs: name the mpirun of " + build.mpi + " with --mpirun";
}

std::string mpi_library_text(const HostFacts& host) {
  if (!host.mpi_library) {
    return "its library cannot be used: " + host.mpi_library.error() +
           "; install it (Debian: libopenmpi3 or libmpich12), or set LD_LIBRARY_PATH to its folder";
  }
  std::string text = "its library: " + *host.mpi_library;
  if (text.ends_with("_SINGLE") || text.ends_with("_FUNNELED")) {
    text +=
        ", which is too little: hora needs MPI_THREAD_SERIALIZED; install an MPI that was built "
        "with threads";
  }
  return text;
}

std::string cuda_text(const BuildFacts& build, const HostFacts& host) {
  if (build.cuda.empty())
    return "no: cmake --preset cuda, where CUDA 12 and NCCL 2.19 are installed";
  return "built with " + build.cuda + "; " +
         (host.cuda_driver ? "the driver supports " + *host.cuda_driver
                           : "no driver: " + host.cuda_driver.error() +
                                 "; install NVIDIA's driver (containers: "
                                 "docker run --gpus all)");
}

std::string nccl_text(const BuildFacts& build, const HostFacts& host) {
  if (build.cuda.empty()) return "no: it belongs to a build with CUDA";
  return "built with " + build.nccl + "; " +
         (host.nccl ? "loaded is " + *host.nccl
                    : "it cannot be loaded: " + host.nccl.error() +
                          "; install libnccl2, or set LD_LIBRARY_PATH to its folder");
}

}  // namespace

BuildFacts this_build() {
  BuildFacts facts{.version = HORA_VERSION,
                   .mpi = HORA_BUILT_WITH_MPI,
                   .mpi_files = {HORA_BUILT_WITH_MPI_LIBRARY},
                   .torch = HORA_BUILT_WITH_TORCH,
                   .cuda = HORA_BUILT_WITH_CUDA,
                   .nccl = HORA_BUILT_WITH_NCCL,
                   .nccl_files = {HORA_BUILT_WITH_NCCL_LIBRARY, "libnccl.so.2"}};
  // Without the packages for compiling there are the names alone with which programs are linked.
  const bool is_open_mpi = facts.mpi.starts_with("Open MPI");
  for (const char* const name : {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12"}) {
    if (is_open_mpi == std::string(name).ends_with(".40")) facts.mpi_files.emplace_back(name);
  }
  return facts;
}

HostFacts this_hosts_facts(const BuildFacts& build, const std::string& self,
                           const std::string& mpirun) {
  HostFacts facts{.mpirun = find_mpi(mpi_search(mpirun)),
                  .mpi_library = query_library(self, Library::mpi, build.mpi_files),
                  .vectors = vector_instructions()};
  if (build.cuda.empty()) return facts;
  facts.cuda_driver = query_library(self, Library::cuda_driver, {"libcuda.so.1"});
  facts.nccl = query_library(self, Library::nccl, build.nccl_files);
  return facts;
}

std::string vector_instructions() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0) return "AVX-512";
  if (__builtin_cpu_supports("avx2") != 0) return "AVX2";
  return "SSE2";
#else
  return "the compiler's";
#endif
}

std::string check_build_text(const BuildFacts& build, const HostFacts& host) {
  return line("hora", build.version) + line("MPI", mpi_text(build, host)) +
         line("", mpi_library_text(host)) +
         line("LibTorch", build.torch.empty()
                              ? "no: configure with -DHORA_TORCH=ON, where libtorch-dev or another "
                                "LibTorch is installed"
                              : build.torch) +
         line("CUDA", cuda_text(build, host)) + line("NCCL", nccl_text(build, host)) +
         line("vectors", host.vectors);
}

}  // namespace hora::launch
