#include <fmt/format.h>
#include <hora/error.h>

#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/base/log.h"
#include "ops/cuda/stream.h"
#include "ops/nccl/communicator.h"
#include "ops/nccl/nccl_group.h"

namespace hora::internal {
namespace {

/// Interval at which events are queried, however often the engine polls.
constexpr auto kLookInterval = std::chrono::milliseconds(1);
/// Until the communicator has accepted its last call.
constexpr auto kRegistrationLimit = std::chrono::seconds(60);

[[noreturn]] void throw_late(DeviceWatch::Time waited, std::string_view who) {
  throw PeerFailure(
      ErrorCode::transport,
      fmt::format(
          "a collective on the GPU has made no progress for {} ms: {} (HORA_DEVICE_TIMEOUT)",
          std::chrono::duration_cast<std::chrono::milliseconds>(waited).count(), who));
}

[[noreturn]] void throw_failed() {
  throw Error(ErrorCode::transport, "the engine has failed, and peers may still write to it");
}

}  // namespace

void DeviceWatch::add(cudaStream_t stream) {
  if (pending_.size() < 2) pending_.push_back({events_.take(), {}});
  pending_.back().event->record(stream);
  pending_.back().since = clock_();
}

bool DeviceWatch::check() {
  if (pending_.empty()) return false;
  const Time time = clock_();
  if (time < next_look_) return true;
  next_look_ = time + kLookInterval;
  // A thread without a device of its own would take memory of the first one.
  const DeviceGuard device(cuda_, index_);
  communicators_.check_async();
  while (!pending_.empty() && pending_.front().event->query()) pending_.pop_front();
  if (pending_.empty()) return false;
  const Time waited = time - pending_.front().since;
  if (is_too_long(waited)) {
    throw_late(waited, "a peer is gone, or its GPU is stuck; it is aborted");
  }
  return true;
}

bool DeviceWatch::keep_waiting(std::optional<Time>& since) const {
  if (!since) since = clock_();
  const Time waited = clock_() - *since;
  if (is_too_long(waited)) throw_late(waited, "another rank that takes part is gone, or stuck");
  return false;
}

NcclDevice::~NcclDevice() {
  try {
    const DeviceGuard device(cuda_, index_);
    if (!failed_ && !buffers_.empty()) {
      cuda_check(cuda_, cuda_.device_synchronize(), "cudaDeviceSynchronize");
      buffers_.free_all();
    }
  } catch (const Error&) {
    // CUDA has failed; its memory cannot be freed.
  }
  buffers_.leave_in_place();
}

bool NcclDevice::check() {
  bool closes = communicators_.closes();
  if (closes) {
    const DeviceGuard device(cuda_, index_);
    closes = communicators_.advance();
  }
  return watch_.check() || closes;
}

void NcclDevice::abort() noexcept {
  failed_ = true;
  end();
}

void NcclDevice::end() noexcept {
  // Where CUDA has failed NCCL is to end its part all the same.
  std::optional<DeviceGuard> device;
  DeviceGuard::try_emplace(device, cuda_, index_);
  communicators_.abort();
}

void NcclDevice::close(NcclCommunicator::Deadline deadline) {
  const DeviceGuard device(cuda_, index_);
  if (buffers_.has_windows()) {
    const auto reached = events_.take();
    reached->record(stream_);
    wait_until([&] { return reached->query(); }, deadline);
    communicators_.world().wait_ready(deadline);
    buffers_.end_windows();
  }
  communicators_.close(deadline);
}

BegunOnDevice NcclDevice::begin(const std::byte* data, void* stream,
                                std::optional<void*> output_stream) {
  auto work = std::make_shared<StreamOrder>(events_, index_, stream, output_stream);
  return {std::move(work), buffers_.place(data)};
}

std::byte* NcclDevice::allocate(std::size_t bytes) {
  const DeviceGuard device(cuda_, index_);
  communicators_.world().wait_ready(std::chrono::steady_clock::now() + kRegistrationLimit);
  try {
    RegisteredMemory memory(nccl_, communicators_.world(), bytes);
    std::byte* const data = memory.data();
    buffers_.add(std::move(memory));
    return data;
  } catch (...) {
    cuda_.get_last_error();  // NCCL leaves it to this thread, whose next kernel is not to blame
    throw;
  }
}

void NcclDevice::release(std::byte* data, const WithEngineLock& locked) noexcept {
  if (!data) return;
  try {
    const DeviceGuard device(cuda_, index_);
    wait_for_device(locked);
    take(data, locked);  // and frees it
  } catch (const std::exception& error) {
    log().debug("a buffer on the GPU is not freed: {}", error.what());
  }
}

/// ncclMemFree unmaps at once, whatever still reads the memory, on whichever stream.
void NcclDevice::wait_for_device(const WithEngineLock& locked) {
  // First the collectives, by polling: where a peer is gone they end only once the watch says so.
  const auto reached = events_.take();
  reached->record(stream_);
  wait_until(
      [&] {
        if (reached->query()) return true;
        if (!locked([this] { watch_.check(); })) throw_failed();
        return false;
      },
      std::chrono::steady_clock::time_point::max());
  cuda_check(cuda_, cuda_.device_synchronize(), "cudaDeviceSynchronize");
}

/// Deregistered: NCCL's launching threads read its list of registrations, without a lock, until a
/// call has been taken in. Nothing where it stays for now.
std::optional<RegisteredMemory> NcclDevice::take(std::byte* data, const WithEngineLock& locked) {
  std::optional<RegisteredMemory> memory;
  bool taken = false;
  const auto take = [&] {
    const NcclCommunicator& world = communicators_.world();
    if (world.get() && !world.ready()) return;
    memory = buffers_.give_back(data);
    if (memory) memory->deregister();
    taken = true;
  };
  wait_until(
      [&] {
        if (!locked(take)) throw_failed();
        return taken;
      },
      std::chrono::steady_clock::now() + kRegistrationLimit);
  return memory;
}

class NcclLaunches::Launch final : public PendingWork {
 public:
  Launch(NcclLaunches& launches, bool takes_turn, Step enqueue, LastStep enqueued)
      : launches_(launches),
        ticket_(launches.next_++),
        takes_turn_(takes_turn),
        enqueue_(std::move(enqueue)),
        enqueued_(std::move(enqueued)) {}

