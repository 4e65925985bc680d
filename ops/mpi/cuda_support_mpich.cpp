// MPICH 4 and MPI libraries made from it.
#include <mpi.h>

#include "ops/mpi/environment.h"

namespace hora::internal {

CudaSupport mpi_cuda_support() {
  int supported = 0;
  if (MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &supported) != MPI_SUCCESS) {
    return CudaSupport::unknown;
  }
  return supported != 0 ? CudaSupport::yes : CudaSupport::no;
}

}  // namespace hora::internal
