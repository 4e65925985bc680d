#include "tests/support/fake_gpu/fake_gpu.h"

#include "tests/support/fake_gpu/fake_device.h"
#include "tests/support/fake_gpu/fake_nccl.h"

namespace hora::internal::test {

FakeNcclWorld::FakeNcclWorld() : world_(std::make_shared<NcclWorld>()) {}
FakeNcclWorld::~FakeNcclWorld() = default;

std::vector<std::string> FakeNcclWorld::errors() const {
  return world_->errors();
}

struct FakeGpu::Parts {
  Parts(const std::shared_ptr<NcclWorld>& world, const FakeGpuOptions& options)
      : device(world->next_gpu(), options), nccl(world, device, options) {}

  FakeDevice device;
  FakeNccl nccl;
  const CudaFunctions cuda_table = cuda_functions(device);
  const NcclFunctions nccl_table = nccl_functions(nccl);
};

FakeGpu::FakeGpu(FakeNcclWorld& world, const FakeGpuOptions& options)
    : parts_(std::make_unique<Parts>(world.world_, options)) {}

FakeGpu::~FakeGpu() {
  // Streams that wait for other ranks first, then the streams' threads.
  parts_->nccl.stop();
  parts_->device.stop();
}

const CudaFunctions& FakeGpu::cuda() const {
  return parts_->cuda_table;
}

const NcclFunctions& FakeGpu::nccl() const {
  return parts_->nccl_table;
}

void FakeGpu::fail(std::string_view call, int nth, cudaError_t error) {
  parts_->device.script().fail(call, nth, error);
}

void FakeGpu::nccl_fail(std::string_view call, int nth, ncclResult_t error) {
  parts_->nccl.script().fail(call, nth, error);
}

void FakeGpu::delay(std::string_view call, std::chrono::microseconds duration) {
  CallScript& cuda = parts_->device.script();
  (cuda.knows(call) ? cuda : parts_->nccl.script()).delay(call, duration);
}

void FakeGpu::hold() {
  parts_->device.hold(true);
}

void FakeGpu::resume() {
  parts_->device.hold(false);
}

void FakeGpu::hold_launches() {
  parts_->nccl.hold_launches(true);
}

void FakeGpu::resume_launches() {
  parts_->nccl.hold_launches(false);
}

cudaError_t FakeGpu::begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return parts_->device.begin_capture(stream, mode);
}

cudaError_t FakeGpu::end_capture(cudaStream_t stream) {
  return parts_->device.end_capture(stream);
}

int FakeGpu::index() const {
  return parts_->device.index();
}

void FakeGpu::choose() {
  parts_->device.choose(index());
}

std::vector<int> FakeGpu::contexts() const {
  return parts_->device.contexts();
}

void FakeGpu::async_error(ncclComm_t comm, ncclResult_t error) {
  parts_->nccl.async_error(comm, error);
}

void FakeGpu::async_error(ncclResult_t error) {
  parts_->nccl.async_error(nullptr, error);
}

int FakeGpu::count(std::string_view call) const {
  return parts_->device.script().count(call);
}

int FakeGpu::nccl_count(std::string_view call) const {
  return parts_->nccl.script().count(call);
}

LiveHandles FakeGpu::live() const {
  FakeDevice& device = parts_->device;
  const FakeMemory& memory = device.memory();
  return {.streams = device.streams(),
          .events = device.events(),
          .pinned = memory.blocks(MemoryKind::pinned),
          .device = memory.blocks(MemoryKind::device) + memory.blocks(MemoryKind::ordered) +
                    memory.blocks(MemoryKind::nccl),
          .communicators = parts_->nccl.communicators(),
          .registrations = parts_->nccl.registrations(),
          .windows = parts_->nccl.windows(),
          .pools = static_cast<int>(device.pools().kept().size())};
}

std::vector<std::uint64_t> FakeGpu::kept_by_pools() const {
  return parts_->device.pools().kept();
}

int FakeGpu::timing_events() const {
  return parts_->device.timing_events();
}

bool FakeGpu::owns(const void* data, std::size_t bytes) const {
  return parts_->device.memory().on_device(data, bytes);
}

std::vector<std::string> FakeGpu::violations() const {
  return parts_->device.violations();
}

}  // namespace hora::internal::test
