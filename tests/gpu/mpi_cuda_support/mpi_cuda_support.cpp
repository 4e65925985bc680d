// Whether this MPI takes GPU memory, as it reports itself. Exit code: 0 where it does, 77 where it
// does not report that. For scripts that run what needs it.
#include <mpi.h>

#include <cstdio>

#include "ops/cuda/functions.h"
#include "ops/mpi/environment.h"

int main(int argc, char** argv) {
  int devices = 0;
  if (hora::internal::cuda_runtime().get_device_count(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU here\n");
    return 77;
  }
  hora::internal::cuda_runtime().set_device(0);
  MPI_Init(&argc, &argv);
  const hora::internal::CudaSupport support = hora::internal::mpi_cuda_support();
  MPI_Finalize();
  std::printf("this MPI %s\n", support == hora::internal::CudaSupport::yes ? "takes GPU memory"
                               : support == hora::internal::CudaSupport::no
                                   ? "says that it takes no GPU memory"
                                   : "cannot be asked about GPU memory");
  return support == hora::internal::CudaSupport::yes ? 0 : 77;
}
