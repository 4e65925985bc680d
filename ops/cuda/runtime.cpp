#include <cuda_runtime_api.h>

#include "ops/cuda/functions.h"
#include "ops/cuda/kernels.h"

namespace hora::internal {
namespace {

/// By the runtime's way to the driver: a program linked with libcuda would not start on a machine
/// without one.
CUresult ctx_get_current(CUcontext* context) {
  using Function = CUresult (*)(CUcontext*);
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &found, 4000, cudaEnableDefault, &result);
#else
    cudaGetDriverEntryPoint("cuCtxGetCurrent", &found, cudaEnableDefault, &result);
#endif
    return reinterpret_cast<Function>(found);
  }();
  return function ? function(context) : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

const CudaFunctions& cuda_runtime() {
  static const CudaFunctions functions{
      .get_error_string = cudaGetErrorString,
      .get_last_error = cudaGetLastError,
      .get_device_count = cudaGetDeviceCount,
      .get_device = cudaGetDevice,
      .set_device = cudaSetDevice,
      .ctx_get_current = ctx_get_current,
      .device_synchronize = cudaDeviceSynchronize,
      // A macro in CUDA 12.
      .get_device_properties =
          [](cudaDeviceProp* properties, int device) {
            return cudaGetDeviceProperties(properties, device);
          },
      .device_get_pci_bus_id = cudaDeviceGetPCIBusId,
      .stream_create = cudaStreamCreateWithPriority,
      .stream_destroy = cudaStreamDestroy,
      .stream_synchronize = cudaStreamSynchronize,
      .stream_wait_event = cudaStreamWaitEvent,
      .stream_is_capturing = cudaStreamIsCapturing,
      .thread_exchange_stream_capture_mode = cudaThreadExchangeStreamCaptureMode,
      .event_create = cudaEventCreateWithFlags,
      .event_destroy = cudaEventDestroy,
      .event_record = cudaEventRecord,
      .event_query = cudaEventQuery,
      .event_synchronize = cudaEventSynchronize,
      .event_elapsed_time = cudaEventElapsedTime,
      .host_alloc = cudaHostAlloc,
      .free_host = cudaFreeHost,
      .malloc = cudaMalloc,
      .free = cudaFree,
      .mem_pool_create = cudaMemPoolCreate,
      .mem_pool_destroy = cudaMemPoolDestroy,
      .mem_pool_set_attribute = cudaMemPoolSetAttribute,
      .mem_pool_trim_to = cudaMemPoolTrimTo,
      // Overloaded in C++.
      .malloc_from_pool_async =
          [](void** data, std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
            return cudaMallocFromPoolAsync(data, bytes, pool, stream);
          },
      .free_async = cudaFreeAsync,
      .memcpy_async = cudaMemcpyAsync,
      .memset_async = cudaMemsetAsync,
      .batched_copy = batched_copy,
      .device_reduce = device_reduce,
      .batched_update = batched_update,
  };
  return functions;
}

}  // namespace hora::internal
