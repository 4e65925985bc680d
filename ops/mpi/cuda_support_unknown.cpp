// MPI libraries without such a report.
#include "ops/mpi/implementation.h"

namespace hora::internal {

CudaSupport mpi_cuda_support() {
  return CudaSupport::unknown;
}

}  // namespace hora::internal
