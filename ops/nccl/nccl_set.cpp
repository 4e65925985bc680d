#include "ops/nccl/nccl_set.h"

#include <hora/error.h>

#include <cstring>
#include <optional>
#include <utility>

#include "ops/nccl/functions.h"

namespace hora::internal {
namespace {

NcclGroupOptions allocating(NcclGroupOptions options, bool at_once) {
  options.allocates_at_once = at_once;
  return options;
}

}  // namespace

NcclSet::NcclSet(NcclContext& context, NcclGroupOptions options, LaunchTicketLock ticket_lock,
                 Connects connects)
    : context_(context),
      options_(std::move(options)),
      communicator_(context.communicators.add()),
      launches_(
          context, communicator_, ticket_lock,
          connects == Connects::when_used ? connection(ticket_lock) : NcclLaunches::Connection()),
      group_(allocating(options_, connects == Connects::at_start), launches_),
      exchange_(options_.local_rank, options_.place(), launches_, context.heap) {}

NcclSet::~NcclSet() {
  // The thread keeps the device where it has none: what the members free is there.
  std::optional<DeviceGuard> device;
  try {
    device.emplace(context_.cuda, context_.device);
  } catch (const Error&) {
    // CUDA has failed; NCCL is to end its part all the same.
  }
  communicator_.abort();
}

void NcclSet::disconnect() {
  const DeviceGuard device(context_.cuda, context_.device);
  context_.communicators.retire(communicator_);
}

void NcclSet::connect(const ncclUniqueId& id) {
  const PlaceInSet place = options_.place();
  communicator_ = NcclCommunicator(context_.nccl, id, place.ranks, place.rank, options_.most_ctas);
}

NcclLaunches::Connection NcclSet::connection(LaunchTicketLock ticket_lock) {
  static_assert(sizeof(ncclUniqueId) <= sizeof(LaunchTicketLockMemory::note));
  const auto announce = [this, ticket_lock] {
    if (!ticket_lock.leads()) return;
    ncclUniqueId id{};
    nccl_check(context_.nccl, context_.nccl.get_unique_id(&id), "ncclGetUniqueId");
    std::memcpy(ticket_lock.note().data(), &id, sizeof id);
  };
  const auto begin = [this, ticket_lock] {
    ncclUniqueId id{};
    std::memcpy(&id, ticket_lock.note().data(), sizeof id);
    connect(id);
  };
  return {announce, begin};
}

}  // namespace hora::internal
