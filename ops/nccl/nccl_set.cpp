#include "ops/nccl/nccl_set.h"

#include <cstring>
#include <utility>

#include "ops/nccl/check.h"

namespace hora {
namespace {

NcclGroupOptions allocating(NcclGroupOptions options, bool at_once) {
  options.allocates_at_once = at_once;
  return options;
}

}  // namespace

NcclSet::NcclSet(NcclSite& site, NcclGroupOptions options, LaunchTurns turns, Connects connects)
    : site_(site),
      options_(std::move(options)),
      communicator_(site.communicators.add()),
      launches_(site, communicator_, turns,
                connects == Connects::when_used ? connection(turns) : NcclLaunches::Connection()),
      group_(allocating(options_, connects == Connects::at_start), launches_),
      exchange_(options_.local_rank, options_.local_size, launches_, site.heap) {}

void NcclSet::connect(const ncclUniqueId& id) {
  communicator_ = NcclCommunicator(site_.nccl, id, options_.local_size, options_.local_rank);
}

NcclLaunches::Connection NcclSet::connection(LaunchTurns turns) {
  static_assert(sizeof(ncclUniqueId) <= sizeof(LaunchTurnsMemory::note));
  const auto announce = [this, turns] {
    if (!turns.leads()) return;
    ncclUniqueId id{};
    nccl_check(site_.nccl, site_.nccl.get_unique_id(&id), "ncclGetUniqueId");
    std::memcpy(turns.note().data(), &id, sizeof id);
  };
  const auto begin = [this, turns] {
    ncclUniqueId id{};
    std::memcpy(&id, turns.note().data(), sizeof id);
    connect(id);
  };
  return {announce, begin};
}

}  // namespace hora
