/// Memory of a GPU for tests, and streams.
#pragma once

#include <cuda_runtime_api.h>
#include <hora/types.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace hora::internal::test {

inline void cuda(cudaError_t result) {
  if (result != cudaSuccess) {
    throw std::runtime_error(std::string("a CUDA call of the test: ") + cudaGetErrorString(result));
  }
}

/// A stream that does not synchronise with the null stream.
class TestStream {
 public:
  TestStream() { cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~TestStream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

using Bytes = std::vector<std::byte>;

inline Bytes to_host(const void* device, std::size_t bytes, cudaStream_t stream) {
  Bytes host(bytes);
  cuda(cudaMemcpyAsync(host.data(), device, bytes, cudaMemcpyDeviceToHost, stream));
  cuda(cudaStreamSynchronize(stream));
  return host;
}

/// One-dimensional, on the current device.
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(DataType type, std::int64_t count) : type_(type), count_(count) {
    void* data = nullptr;
    cuda(cudaMalloc(&data, bytes() + 1));
    data_.reset(data);
  }
  /// Holds `values` when this returns.
  DeviceArray(DataType type, const Bytes& values)
      : DeviceArray(type, static_cast<std::int64_t>(values.size() / size_of(type))) {
    write(values, nullptr);
    cuda(cudaDeviceSynchronize());
  }

  void write(const Bytes& values, cudaStream_t stream) {
    cuda(
        cudaMemcpyAsync(data_.get(), values.data(), values.size(), cudaMemcpyHostToDevice, stream));
  }
  Bytes read(cudaStream_t stream) const { return to_host(data_.get(), bytes(), stream); }

  void* data() const { return data_.get(); }
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * size_of(type_); }
  TensorView view(const Device& device, cudaStream_t stream = nullptr) const {
    return {data_.get(), type_, {count_}, device, stream};
  }

 private:
  struct Free {
    void operator()(void* data) const noexcept { static_cast<void>(cudaFree(data)); }
  };
  DataType type_ = DataType::uint8;
  std::int64_t count_ = 0;
  std::unique_ptr<void, Free> data_;
};

}  // namespace hora::internal::test