  /// Blocks for up to 100 us when NCCL has been called.
  bool poll() override {
    if (stage_ == Stage::queued && !may_begin()) return false;
    const DeviceGuard device(launches_.context_.cuda, launches_.context_.device);
    if (stage_ == Stage::queued) {
      enqueue_();
      stage_ = Stage::taken_in;
      // Once, as long as no pause is due: where the communicator has to connect first, NCCL takes
      // milliseconds.
      const DeviceWatch& watch = launches_.context_.watch;
      const DeviceWatch::Time begin = watch.time();
      while (!launches_.communicator_.ready() &&
             pause_between_looks(watch.time() - begin).count() == 0) {
        std::this_thread::yield();
      }
    }
    if (stage_ == Stage::taken_in) {
      if (!launches_.communicator_.ready()) return keep_waiting();
      event_ = enqueued_();
      ++launches_.launched_;
      if (takes_turn_) launches_.ticket_lock_.done();
      stage_ = Stage::under_way;
    }
    return !event_ || event_->query();
  }

 private:
  enum class Stage { queued, taken_in, under_way };

  bool may_begin() {
    if (!launches_.is_next(ticket_)) return false;
    return !takes_turn_ || launches_.ticket_lock_.has_turn() || keep_waiting();
  }
  /// Other ranks must reach the same point. Returns false.
  bool keep_waiting() { return launches_.context_.watch.keep_waiting(waits_since_); }

  NcclLaunches& launches_;
  std::uint64_t ticket_;
  bool takes_turn_;
  Step enqueue_;
  LastStep enqueued_;
  std::optional<DeviceWatch::Time> waits_since_;
  const Event* event_ = nullptr;
  Stage stage_ = Stage::queued;
};

Completion NcclLaunches::launch(bool takes_turn, Step enqueue, LastStep enqueued) {
  if (connection_.begin) {
    connection_.announce();
    connecting_ = Completion(std::make_unique<Launch>(
        *this, true, std::exchange(connection_, {}).begin, [] { return nullptr; }));
  }
  return Completion(
      std::make_unique<Launch>(*this, takes_turn, std::move(enqueue), std::move(enqueued)));
}

void NcclLaunches::copy(std::span<const CopyPiece> pieces, BatchedCopy copy) const {
  if (pieces.empty()) return;
  copy.pieces = pieces;
  cuda_check(cuda(), cuda().batched_copy(copy, stream()), "the kernel batched_copy");
}

bool NcclLaunches::is_next(std::uint64_t ticket) {
  // Only this launch polls the first one.
  if (launched_ == 0 && ticket != 0) connecting_.poll();
  return launched_ == ticket;
}

}  // namespace hora::internal
