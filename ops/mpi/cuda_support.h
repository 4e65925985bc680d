/// What MPI says about memory of GPUs. CMake selects the source, by what MPI's headers have.
#pragma once

#include <cstdint>

namespace hora {

enum class CudaSupport : std::uint8_t { unknown, no, yes };

/// Whether this process's MPI takes pointers to CUDA memory, as it reports itself, which can be
/// wrong: Open MPI has said no where UCX did take them (its issues 7963 and 11070). Call it once
/// MPI has started and a device has been chosen.
CudaSupport mpi_cuda_support();

}  // namespace hora
