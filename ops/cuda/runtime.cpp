#include <cuda_runtime_api.h>

#include "ops/cuda/batched_copy.h"
#include "ops/cuda/functions.h"
#include "ops/cuda/reduce.h"

namespace hora::internal {

const CudaFunctions& cuda_runtime() {
  static const CudaFunctions functions{
      .get_error_string = cudaGetErrorString,
      .get_last_error = cudaGetLastError,
      .get_device_count = cudaGetDeviceCount,
      .get_device = cudaGetDevice,
      .set_device = cudaSetDevice,
      // A macro in CUDA 12.
      .get_device_properties =
          [](cudaDeviceProp* properties, int device) {
            return cudaGetDeviceProperties(properties, device);
          },
      .device_get_pci_bus_id = cudaDeviceGetPCIBusId,
      .device_get_by_pci_bus_id = cudaDeviceGetByPCIBusId,
      .device_can_access_peer = cudaDeviceCanAccessPeer,
      .device_get_p2p_attribute = cudaDeviceGetP2PAttribute,
      .stream_create = cudaStreamCreateWithPriority,
      .stream_destroy = cudaStreamDestroy,
      .stream_synchronize = cudaStreamSynchronize,
      .stream_wait_event = cudaStreamWaitEvent,
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
      // An overload in C++.
      .malloc_async = [](void** data, std::size_t bytes,
                         cudaStream_t stream) { return cudaMallocAsync(data, bytes, stream); },
      .free_async = cudaFreeAsync,
      .memcpy_async = cudaMemcpyAsync,
      .memset_async = cudaMemsetAsync,
      .batched_copy = batched_copy,
      .device_reduce = device_reduce,
  };
  return functions;
}

}  // namespace hora::internal
