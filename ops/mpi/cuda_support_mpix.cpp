// Open MPI, and MPI libraries that have its extension.
#include <mpi.h>
// After mpi.h.
#include <mpi-ext.h>

#include "ops/mpi/environment.h"

namespace hora::internal {

CudaSupport mpi_cuda_support() {
  return MPIX_Query_cuda_support() == 1 ? CudaSupport::yes : CudaSupport::no;
}

}  // namespace hora::internal
