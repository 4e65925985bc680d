#include "core/launch/program/check_build.h"

namespace hora::launch {

BuildFacts this_build() {
  return {.version = HORA_VERSION,
          .mpi = HORA_BUILT_WITH_MPI,
          .torch = HORA_BUILT_WITH_TORCH,
          .cuda = HORA_BUILT_WITH_CUDA};
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

std::string check_build_text(const BuildFacts& build,
                             const tl::expected<MpiInstallation, std::string>& mpi,
                             const std::string& vectors) {
  std::string text = "hora      " + build.version + "\n";
  text += "MPI       built with " + build.mpi + "; ";
  text += mpi ? "started by " + mpi->mpirun + " (" + std::string(name_of(mpi->flavour)) + " " +
                    mpi->version + ")"
              : mpi.error();
  text += "\nLibTorch  ";
  text += build.torch.empty() ? "no: configure with -DHORA_TORCH=ON, where libtorch-dev or another "
                                "LibTorch is installed"
                              : build.torch;
  text += "\nCUDA      ";
  text += build.cuda ? "yes, with NCCL"
                     : "no: cmake --preset cuda, where CUDA 12 and NCCL 2.19 are installed";
  text += "\nvectors   " + vectors + "\n";
  return text;
}

}  // namespace hora::launch
