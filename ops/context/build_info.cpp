#include <hora/build_info.h>
#include <mpi.h>

#include <array>

#include "ops/context/gpu.h"
#include "ops/mpi/check.h"

namespace hora {
using namespace internal;

BuildInfo build_info() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  mpi_check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  const std::string whole(text.data(), static_cast<std::size_t>(length));
  const GpuBuild gpu = gpu_build();
  return {.version = HORA_VERSION,
          .mpi = whole.substr(0, whole.find('\n')),
          .cuda = gpu.cuda,
          .nccl = gpu.nccl};
}

}  // namespace hora
