#include "ops/cuda/stream.h"

namespace hora {

CudaStream::CudaStream(const CudaFunctions& functions, int priority) {
  cudaStream_t stream = nullptr;
  cuda_check(functions, functions.stream_create(&stream, cudaStreamNonBlocking, priority),
             "cudaStreamCreateWithPriority");
  stream_ = Owned<Release>(functions, stream);
}

}  // namespace hora
