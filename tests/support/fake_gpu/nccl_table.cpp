#include <functional>

#include "tests/support/fake_gpu/fake_nccl.h"

namespace hora::internal::test {
namespace {

/// One thread at a time; `body` takes what the script says.
template <class Body>
ncclResult_t alone(FakeNccl& nccl, std::string_view call, Body body) {
  const ncclResult_t scripted = nccl.begin(call);
  if (!nccl.enter()) return ncclInvalidUsage;
  // To the device's context and back to the thread's own, as NCCL sees it.
  if (call != "comm_get_async_error" && call != "group_start") nccl.device().touch();
  const ncclResult_t result = body(scripted);
  nccl.leave();
  return result;
}

ncclResult_t collective(FakeNccl& nccl, const Collective& part, ncclDataType_t type, ncclRedOp_t op,
                        ncclComm_t comm, cudaStream_t stream) {
  return alone(nccl, name_of(part.kind), [&](ncclResult_t scripted) {
    return nccl.collective(comm, part, type, op, stream, scripted);
  });
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
  for (const char* const call :
       {"get_last_error", "get_version", "get_unique_id", "initialisation", "comm_window_register",
        "window_registration", "mem_alloc", "mem_free", "group_end", "all_reduce", "reduce_scatter",
        "all_gather", "broadcast", "reduce", "send", "recv"}) {
    nccl.script().add(call);
  }
  // `always`: takes place even where the script says that it fails.
  const auto call = [&nccl](const char* name, auto body, bool always = false) {
    nccl.script().add(name);
    return [=, &nccl](auto... arguments) {
      return alone(nccl, name, [&](ncclResult_t scripted) {
        if (scripted != ncclSuccess && !always) return scripted;
        const ncclResult_t result = std::invoke(body, nccl, arguments...);
        return scripted != ncclSuccess ? scripted : result;
      });
    };
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
  table.mem_alloc = [&nccl](void** data, std::size_t bytes) { return allocate(nccl, data, bytes); };
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
  table.comm_window_register = [&nccl](ncclComm_t comm, void* data, std::size_t bytes,
                                       void** window, int) {
    return alone(nccl, "comm_window_register", [&](ncclResult_t scripted) {
      return nccl.register_window(comm, data, bytes, window, scripted);
    });
  };
  if (!nccl.has_windows()) table.comm_window_register = nullptr;
  if (!nccl.has_windows()) table.comm_window_deregister = nullptr;
  table.group_start = call("group_start", &Nccl::start_group);
  table.group_end = [&nccl] {
    return alone(nccl, "group_end",
                 [&](ncclResult_t scripted) { return nccl.end_group(scripted); });
  };
  using enum CollectiveKind;
  const auto reducing = [&nccl](CollectiveKind kind) {
    return [kind, &nccl](const void* send, void* receive, std::size_t count, ncclDataType_t type,
                         ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
      return collective(nccl, {kind, send, receive, count}, type, op, comm, stream);
    };
  };
  table.all_reduce = reducing(all_reduce);
  table.reduce_scatter = reducing(reduce_scatter);
  table.all_gather = [&nccl](const void* send, void* receive, std::size_t count,
                             ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    return collective(nccl, {all_gather, send, receive, count}, type, ncclSum, comm, stream);
  };
  const auto rooted = [](Collective part, int root) {
    part.root = root;
    return part;
  };
  table.broadcast = [&nccl, rooted](const void* send, void* receive, std::size_t count,
                                    ncclDataType_t type, int root, ncclComm_t comm,
                                    cudaStream_t stream) {
    return collective(nccl, rooted({broadcast, send, receive, count}, root), type, ncclSum, comm,
                      stream);
  };
  table.reduce = [&nccl, rooted](const void* send, void* receive, std::size_t count,
                                 ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                                 cudaStream_t stream) {
    return collective(nccl, rooted({reduce, send, receive, count}, root), type, op, comm, stream);
  };
  table.send = [&nccl, rooted](const void* data, std::size_t count, ncclDataType_t type, int peer,
                               ncclComm_t comm, cudaStream_t stream) {
    return collective(nccl, rooted({send, data, nullptr, count}, peer), type, ncclSum, comm,
                      stream);
  };
  table.recv = [&nccl, rooted](void* data, std::size_t count, ncclDataType_t type, int peer,
                               ncclComm_t comm, cudaStream_t stream) {
    return collective(nccl, rooted({recv, nullptr, data, count}, peer), type, ncclSum, comm,
                      stream);
  };
  return table;
}

}  // namespace hora::internal::test
