#include "tests/support/fake_gpu/fake_nccl.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hora::internal::test {

FakeNccl::FakeNccl(std::shared_ptr<NcclWorld> world, FakeDevice& device,
                   const FakeGpuOptions& options)
    : world_(std::move(world)),
      device_(device),
      options_(options),
      launching_([this] { run_launches(); }) {
  has_context_.wait();
}

void FakeNccl::stop() {
  std::map<ncclComm_t, Comm> comms;
  {
    const std::scoped_lock lock(world_->mutex);
    comms = std::exchange(comms_, {});
    groups_.clear();
    stopping_ = true;
    world_->changed.notify_all();
  }
  if (launching_.joinable()) launching_.join();
  for (const auto& [handle, comm] : comms) world_->abort(*comm);
}

ncclResult_t FakeNccl::begin(std::string_view call) {
  return static_cast<ncclResult_t>(script_.begin(call));
}

bool FakeNccl::enter() {
  if (inside_++ == 0) return true;
  --inside_;
  world_->error("two threads are inside NCCL calls of GPU " + std::to_string(device_.number()));
  return false;
}

FakeNccl::Comm FakeNccl::find(ncclComm_t comm) const {
  const auto found = comms_.find(comm);
  return found == comms_.end() ? nullptr : found->second;
}

ncclResult_t FakeNccl::wrong(const Comm& comm, std::string text) {
  last_error_ = text;
  if (comm) comm->last_error = std::move(text);
  return ncclInvalidArgument;
}

ncclResult_t FakeNccl::initialise(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank,
                                  const ncclConfig_t* config) {
  *comm = nullptr;
  if (!device_.is_current("a communicator was made")) return ncclInvalidUsage;
  std::unique_lock lock(world_->mutex);
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return wrong(nullptr, "a rank outside of its communicator");
  }
  std::shared_ptr<NcclClique>& clique = world_->cliques[value_of(id)];
  if (!clique) clique = std::make_shared<NcclClique>(ranks);
  auto& member = clique->members[static_cast<std::size_t>(rank) % clique->members.size()];
  if (clique->size() != ranks || !member.expired()) {
    return wrong(nullptr, "ranks disagree about a communicator's size, or one comes twice");
  }
  const auto made = std::make_shared<NcclCommunicatorState>();
  made->clique = clique;
  made->rank = rank;
  made->blocking = config == nullptr || config->blocking != 0;
  made->initialisation_polls = options_.initialisation_polls;
  made->initialisation_error = static_cast<ncclResult_t>(script_.begin("initialisation"));
  member = made;
  ++clique->joined;
  world_->changed.notify_all();
  *comm = reinterpret_cast<ncclComm_t>(device_.next_handle());
  comms_.emplace(*comm, made);
  if (!made->blocking) return ncclInProgress;
  world_->changed.wait(lock, [&] { return made->aborted || clique->joined == ranks; });
  made->initialised = true;
  return made->initialisation_error;
}

void FakeNccl::advance(NcclCommunicatorState& comm) {
  NcclClique& clique = *comm.clique;
  if (!comm.initialised) {
    const bool all = clique.joined == clique.size() && !clique.broken;
    if (all && --comm.initialisation_polls <= 0) {
      comm.initialised = comm.initialisation_error == ncclSuccess;
      comm.error = comm.initialisation_error;
    }
  } else if (comm.finalizing) {
    comm.finalized = !comm.in_flight() && clique.finalizing == clique.size();
  }
}

