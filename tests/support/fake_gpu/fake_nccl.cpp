#include "tests/support/fake_gpu/fake_nccl.h"

#include <utility>

namespace hora::internal::test {

FakeNccl::FakeNccl(std::shared_ptr<NcclWorld> world, FakeDevice& device,
                   const FakeGpuOptions& options)
    : world_(std::move(world)),
      device_(device),
      options_(options),
      script_({"get_last_error",
               "get_version",
               "get_unique_id",
               "comm_init_rank_config",
               "initialisation",
               "comm_get_async_error",
               "comm_finalize",
               "comm_destroy",
               "comm_abort",
               "comm_register",
               "comm_deregister",
               "comm_window_register",
               "window_registration",
               "comm_window_deregister",
               "mem_alloc",
               "mem_free",
               "group_start",
               "group_end",
               "all_reduce",
               "reduce_scatter",
               "all_gather",
               "broadcast",
               "reduce",
               "send",
               "recv"}),
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
  for (const auto& [handle, comm] : comms) {
    world_->abort(*comm);
  }
}

ncclResult_t FakeNccl::begin(std::string_view call) {
  return static_cast<ncclResult_t>(script_.begin(call));
}

bool FakeNccl::enter() {
  if (inside_++ == 0) {
    return true;
  }
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
  if (comm) {
    comm->last_error = std::move(text);
  }
  return ncclInvalidArgument;
}

ncclResult_t FakeNccl::initialise(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank,
                                  const ncclConfig_t* config) {
  std::unique_lock lock(world_->mutex);
  *comm = nullptr;
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return wrong(nullptr, "a rank outside of its communicator");
  }
  std::shared_ptr<NcclClique>& clique = world_->cliques[value_of(id)];
  if (!clique) {
    clique = std::make_shared<NcclClique>(ranks);
  }
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
  if (!made->blocking) {
    return ncclInProgress;
  }
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
  if (!comm) {
    return wrong(comm, "not a communicator of this GPU, or one that is gone");
  }
  if (comm->error == ncclSuccess) {
    advance(*comm);
  }
  const bool busy = !comm->initialised || comm->job || (comm->finalizing && !comm->finalized);
  *state = comm->error != ncclSuccess ? comm->error : busy ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t FakeNccl::unusable(NcclCommunicatorState& comm) {
  if (comm.error != ncclSuccess) {
    return comm.error;
  }
  if (comm.initialised && !comm.job && !comm.finalizing) {
    return ncclSuccess;
  }
  comm.last_error = "the communicator is used before the previous operation has succeeded";
  return ncclInvalidArgument;
}

ncclResult_t FakeNccl::finalize(ncclComm_t handle) {
  const std::scoped_lock lock(world_->mutex);
  const Comm comm = find(handle);
  if (!comm) {
    return wrong(comm, "not a communicator of this GPU, or one that is gone");
  }
  if (const ncclResult_t error = unusable(*comm); error != ncclSuccess) {
    return error;
  }
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
    if (!comm) {
      return wrong(comm, "not a communicator of this GPU, or one that is gone");
    }
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
  if (const ncclResult_t error = unusable(*comm); error != ncclSuccess) {
    return error;
  }
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
  if (data == nullptr) {
    return ncclSuccess;
  }
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
  if (registered) {
    device_.violation("freeing memory that is registered with a communicator");
  }
  if (device_.memory().in_use(data)) {
    device_.fault("ncclMemFree unmaps memory that work uses, or will");
    return ncclUnhandledCudaError;
  }
  if (device_.memory().release(MemoryKind::nccl, data)) {
    return ncclSuccess;
  }
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
  for (const auto& [handle, comm] : comms_) {
    all += comm->registrations.size();
  }
  return static_cast<int>(all);
}

}  // namespace hora::internal::test
