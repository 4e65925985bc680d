#include "tests/support/fake_gpu/cuda_table.h"
#include "tests/support/fake_gpu/fake_device.h"

namespace hora::internal::test {

void FakePools::add(cudaMemPool_t pool) {
  const std::scoped_lock lock(mutex_);
  kept_.emplace(pool, 0);
}

bool FakePools::remove(cudaMemPool_t pool) {
  const std::scoped_lock lock(mutex_);
  return kept_.erase(pool) == 1;
}

bool FakePools::keep(cudaMemPool_t pool, std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  const auto found = kept_.find(pool);
  if (found == kept_.end()) return false;
  found->second = bytes;
  return true;
}

bool FakePools::knows(cudaMemPool_t pool) const {
  const std::scoped_lock lock(mutex_);
  return kept_.contains(pool);
}

std::vector<std::uint64_t> FakePools::kept() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::uint64_t> kept;
  for (const auto& [pool, bytes] : kept_) kept.push_back(bytes);
  return kept;
}

namespace {

cudaError_t create(FakeDevice& device, cudaMemPool_t* pool, const cudaMemPoolProps& properties) {
  if (properties.allocType != cudaMemAllocationTypePinned ||
      properties.location.type != cudaMemLocationTypeDevice ||
      properties.location.id != device.index() || properties.maxSize != 0) {
    device.violation("a pool that is not of this GPU's memory, or of limited size");
    return cudaErrorInvalidValue;
  }
  *pool = reinterpret_cast<cudaMemPool_t>(device.next_handle());
  device.pools().add(*pool);
  return cudaSuccess;
}

/// `done`: whether there is such a pool.
cudaError_t known(FakeDevice& device, bool done) {
  if (done) return cudaSuccess;
  device.violation("not a pool of this GPU, or a destroyed one");
  return cudaErrorInvalidValue;
}

/// Memory is there at once; it goes in the stream's order.
cudaError_t release_in_order(FakeDevice& device, void* data, cudaStream_t stream) {
  return device.enqueue(stream, {}, [&device, data] {
    if (device.memory().in_use(data)) {
      device.fault("cudaFreeAsync of memory that other work still uses");
    } else if (!device.memory().release(MemoryKind::ordered, data)) {
      device.fault("cudaFreeAsync of what is not from a pool");
    }
  });
}

}  // namespace

void add_pools(CudaFunctions& table, FakeDevice& device) {
  table.mem_pool_create = [&device](cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
    return made(device, "mem_pool_create", [&] { return create(device, pool, *properties); });
  };
  table.mem_pool_destroy = [&device](cudaMemPool_t pool) {
    return released(device, "mem_pool_destroy",
                    [&] { return known(device, device.pools().remove(pool)); });
  };
  table.mem_pool_set_attribute = [&device](cudaMemPool_t pool, cudaMemPoolAttr attribute,
                                           void* value) {
    return made(device, "mem_pool_set_attribute", [&] {
      if (attribute != cudaMemPoolAttrReleaseThreshold) return cudaErrorInvalidValue;
      return known(device, device.pools().keep(pool, *static_cast<std::uint64_t*>(value)));
    });
  };
  table.mem_pool_trim_to = [&device](cudaMemPool_t pool, std::size_t) {
    return made(device, "mem_pool_trim_to",
                [&] { return known(device, device.pools().knows(pool)); });
  };
  table.malloc_from_pool_async = [&device](void** data, std::size_t bytes, cudaMemPool_t pool,
                                           cudaStream_t stream) {
    return made(device, "malloc_from_pool_async", [&] {
      if (!device.knows(stream)) return cudaErrorInvalidResourceHandle;
      const cudaError_t error = known(device, device.pools().knows(pool));
      if (error != cudaSuccess) return error;
      *data = bytes == 0 ? nullptr : device.memory().allocate(MemoryKind::ordered, bytes);
      return cudaSuccess;
    });
  };
  table.free_async = [&device](void* data, cudaStream_t stream) {
    return released(device, "free_async", [&] { return release_in_order(device, data, stream); });
  };
}

}  // namespace hora::internal::test
