#include <algorithm>
#include <iterator>
#include <utility>

#include "tests/support/fake_gpu/fake_nccl.h"

namespace hora::internal::test {

void FakeNccl::start_group() {
  const std::scoped_lock lock(world_->mutex);
  ++groups_[thread_number()].depth;
}

ncclResult_t FakeNccl::end_group(ncclResult_t scripted) {
  const std::scoped_lock lock(world_->mutex);
  const auto found = groups_.find(thread_number());
  if (found == groups_.end()) {
    wrong(nullptr, "ncclGroupEnd without ncclGroupStart");
    return ncclInvalidUsage;
  }
  Group& group = found->second;
  if (scripted != ncclSuccess) {
    group.error = scripted;
  }
  if (--group.depth > 0) {
    return group.error;
  }
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
    if (group != nullptr) {
      group->error = result;
    }
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
  if (!comm) {
    return wrong(comm, "not a communicator of this GPU, or one that is gone");
  }
  if (const ncclResult_t error = unusable(*comm); error != ncclSuccess) {
    return error;
  }
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
  if (!device_.knows(stream)) {
    return wrong(comm, "a stream that is not this GPU's");
  }
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
    if (const ncclResult_t error = unusable(*operation.comm); error != ncclSuccess) {
      return error;
    }
    at_once = at_once && operation.comm->blocking;
  }
  if (at_once) {
    enqueue(std::move(operations));
    return ncclSuccess;
  }
  const auto job = std::make_shared<NcclJob>();
  for (const Operation& operation : operations) {
    operation.comm->job = job;
  }
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
    for (const Operation& operation : operations) {
      operation.comm->job.reset();
    }
    std::erase_if(operations, [](const Operation& operation) { return operation.comm->aborted; });
    enqueue(std::move(operations));
  };
  jobs_.push_back(job);
  world_->changed.notify_all();
  return ncclInProgress;
}

/// NCCL makes a thread for each group: those of different communicators end in any order.
void FakeNccl::run_launches() {
  device_.choose(device_.index());
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
  if (!transfers.empty()) {
    enqueue_transfers(std::move(transfers));
  }
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
      if (!fault.empty()) {
        device_.fault(fault);
      }
      return fault;
    });
  };
  if (device_.enqueue(operation.stream, delay, work, std::move(operation.use)) != cudaSuccess) {
    operation.comm->error = ncclUnhandledCudaError;
    operation.comm->last_error = "the stream of a collective is gone";
  }
}

}  // namespace hora::internal::test
