// MPI libraries without such a report.
#include "ops/mpi/implementation.h"

namespace hora {

CudaSupport mpi_cuda_support() {
  return CudaSupport::unknown;
}

}  // namespace hora