ncclResult_t FakeNccl::poll(ncclComm_t handle, ncclResult_t* state) {
  const std::scoped_lock lock(world_->mutex);
  const Comm comm = find(handle);
  if (!comm) return wrong(comm, "not a communicator of this GPU, or one that is gone");
  if (comm->error == ncclSuccess) advance(*comm);
  const bool busy = !comm->initialised || comm->job || (comm->finalizing && !comm->finalized);
  *state = comm->error != ncclSuccess ? comm->error : busy ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t FakeNccl::unusable(NcclCommunicatorState& comm) {
  if (comm.error != ncclSuccess) return comm.error;
  if (comm.initialised && !comm.job && !comm.finalizing) return ncclSuccess;
  comm.last_error = "the communicator is used before the previous operation has succeeded";
  return ncclInvalidArgument;
}

ncclResult_t FakeNccl::finalize(ncclComm_t handle) {
  const std::scoped_lock lock(world_->mutex);
  const Comm comm = find(handle);
  if (!comm) return wrong(comm, "not a communicator of this GPU, or one that is gone");
  if (const ncclResult_t error = unusable(*comm); error != ncclSuccess) return error;
  comm->finalizing = true;
  ++comm->clique->finalizing;
  return ncclInProgress;
}

ncclResult_t FakeNccl::release(ncclComm_t handle, bool abort) {
  Comm comm;
  bool in_flight = false;
  bool has_windows = false;
  {
    const std::scoped_lock lock(world_->mutex);
    comm = find(handle);
    if (!comm) return wrong(comm, "not a communicator of this GPU, or one that is gone");
    in_flight = comm->in_flight();
    has_windows = !comm->windows.empty();
    std::erase(jobs_, comm->job);
    const auto group = groups_.find(thread_number());
    if (abort && group != groups_.end()) {
      group->second.aborted.push_back(handle);
    } else {
      comms_.erase(handle);
    }
  }
  if (!abort && in_flight) {
    world_->error("a communicator was destroyed while it had collectives in flight");
  }
  if (!abort && has_windows) {
    world_->error("a communicator was destroyed that had windows, whose memory is lost");
  }
  world_->abort(*comm);
  if (abort && options_.peers_notice_aborts) world_->tell_peers(*comm);
  return ncclSuccess;
}

ncclResult_t FakeNccl::add_registration(ncclComm_t handle, void* data, std::size_t bytes,
                                        void** registration) {
  const std::scoped_lock lock(world_->mutex);
  const Comm comm = find(handle);
  if (!comm || !device_.memory().on_device(data, bytes)) {
    return wrong(comm, "registering memory that is not the device's, or without a communicator");
  }
  if (const ncclResult_t error = unusable(*comm); error != ncclSuccess) return error;
  *registration = reinterpret_cast<void*>(device_.next_handle());
  comm->registrations.emplace(*registration, data);
  return ncclSuccess;
}

ncclResult_t FakeNccl::remove_registration(ncclComm_t handle, void* registration) {
  const std::scoped_lock lock(world_->mutex);
  const Comm comm = find(handle);
  if (comm && comm->job) {
    device_.violation("a registration was changed while NCCL's launching thread reads them");
  }
  if (!comm || comm->registrations.erase(registration) == 0) {
    return wrong(comm, "deregistering what is not registered with this communicator");
  }
  return ncclSuccess;
}

ncclResult_t FakeNccl::free(void* data) {
  if (data == nullptr) return ncclSuccess;
  bool registered = false;
  {
    const std::scoped_lock lock(world_->mutex);
    for (const auto& [handle, comm] : comms_) {
      for (const auto& [registration, memory] : comm->registrations) {
        registered = registered || memory == data;
      }
      for (const auto& [window, memory] : comm->windows) {
        registered = registered || memory.data == data;
      }
    }
  }
  if (registered) device_.violation("freeing memory that is registered with a communicator");
  if (device_.memory().in_use(data)) {
    device_.fault("ncclMemFree unmaps memory that work uses, or will");
    return ncclUnhandledCudaError;
  }
  if (device_.memory().release(MemoryKind::nccl, data)) return ncclSuccess;
  device_.violation("ncclMemFree of what ncclMemAlloc did not give");
  return ncclInvalidArgument;
}

const char* FakeNccl::last_error(ncclComm_t handle) {
  const std::scoped_lock lock(world_->mutex);
  const Comm comm = find(handle);
  return comm ? comm->last_error.c_str() : last_error_.c_str();
}

void FakeNccl::async_error(ncclComm_t handle, ncclResult_t error) {
  const std::scoped_lock lock(world_->mutex);
  for (const auto& [each, comm] : comms_) {
    if (handle == nullptr || handle == each) {
      comm->error = error;
      comm->last_error = "an error that the test has scripted";
    }
  }
}

int FakeNccl::communicators() const {
  const std::scoped_lock lock(world_->mutex);
  return static_cast<int>(comms_.size());
}

int FakeNccl::registrations() const {
  const std::scoped_lock lock(world_->mutex);
  std::size_t all = 0;
  for (const auto& [handle, comm] : comms_) all += comm->registrations.size();
  return static_cast<int>(all);
}

// Groups and collectives.

ncclResult_t FakeNccl::start_group() {
  const std::scoped_lock lock(world_->mutex);
  ++groups_[thread_number()].depth;
  return ncclSuccess;
}

ncclResult_t FakeNccl::end_group(ncclResult_t scripted) {
  const std::scoped_lock lock(world_->mutex);
  const auto found = groups_.find(thread_number());
  if (found == groups_.end()) {
    wrong(nullptr, "ncclGroupEnd without ncclGroupStart");
    return ncclInvalidUsage;
  }
  Group& group = found->second;
  if (scripted != ncclSuccess) group.error = scripted;
  if (--group.depth > 0) return group.error;
  Group ended = std::move(group);
  groups_.erase(found);
  for (ncclComm_t const comm : ended.aborted) comms_.erase(comm);
  // An error within the group drops all of it.
  return ended.error != ncclSuccess ? ended.error
                                    : launch(std::move(ended.operations), ended.windows);
}

ncclResult_t FakeNccl::collective(ncclComm_t handle, Collective part, ncclDataType_t type,
                                  ncclRedOp_t op, cudaStream_t stream, ncclResult_t scripted) {
  const std::scoped_lock lock(world_->mutex);
  const auto found = groups_.find(thread_number());
  Group* group = found == groups_.end() ? nullptr : &found->second;
  const Comm comm = find(handle);
  const ncclResult_t result =
      scripted != ncclSuccess ? scripted : validate(comm, part, type, op, stream);
  if (result != ncclSuccess) {
    if (group != nullptr) group->error = result;
    return result;
  }
  Operation operation{
      comm, part, stream,
      device_.memory().use({{part.send, part.send_bytes()}, {part.receive, part.receive_bytes()}})};
  if (part.ranks == 1 && !part.is_transfer()) {
    // A kernel of its own, also in a group; what is sent waits for the group's end.
    enqueue(std::move(operation));
    return ncclSuccess;
  }
  std::vector<Operation> alone;
  std::vector<Operation>& operations = group != nullptr ? group->operations : alone;
  operations.push_back(std::move(operation));
  return group != nullptr ? ncclSuccess : launch(std::move(alone), {});
}

ncclResult_t FakeNccl::validate(const Comm& comm, Collective& part, ncclDataType_t type,
                                ncclRedOp_t op, cudaStream_t stream) {
  if (!comm) return wrong(comm, "not a communicator of this GPU, or one that is gone");
  if (const ncclResult_t error = unusable(*comm); error != ncclSuccess) return error;
  const std::optional<DataType> known = from_nccl(type);
  const std::optional<ReduceOp> operation = from_nccl(op);
  if (!known || !operation || (op == ncclAvg && !is_floating_point(*known))) {
    return wrong(comm, "a type or operation that hora does not use");
  }
  part.type = *known;
  part.op = *operation;
  part.rank = comm->rank;
  part.ranks = comm->clique->size();
  if (part.root < 0 || part.root >= part.ranks) {
    return wrong(comm, "a root outside of the communicator");
  }
  if (!device_.knows(stream)) return wrong(comm, "a stream that is not this GPU's");
  if (std::string fault = memory_fault(part); !fault.empty()) {
    device_.violation(fault);
    return wrong(comm, std::move(fault));
  }
  return ncclSuccess;
}

std::string FakeNccl::memory_fault(const Collective& part) {
  const std::string what = part.text();
  const FakeMemory& memory = device_.memory();
  if (!memory.on_device(part.send, part.send_bytes()) ||
      !memory.on_device(part.receive, part.receive_bytes())) {
    return what + ": memory that is not in any block of device memory";
  }
  const auto misaligned = [&](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % size_of(part.type) != 0;
  };
  if (misaligned(part.send) || misaligned(part.receive)) {
    return what + ": memory that is not aligned to its elements";
  }
  return {};
}

ncclResult_t FakeNccl::launch(std::vector<Operation> operations,
                              const std::vector<WindowTask>& windows) {
  bool at_once = windows.empty();
  for (const WindowTask& task : windows) {
    if (const ncclResult_t error = unusable(*task.comm); error != ncclSuccess) return error;
  }
  for (const Operation& operation : operations) {
    // Again, for a group may have been open while a communicator changed.
    if (const ncclResult_t error = unusable(*operation.comm); error != ncclSuccess) return error;
    at_once = at_once && operation.comm->blocking;
  }
  if (at_once) {
    enqueue(std::move(operations));
    return ncclSuccess;
  }
  const auto job = std::make_shared<NcclJob>();
  for (const Operation& operation : operations) operation.comm->job = job;
  std::vector<Registering> registering;
  for (const WindowTask& task : windows) {
    task.comm->job = job;
    registering.push_back(begin_window(task));
  }
  job->may_launch = [registering] { return std::ranges::all_of(registering, is_met); };
  job->launch = [this, registering, operations = std::move(operations)]() mutable {
    for (const Registering& window : registering) {
      window.task.comm->job.reset();
      end_window(window);
    }
    for (const Operation& operation : operations) operation.comm->job.reset();
    std::erase_if(operations, [](const Operation& operation) { return operation.comm->aborted; });
    enqueue(std::move(operations));
  };
  jobs_.push_back(job);
  world_->changed.notify_all();
  return ncclInProgress;
}

/// NCCL makes a thread for each group: those of different communicators end in any order.
void FakeNccl::run_launches() {
  device_.set_device(device_.number());
  has_context_.count_down();
  std::unique_lock lock(world_->mutex);
  const auto next = [this] {
    const auto found =
        std::find_if(jobs_.rbegin(), jobs_.rend(),
                     [](const std::shared_ptr<NcclJob>& job) { return job->may_launch(); });
    return launches_held_ || found == jobs_.rend() ? nullptr : *found;
  };
  while (true) {
    world_->changed.wait(lock, [&] { return stopping_ || next(); });
    if (stopping_) return;
    lock.unlock();
    std::this_thread::sleep_for(device_.random_delay());
    lock.lock();
    const std::shared_ptr<NcclJob> job = stopping_ ? nullptr : next();
    if (!job) continue;
    std::erase(jobs_, job);
    job->launch();
    world_->changed.notify_all();
  }
}

void FakeNccl::hold_launches(bool held) {
  const std::scoped_lock lock(world_->mutex);
  launches_held_ = held;
  world_->changed.notify_all();
}

void FakeNccl::enqueue(std::vector<Operation> operations) {
  std::vector<Operation> transfers;
  for (Operation& operation : operations) {
    if (operation.part.is_transfer()) {
      transfers.push_back(std::move(operation));
    } else {
      enqueue(std::move(operation));
    }
  }
  if (!transfers.empty()) enqueue_transfers(std::move(transfers));
}

/// Those of one group, all of one communicator and on one stream, as hora's are.
void FakeNccl::enqueue_transfers(std::vector<Operation> operations) {
  const Operation& any = operations.front();
  std::vector<Collective> parts;
  MemoryUse use;
  for (Operation& operation : operations) {
    if (operation.comm != any.comm || operation.stream != any.stream) {
      any.comm->error = ncclInvalidUsage;
      any.comm->last_error = "sends and receives of one group are on several streams";
      return;
    }
    parts.push_back(operation.part);
    std::ranges::move(operation.use, std::back_inserter(use));
    operation.use.clear();
  }
  const std::uint64_t number = any.comm->transfers_enqueued++;
  const auto work = [this, comm = any.comm, parts, number] {
    world_->transfer(*comm, number, parts, [&] {
      for (const Collective& part : parts) {
        std::string fault = memory_fault(part);
        if (!fault.empty()) {
          device_.fault(fault);
          return fault;
        }
      }
      return std::string();
    });
  };
  if (device_.enqueue(any.stream, script_.delay_of("send"), work, std::move(use)) != cudaSuccess) {
    any.comm->error = ncclUnhandledCudaError;
    any.comm->last_error = "the stream of a transfer is gone";
  }
}

void FakeNccl::enqueue(Operation operation) {
  const auto delay = script_.delay_of(name_of(operation.part.kind));
  operation.part.windows = windows_of(*operation.comm, operation.part);
  const std::uint64_t number = operation.comm->enqueued++;
  const auto work = [this, comm = operation.comm, part = operation.part, number] {
    world_->run(*comm, number, part, [&] {
      std::string fault = memory_fault(part);
      if (!fault.empty()) device_.fault(fault);
      return fault;
    });
  };
  if (device_.enqueue(operation.stream, delay, work, std::move(operation.use)) != cudaSuccess) {
    operation.comm->error = ncclUnhandledCudaError;
    operation.comm->last_error = "the stream of a collective is gone";
  }
}

// Windows.

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
