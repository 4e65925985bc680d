// MPI libraries without such a report.
#include "ops/mpi/environment.h"

namespace hora::internal {

CudaSupport mpi_cuda_support() {
  return CudaSupport::unknown;
}

}  // namespace hora::internal
