// Sends and receives between two ranks of a communicator.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/support/fake_gpu/nccl_world.h"

namespace hora::internal::test {

void NcclWorld::transfer(NcclCommunicatorState& comm, std::uint64_t number,
                         const std::vector<Collective>& parts,
                         const std::function<std::string()>& check) {
  std::unique_lock lock(mutex);
  ++comm.inside;
  changed.wait(lock, [&] { return comm.aborted || comm.transfers_done == number; });
  std::vector<std::shared_ptr<NcclParcel>> own;
  std::string wrong = comm.aborted ? std::string() : check();
  if (!wrong.empty()) {
    fail(*comm.clique, wrong);
  } else if (!comm.aborted) {
    for (const Collective& part : parts) {
      if (part.kind != CollectiveKind::send) continue;
      own.push_back(std::make_shared<NcclParcel>(NcclParcel{part}));
      comm.clique->parcels[{comm.rank, part.root}].push_back(own.back());
    }
    changed.notify_all();
    for (const Collective& part : parts) {
      if (part.kind == CollectiveKind::recv) take(lock, comm, part);
    }
    const auto all_taken = [&] {
      return std::ranges::all_of(own, [](const auto& parcel) { return parcel->taken; });
    };
    changed.wait(lock, [&] { return comm.aborted || all_taken(); });
    // Parcels that no rank has taken are gone with their memory.
    for (auto& [way, parcels] : comm.clique->parcels) {
      std::erase_if(
          parcels, [&](const auto& parcel) { return std::ranges::find(own, parcel) != own.end(); });
    }
  }
  if (!comm.aborted) ++comm.transfers_done;
  --comm.inside;
  changed.notify_all();
}

void NcclWorld::take(std::unique_lock<std::mutex>& lock, NcclCommunicatorState& comm,
                     const Collective& part) {
  auto& parcels = comm.clique->parcels[{part.root, comm.rank}];
  changed.wait(lock, [&] { return comm.aborted || !parcels.empty(); });
  if (comm.aborted) return;
  const auto parcel = parcels.front();
  parcels.pop_front();
  if (parcel->part.send_bytes() != part.receive_bytes()) {
    fail(*comm.clique, "rank " + std::to_string(part.root) + ": " + parcel->part.text() +
                           "; rank " + std::to_string(comm.rank) + ": " + part.text());
  } else if (part.receive_bytes() > 0) {
    std::memcpy(part.receive, parcel->part.send, part.receive_bytes());
  }
  parcel->taken = true;
  changed.notify_all();
}

}  // namespace hora::internal::test
