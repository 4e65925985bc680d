#include <array>

#include "tests/support/fake_gpu/fake_nccl.h"

namespace hora::internal::test {
namespace {

/// One thread at a time; `body` takes what the script says.
template <class Body>
ncclResult_t alone(FakeNccl& nccl, std::string_view call, Body body) {
  const ncclResult_t scripted = nccl.begin(call);
  if (!nccl.enter()) {
    return ncclInvalidUsage;
  }
  // To the device's context and back to the thread's own, as NCCL sees it.
  if (call != "comm_get_async_error" && call != "group_start") nccl.device().touch();
  const ncclResult_t result = body(scripted);
  nccl.leave();
  return result;
}

template <class Body>
ncclResult_t made(FakeNccl& nccl, std::string_view call, Body body) {
  return alone(nccl, call,
               [&](ncclResult_t scripted) { return scripted != ncclSuccess ? scripted : body(); });
}

/// Takes place even where the script says that it fails.
template <class Body>
ncclResult_t released(FakeNccl& nccl, std::string_view call, Body body) {
  return alone(nccl, call, [&](ncclResult_t scripted) {
    const ncclResult_t result = body();
    return scripted != ncclSuccess ? scripted : result;
  });
}

ncclResult_t collective(FakeNccl& nccl, const Collective& part, ncclDataType_t type, ncclRedOp_t op,
                        ncclComm_t comm, cudaStream_t stream) {
  return alone(nccl, name_of(part.kind), [&](ncclResult_t scripted) {
    return nccl.collective(comm, part, type, op, stream, scripted);
  });
}

const char* text_of(ncclResult_t result) {
  static constexpr std::array kTexts{
      "no error",         "unhandled cuda error", "unhandled system error", "internal error",
      "invalid argument", "invalid usage",        "remote process exited",  "in progress"};
  const auto index = static_cast<std::size_t>(result);
  return index < kTexts.size() ? kTexts[index] : "unknown result code";
}

void add_communicators(NcclFunctions& table, FakeNccl& nccl) {
  table.comm_init_rank_config = [&nccl](ncclComm_t* comm, int ranks, const ncclUniqueId& id,
                                        int rank, ncclConfig_t* config) {
    *comm = nullptr;
    return made(nccl, "comm_init_rank_config", [&] {
      return nccl.device().is_current("a communicator was made")
                 ? nccl.initialise(comm, ranks, id, rank, config)
                 : ncclInvalidUsage;
    });
  };
  table.comm_get_async_error = [&nccl](ncclComm_t comm, ncclResult_t* state) {
    return made(nccl, "comm_get_async_error", [&] { return nccl.poll(comm, state); });
  };
  table.comm_finalize = [&nccl](ncclComm_t comm) {
    return made(nccl, "comm_finalize", [&] { return nccl.finalize(comm); });
  };
  table.comm_destroy = [&nccl](ncclComm_t comm) {
    return released(nccl, "comm_destroy", [&] { return nccl.release(comm, false); });
  };
  table.comm_abort = [&nccl](ncclComm_t comm) {
    return released(nccl, "comm_abort", [&] { return nccl.release(comm, true); });
  };
  table.comm_register = [&nccl](ncclComm_t comm, void* data, std::size_t bytes, void** handle) {
    return made(nccl, "comm_register",
                [&] { return nccl.add_registration(comm, data, bytes, handle); });
  };
  table.comm_deregister = [&nccl](ncclComm_t comm, void* handle) {
    return released(nccl, "comm_deregister",
                    [&] { return nccl.remove_registration(comm, handle); });
  };
  if (!nccl.has_windows()) return;
  table.comm_window_register = [&nccl](ncclComm_t comm, void* data, std::size_t bytes,
                                       void** window, int) {
    return alone(nccl, "comm_window_register", [&](ncclResult_t scripted) {
      return nccl.register_window(comm, data, bytes, window, scripted);
    });
  };
  table.comm_window_deregister = [&nccl](ncclComm_t comm, void* window) {
    return released(nccl, "comm_window_deregister",
                    [&] { return nccl.remove_window(comm, window); });
  };
}

void add_collectives(NcclFunctions& table, FakeNccl& nccl) {
  table.group_start = [&nccl] {
    return made(nccl, "group_start", [&] {
      nccl.start_group();
      return ncclSuccess;
    });
  };
  table.group_end = [&nccl] {
    return alone(nccl, "group_end",
                 [&](ncclResult_t scripted) { return nccl.end_group(scripted); });
  };
  using enum CollectiveKind;
  table.all_reduce = [&nccl](const void* send, void* receive, std::size_t count,
                             ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                             cudaStream_t stream) {
    return collective(nccl, {all_reduce, send, receive, count}, type, op, comm, stream);
  };
  table.reduce_scatter = [&nccl](const void* send, void* receive, std::size_t count,
                                 ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                 cudaStream_t stream) {
    return collective(nccl, {reduce_scatter, send, receive, count}, type, op, comm, stream);
  };
  table.all_gather = [&nccl](const void* send, void* receive, std::size_t count,
                             ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    return collective(nccl, {all_gather, send, receive, count}, type, ncclSum, comm, stream);
  };
  table.broadcast = [&nccl](const void* send, void* receive, std::size_t count, ncclDataType_t type,
                            int root, ncclComm_t comm, cudaStream_t stream) {
    Collective part{broadcast, send, receive, count};
    part.root = root;
    return collective(nccl, part, type, ncclSum, comm, stream);
  };
  table.reduce = [&nccl](const void* send, void* receive, std::size_t count, ncclDataType_t type,
                         ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    Collective part{reduce, send, receive, count};
    part.root = root;
    return collective(nccl, part, type, op, comm, stream);
  };
  table.send = [&nccl](const void* data, std::size_t count, ncclDataType_t type, int peer,
                       ncclComm_t comm, cudaStream_t stream) {
    Collective part{send, data, nullptr, count};
    part.root = peer;
    return collective(nccl, part, type, ncclSum, comm, stream);
  };
  table.recv = [&nccl](void* data, std::size_t count, ncclDataType_t type, int peer,
                       ncclComm_t comm, cudaStream_t stream) {
    Collective part{recv, nullptr, data, count};
    part.root = peer;
    return collective(nccl, part, type, ncclSum, comm, stream);
  };
}

}  // namespace

NcclFunctions nccl_functions(FakeNccl& nccl) {
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
  // Memory belongs to no communicator: any thread may allocate while another is inside.
  table.mem_alloc = [&nccl](void** data, std::size_t bytes) {
    ncclResult_t result = nccl.begin("mem_alloc");
    nccl.device().touch();
    if (!nccl.device().is_current("ncclMemAlloc")) result = ncclInvalidUsage;
    *data =
        result != ncclSuccess ? nullptr : nccl.device().memory().allocate(MemoryKind::nccl, bytes);
    // After a failure of CUDA's it leaves the last error as it is.
    if (result != ncclSuccess) nccl.device().end(cudaErrorMemoryAllocation);
    return result;
  };
  table.mem_free = [&nccl](void* data) {
    const ncclResult_t scripted = nccl.begin("mem_free");
    nccl.device().touch();
    const ncclResult_t result = nccl.free(data);
    return scripted != ncclSuccess ? scripted : result;
  };
  add_communicators(table, nccl);
  add_collectives(table, nccl);
  return table;
}

}  // namespace hora::internal::test
