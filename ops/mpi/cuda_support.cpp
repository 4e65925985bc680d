// CMake says by which call this MPI reports whether it takes CUDA memory, if by any.
#include <mpi.h>
#if defined(HORA_MPI_HAS_MPIX_QUERY_CUDA_SUPPORT)
#include <mpi-ext.h>
#endif

#include "ops/mpi/environment.h"

namespace hora::internal {

CudaSupport mpi_cuda_support() {
#if defined(HORA_MPI_HAS_MPIX_QUERY_CUDA_SUPPORT)  // Open MPI, and libraries with its extension
  return MPIX_Query_cuda_support() == 1 ? CudaSupport::yes : CudaSupport::no;
#elif defined(HORA_MPI_HAS_MPIX_GPU_QUERY_SUPPORT)  // MPICH 4, and libraries made from it
  int yes = 0;
  if (MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &yes) == MPI_SUCCESS) {
    return yes != 0 ? CudaSupport::yes : CudaSupport::no;
  }
#endif
  return CudaSupport::unknown;
}

}  // namespace hora::internal
