#include "tests/support/fake_gpu/fake_nccl.h"

#include <algorithm>
#include <functional>
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

ncclResult_t FakeNccl::begin(const std::string& call) {
  return static_cast<ncclResult_t>(script_.begin(call));
}

bool FakeNccl::enter() {
  if (inside_++ == 0) return true;
  --inside_;
  const std::scoped_lock lock(world_->mutex);
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
  const std::scoped_lock lock(world_->mutex);
  if (ranks < 1 || rank < 0 || rank >= ranks || config == nullptr || config->blocking != 0) {
    return wrong(nullptr, "a rank outside of its communicator, or one that blocks");
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
  made->initialisation_error = begin("initialisation");
  member = made;
  ++clique->joined;
  world_->changed.notify_all();
  *comm = reinterpret_cast<ncclComm_t>(device_.next_handle());
  comms_.emplace(*comm, made);
  return ncclInProgress;
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
  if (!comm) return unusable(comm);
  if (comm->error == ncclSuccess) advance(*comm);
  const bool busy = !comm->initialised || comm->job || (comm->finalizing && !comm->finalized);
  *state = comm->error != ncclSuccess ? comm->error : busy ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t FakeNccl::unusable(const Comm& comm) {
  if (!comm) return wrong(comm, "not a communicator of this GPU, or one that is gone");
  if (comm->error != ncclSuccess) return comm->error;
  if (comm->initialised && !comm->job && !comm->finalizing) return ncclSuccess;
  return wrong(comm, "the communicator is used before the previous operation has succeeded");
}

ncclResult_t FakeNccl::finalize(ncclComm_t handle) {
  const std::scoped_lock lock(world_->mutex);
  const Comm comm = find(handle);
  if (const ncclResult_t error = unusable(comm); error != ncclSuccess) return error;
  comm->finalizing = true;
  ++comm->clique->finalizing;
  return ncclInProgress;
}

ncclResult_t FakeNccl::release(ncclComm_t handle, bool abort) {
  Comm comm;
  {
    const std::scoped_lock lock(world_->mutex);
    comm = find(handle);
    if (!comm) return unusable(comm);
    if (!abort && comm->in_flight()) {
      world_->error("a communicator was destroyed while it had collectives in flight");
    }
    if (!abort && !comm->windows.empty()) {
      world_->error("a communicator was destroyed that had windows, whose memory is lost");
    }
    std::erase(jobs_, comm->job);
    const auto group = groups_.find(thread_number());
    if (abort && group != groups_.end()) {
      group->second.aborted.push_back(handle);
    } else {
      comms_.erase(handle);
    }
  }
  world_->abort(*comm);
  if (abort && options_.peers_notice_aborts) world_->tell_peers(*comm);
  return ncclSuccess;
}

ncclResult_t FakeNccl::add_registration(ncclComm_t handle, void* data, std::size_t bytes,
                                        void** registration) {
  const std::scoped_lock lock(world_->mutex);
  const Comm comm = find(handle);
  if (const ncclResult_t error = unusable(comm); error != ncclSuccess) return error;
  if (!device_.memory().on_device({{data, bytes}})) {
    return wrong(comm, "registering memory that is not the device's");
  }
  *registration = reinterpret_cast<void*>(device_.next_handle());
  comm->registrations.emplace(*registration, NcclWindow{data, bytes});
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
  {
    const std::scoped_lock lock(world_->mutex);
    const auto has = [&](const auto& entry) {
      const auto is_data = [&](const auto& memory) { return memory.second.data == data; };
      return std::ranges::any_of(entry.second->registrations, is_data) ||
             std::ranges::any_of(entry.second->windows, is_data);
    };
    if (std::ranges::any_of(comms_, has)) {
      device_.violation("freeing memory that is registered with a communicator");
    }
  }
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

void FakeNccl::async_error(ncclResult_t error) {
  const std::scoped_lock lock(world_->mutex);
  for (const auto& [handle, comm] : comms_) {
    comm->fail(error, "an error that the test has scripted");
  }
}

void FakeNccl::count(LiveHandles& live) const {
  const std::scoped_lock lock(world_->mutex);
  live.communicators = static_cast<int>(comms_.size());
  for (const auto& [handle, comm] : comms_) {
    live.registrations += static_cast<int>(comm->registrations.size());
    live.windows += static_cast<int>(comm->windows.size());
  }
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
                                    : launch(std::move(ended.operations), std::move(ended.windows));
}

ncclResult_t FakeNccl::collective(ncclResult_t scripted, CollectiveKind kind, const void* send,
                                  void* receive, std::size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, int root, ncclComm_t handle,
                                  cudaStream_t stream) {
  const std::scoped_lock lock(world_->mutex);
  const Comm comm = find(handle);
  Collective part{.kind = kind, .send = send, .receive = receive, .count = count, .root = root};
  const ncclResult_t result =
      scripted != ncclSuccess ? scripted : validate(comm, part, type, op, stream);
  Operation operation{
      comm, part, stream,
      device_.memory().use({{part.send, part.send_bytes()}, {part.receive, part.receive_bytes()}})};
  if (result == ncclSuccess && part.ranks == 1 && !part.is_transfer()) {
    // A kernel of its own, also in a group; what is sent waits for the group's end.
    enqueue(std::move(operation));
    return ncclSuccess;
  }
  return add(result, {std::move(operation)}, {});
}

ncclResult_t FakeNccl::add(ncclResult_t result, std::vector<Operation> operations,
                           std::vector<Window> windows) {
  const auto found = groups_.find(thread_number());
  if (found == groups_.end()) {
    return result != ncclSuccess ? result : launch(std::move(operations), std::move(windows));
  }
  Group& group = found->second;
  if (result != ncclSuccess) group.error = result;
  std::ranges::move(operations, std::back_inserter(group.operations));
  std::ranges::move(windows, std::back_inserter(group.windows));
  return result;
}

ncclResult_t FakeNccl::validate(const Comm& comm, Collective& part, ncclDataType_t type,
                                ncclRedOp_t op, cudaStream_t stream) {
  if (const ncclResult_t error = unusable(comm); error != ncclSuccess) return error;
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
  if (!device_.memory().on_device(
          {{part.send, part.send_bytes()}, {part.receive, part.receive_bytes()}})) {
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

std::string FakeNccl::fault_of(const std::vector<Collective>& parts) {
  for (const Collective& part : parts) {
    std::string fault = memory_fault(part);
    if (fault.empty()) continue;
    device_.fault(fault);
    return fault;
  }
  return {};
}

ncclResult_t FakeNccl::launch(std::vector<Operation> operations, std::vector<Window> windows) {
  std::vector<Comm> comms;
  for (const Operation& operation : operations) comms.push_back(operation.comm);
  for (const Window& window : windows) comms.push_back(window.comm);
  for (const Comm& comm : comms) {
    // Again, for a group may have been open while a communicator changed.
    if (const ncclResult_t error = unusable(comm); error != ncclSuccess) return error;
  }
  if (comms.empty()) return ncclSuccess;
  const auto job = std::make_shared<NcclJob>();
  for (const Comm& comm : comms) comm->job = job;
  for (Window& window : windows) begin_window(window);
  job->may_launch = [windows] { return std::ranges::all_of(windows, is_met); };
  job->launch = [this, comms, windows, operations = std::move(operations)]() mutable {
    for (const Comm& comm : comms) comm->job.reset();
    for (const Window& window : windows) end_window(window);
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
      return any.comm->fail(ncclInvalidUsage,
                            "sends and receives of one group are on several streams");
    }
    parts.push_back(operation.part);
    std::ranges::move(operation.use, std::back_inserter(use));
    operation.use.clear();
  }
  const std::uint64_t number = any.comm->transfers_enqueued++;
  const auto work = [this, comm = any.comm, parts, number] {
    world_->transfer(*comm, number, parts, [&] { return fault_of(parts); });
  };
  if (device_.enqueue(any.stream, work, std::move(use)) != cudaSuccess) {
    any.comm->fail(ncclUnhandledCudaError, "the stream of a transfer is gone");
  }
}

void FakeNccl::enqueue(Operation operation) {
  NcclCommunicatorState& state = *operation.comm;
  operation.part.windows = windows_of(state, operation.part);
  const auto work = [this, comm = operation.comm, part = operation.part,
                     number = state.enqueued++] {
    world_->run(*comm, number, part, [&] { return fault_of({part}); });
  };
  if (device_.enqueue(operation.stream, work, std::move(operation.use)) != cudaSuccess) {
    state.fail(ncclUnhandledCudaError, "the stream of a collective is gone");
  }
}

// Windows.

ncclResult_t FakeNccl::register_window(ncclResult_t scripted, ncclComm_t handle, void* data,
                                       std::size_t bytes, void** window, int) {
  const std::scoped_lock lock(world_->mutex);
  const Comm comm = find(handle);
  ncclResult_t result = scripted != ncclSuccess ? scripted : unusable(comm);
  if (result == ncclSuccess && !device_.memory().is_block(MemoryKind::nccl, data, bytes)) {
    device_.violation("a window of memory that ncclMemAlloc did not give");
    result = wrong(comm, "a window of memory that ncclMemAlloc did not give");
  }
  return add(result, {}, {{comm, data, bytes, window}});
}

/// Meets the other ranks.
void FakeNccl::begin_window(Window& window) {
  NcclCommunicatorState& comm = *window.comm;
  window.error = begin("window_registration");
  if (window.error != ncclSuccess) return;
  window.number = ++comm.registered;
  std::string text = "window of " + std::to_string(window.bytes) + " bytes after " +
                     std::to_string(comm.enqueued) + " collectives, beside windows";
  for (const auto& [handle, other] : comm.windows) text += " " + std::to_string(other.number);
  std::vector<std::string>& texts = comm.clique->registrations[window.number];
  texts.push_back(text);
  if (text != texts.front()) {
    world_->fail(*comm.clique, "ranks register different windows: " + text + "; " + texts.front());
  }
  world_->changed.notify_all();
}

bool FakeNccl::is_met(const Window& window) {
  const NcclClique& clique = *window.comm->clique;
  return window.error != ncclSuccess ||
         clique.registrations.at(window.number).size() == clique.members.size();
}

void FakeNccl::end_window(const Window& window) {
  NcclCommunicatorState& comm = *window.comm;
  if (window.error != ncclSuccess) {
    return comm.fail(window.error, "an error that the test has scripted");
  }
  *window.handle = reinterpret_cast<void*>(device_.next_handle());
  comm.windows.emplace(*window.handle, NcclWindow{window.data, window.bytes, window.number});
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
    const auto offset_in = [data](const NcclWindow& window) {
      return reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(window.data);
    };
    const auto found = std::ranges::find_if(comm.windows, [&](const auto& entry) {
      return offset_in(entry.second) < entry.second.bytes;  // wraps before its beginning
    });
    if (found == comm.windows.end()) return {};
    const NcclWindow& window = found->second;
    text += " window " + std::to_string(window.number) + " at " + std::to_string(offset_in(window));
  }
  return text;
}

// The table.

namespace {

/// One thread at a time; `body` takes what the script says.
template <class Body>
ncclResult_t alone(FakeNccl& nccl, const std::string& call, Body body) {
  const ncclResult_t scripted = nccl.begin(call);
  if (!nccl.enter()) return ncclInvalidUsage;
  // To the device's context and back to the thread's own, as NCCL sees it.
  if (call != "comm_get_async_error" && call != "group_start") nccl.device().touch();
  const ncclResult_t result = body(scripted);
  nccl.leave();
  return result;
}

const char* text_of(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "a fake error";
}

/// Memory belongs to no communicator: any thread may allocate while another is inside.
ncclResult_t allocate(FakeNccl& nccl, void** data, std::size_t bytes) {
  ncclResult_t result = nccl.begin("mem_alloc");
  nccl.device().touch();
  if (!nccl.device().is_current("ncclMemAlloc")) result = ncclInvalidUsage;
  *data =
      result != ncclSuccess ? nullptr : nccl.device().memory().allocate(MemoryKind::nccl, bytes);
  // After a failure of CUDA's it leaves the last error as it is.
  if (result != ncclSuccess) nccl.device().end(cudaErrorMemoryAllocation);
  return result;
}

}  // namespace

NcclFunctions nccl_functions(FakeNccl& nccl) {
  for (const char* const call : {"get_last_error", "get_version", "get_unique_id", "initialisation",
                                 "window_registration", "mem_alloc", "mem_free"}) {
    nccl.script().add(call);
  }
  // `body` is told what the script says.
  const auto told = [&nccl](const char* name, auto body) {
    nccl.script().add(name);
    return [=, &nccl](auto... arguments) {
      return alone(nccl, name, [&](ncclResult_t scripted) {
        return std::invoke(body, nccl, scripted, arguments...);
      });
    };
  };
  // `always`: takes place even where the script says that it fails.
  const auto call = [told](const char* name, auto body, bool always = false) {
    return told(name, [=](FakeNccl& own, ncclResult_t scripted, auto... arguments) {
      if (scripted != ncclSuccess && !always) return scripted;
      const ncclResult_t result = std::invoke(body, own, arguments...);
      return scripted != ncclSuccess ? scripted : result;
    });
  };
  using Nccl = FakeNccl;
  NcclFunctions table;
  table.get_error_string = text_of;
  table.get_last_error = [&nccl](ncclComm_t comm) {
    nccl.begin("get_last_error");
    return nccl.last_error(comm);
  };
  table.get_version = [&nccl](int* version) {
    *version = NCCL_VERSION_CODE;
    return nccl.begin("get_version");
  };
  table.get_unique_id = [&nccl](ncclUniqueId* id) {
    *id = nccl.world().next_id();
    return nccl.begin("get_unique_id");
  };
  table.mem_alloc = std::bind_front(allocate, std::ref(nccl));
  table.mem_free = [&nccl](void* data) {
    const ncclResult_t scripted = nccl.begin("mem_free");
    nccl.device().touch();
    const ncclResult_t result = nccl.free(data);
    return scripted != ncclSuccess ? scripted : result;
  };
  table.comm_init_rank_config = call("comm_init_rank_config", &Nccl::initialise);
  table.comm_get_async_error = call("comm_get_async_error", &Nccl::poll);
  table.comm_finalize = call("comm_finalize", &Nccl::finalize);
  table.comm_destroy = call("comm_destroy", &Nccl::destroy, true);
  table.comm_abort = call("comm_abort", &Nccl::abort, true);
  table.comm_register = call("comm_register", &Nccl::add_registration);
  table.comm_deregister = call("comm_deregister", &Nccl::remove_registration, true);
  table.comm_window_deregister = call("comm_window_deregister", &Nccl::remove_window, true);
  table.comm_window_register = told("comm_window_register", &Nccl::register_window);
  if (!nccl.has_windows()) table.comm_window_register = nullptr;
  if (!nccl.has_windows()) table.comm_window_deregister = nullptr;
  table.group_start = call("group_start", &Nccl::start_group);
  table.group_end = told("group_end", &Nccl::end_group);
  using enum CollectiveKind;
  using namespace std::placeholders;
  const auto collective = [told](CollectiveKind kind, auto... arguments) {
    return std::bind(told(name_of(kind), &Nccl::collective), kind, arguments...);
  };
  table.all_reduce = collective(all_reduce, _1, _2, _3, _4, _5, 0, _6, _7);
  table.reduce_scatter = collective(reduce_scatter, _1, _2, _3, _4, _5, 0, _6, _7);
  table.all_gather = collective(all_gather, _1, _2, _3, _4, ncclSum, 0, _5, _6);
  table.broadcast = collective(broadcast, _1, _2, _3, _4, ncclSum, _5, _6, _7);
  table.reduce = collective(reduce, _1, _2, _3, _4, _5, _6, _7, _8);
  table.send = collective(send, _1, nullptr, _2, _3, ncclSum, _4, _5, _6);
  table.recv = collective(recv, nullptr, _1, _2, _3, ncclSum, _4, _5, _6);
  return table;
}

}  // namespace hora::internal::test
