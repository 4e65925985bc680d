#include "core/launch/program/check_build.h"

#include "core/launch/program/library_query.h"

namespace hora::launch {
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
