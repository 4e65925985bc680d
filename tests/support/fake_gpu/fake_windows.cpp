#include <algorithm>
#include <utility>

#include "tests/support/fake_gpu/fake_nccl.h"

namespace hora::internal::test {
namespace {

std::string text_of(const NcclRegistration& part) {
  std::string text = "window of " + std::to_string(part.bytes) + " bytes after " +
                     std::to_string(part.collectives) + " collectives, beside windows";
  for (const std::uint64_t number : part.others) text += " " + std::to_string(number);
  return text;
}

}  // namespace

ncclResult_t FakeNccl::register_window(ncclComm_t handle, void* data, std::size_t bytes,
                                       void** window, ncclResult_t scripted) {
  const std::scoped_lock lock(world_->mutex);
  const auto found = groups_.find(thread_number());
  Group* const group = found == groups_.end() ? nullptr : &found->second;
  const Comm comm = find(handle);
  ncclResult_t result = scripted;
  if (result == ncclSuccess && !comm) {
    result = wrong(comm, "not a communicator of this GPU, or one that is gone");
  }
  if (result == ncclSuccess) result = unusable(*comm);
  if (result == ncclSuccess && !device_.memory().is_block(MemoryKind::nccl, data, bytes)) {
    device_.violation("a window of memory that ncclMemAlloc did not give");
    result = wrong(comm, "a window of memory that ncclMemAlloc did not give");
  }
  if (result != ncclSuccess) {
    if (group != nullptr) group->error = result;
    return result;
  }
  const WindowTask task{comm, data, bytes, window};
  if (group == nullptr) return launch({}, {task});
  group->windows.push_back(task);
  return ncclSuccess;
}

/// Meets the other ranks. Where it fails in the background, as the script says, this rank stays
/// away.
FakeNccl::Registering FakeNccl::begin_window(const WindowTask& task) {
  NcclCommunicatorState& comm = *task.comm;
  const auto error = static_cast<ncclResult_t>(script_.begin("window_registration"));
  if (error != ncclSuccess) return {task, nullptr, 0, error};
  const std::uint64_t number = ++comm.registered;
  NcclRegistration part{task.bytes, comm.enqueued, {}};
  for (const auto& [handle, window] : comm.windows) part.others.push_back(window.number);
  std::ranges::sort(part.others);
  auto& place = comm.clique->registrations[number];
  if (!place) place = std::make_shared<NcclRegistrationMeeting>();
  place->parts.push_back(part);
  if (text_of(part) != text_of(place->parts.front())) {
    world_->fail(*comm.clique, "ranks register different windows: " + text_of(part) + "; " +
                                   text_of(place->parts.front()));
  }
  world_->changed.notify_all();
  return {task, place, number, ncclSuccess};
}

bool FakeNccl::is_met(const Registering& window) {
  const auto ranks = static_cast<std::size_t>(window.task.comm->clique->size());
  return !window.meeting || window.meeting->parts.size() == ranks;
}

void FakeNccl::end_window(const Registering& window) {
  NcclCommunicatorState& comm = *window.task.comm;
  if (window.error != ncclSuccess) {
    comm.error = window.error;
    comm.last_error = "an error that the test has scripted";
    return;
  }
  *window.task.window = reinterpret_cast<void*>(device_.next_handle());
  comm.windows.emplace(*window.task.window,
                       NcclWindow{window.task.data, window.task.bytes, window.number});
}

ncclResult_t FakeNccl::remove_window(ncclComm_t handle, void* window) {
  const std::scoped_lock lock(world_->mutex);
  const Comm comm = find(handle);
  if (comm && comm->job) {
    device_.violation("a window was ended while NCCL's launching thread reads them");
  }
  const auto found = comm ? comm->windows.find(window) : decltype(comm->windows.end()){};
  if (!comm || found == comm->windows.end()) {
    return wrong(comm, "ending what is no window of this communicator");
  }
  if (device_.memory().in_use(found->second.data)) {
    device_.violation("a window was ended under work that uses it");
  }
  comm->windows.erase(found);
  return ncclSuccess;
}

/// NCCL's choice of a kernel depends on this, for collectives that have symmetric ones: where both
/// buffers lie; nothing where one of them lies in no window.
std::string FakeNccl::windows_of(const NcclCommunicatorState& comm, const Collective& part) {
  const bool has_kernels = part.kind == CollectiveKind::all_reduce ||
                           part.kind == CollectiveKind::all_gather ||
                           part.kind == CollectiveKind::reduce_scatter;
  if (!has_kernels) return {};
  std::string text;
  for (const void* const data : {part.send, static_cast<const void*>(part.receive)}) {
    const auto* const begin = static_cast<const std::byte*>(data);
    const auto found = std::ranges::find_if(comm.windows, [&](const auto& entry) {
      const auto* const window = static_cast<const std::byte*>(entry.second.data);
      return begin >= window && begin < window + entry.second.bytes;
    });
    if (found == comm.windows.end()) return {};
    const auto offset = begin - static_cast<const std::byte*>(found->second.data);
    text += " window " + std::to_string(found->second.number) + " at " + std::to_string(offset);
  }
  return text;
}

int FakeNccl::windows() const {
  const std::scoped_lock lock(world_->mutex);
  std::size_t all = 0;
  for (const auto& [handle, comm] : comms_) all += comm->windows.size();
  return static_cast<int>(all);
}

}  // namespace hora::internal::test
