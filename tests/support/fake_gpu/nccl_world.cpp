#include "tests/support/fake_gpu/nccl_world.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hora::internal::test {

std::uint64_t value_of(const ncclUniqueId& id) {
  std::uint64_t value = 0;
  std::memcpy(&value, id.internal, sizeof value);
  return value;
}

int NcclWorld::next_gpu() {
  const std::scoped_lock lock(mutex);
  return gpus_++;
}

ncclUniqueId NcclWorld::next_id() {
  const std::scoped_lock lock(mutex);
  ncclUniqueId id{};
  ++ids_;
  std::memcpy(id.internal, &ids_, sizeof ids_);
  return id;
}

std::vector<std::string> NcclWorld::errors() const {
  const std::scoped_lock lock(mutex);
  return errors_;
}

void NcclWorld::error(std::string text) {
  const std::scoped_lock lock(mutex);
  errors_.push_back(std::move(text));
}

void NcclWorld::run(NcclCommunicatorState& comm, std::uint64_t number, const Collective& part,
                    const std::function<std::string()>& check) {
  std::unique_lock lock(mutex);
  ++comm.inside;
  // One communicator's collectives run one after the other, whatever their streams.
  changed.wait(lock, [&] { return comm.aborted || comm.done == number; });
  if (!comm.aborted) {
    meet(lock, comm, number, part, check());
    ++comm.done;
  }
  --comm.inside;
  changed.notify_all();
}

void NcclWorld::meet(std::unique_lock<std::mutex>& lock, NcclCommunicatorState& comm,
                     std::uint64_t number, const Collective& part, const std::string& wrong) {
  NcclClique& clique = *comm.clique;
  std::shared_ptr<NcclMeeting>& place = clique.meetings[number];
  if (!place) place = std::make_shared<NcclMeeting>(clique.size());
  const std::shared_ptr<NcclMeeting> meeting = place;
  auto& own = meeting->parts[static_cast<std::size_t>(comm.rank)];
  own = part;
  ++meeting->arrived;
  if (!wrong.empty()) {
    // No rank may work on this memory: the meeting is over, also for those that arrive later.
    complete(lock, clique, *meeting, number, wrong);
  } else if (!meeting->done && meeting->arrived == clique.size()) {
    complete(lock, clique, *meeting, number, {});
  }
  changed.wait(lock, [&] { return meeting->done || (comm.aborted && !meeting->computing); });
  if (!meeting->done) {
    own.reset();
    --meeting->arrived;
  } else if (meeting->arrived == clique.size()) {
    clique.meetings.erase(number);
  }
}

void NcclWorld::complete(std::unique_lock<std::mutex>& lock, NcclClique& clique,
                         NcclMeeting& meeting, std::uint64_t number, std::string wrong) {
  if (wrong.empty()) {
    std::vector<Collective> parts;
    for (const std::optional<Collective>& part : meeting.parts) parts.push_back(*part);
    wrong = disagreement(parts);
    if (wrong.empty()) {
      meeting.computing = true;
      lock.unlock();
      perform(parts);
      lock.lock();
      meeting.computing = false;
    }
  }
  if (!wrong.empty()) fail(clique, "collective " + std::to_string(number) + ": " + wrong);
  meeting.done = true;
  changed.notify_all();
}

void NcclWorld::fail(NcclClique& clique, const std::string& text) {
  errors_.push_back(text);
  for (const auto& member : clique.members) {
    if (const auto comm = member.lock()) {
      comm->error = ncclInvalidUsage;
      comm->last_error = text;
    }
  }
}

void NcclWorld::abort(NcclCommunicatorState& comm) {
  std::unique_lock lock(mutex);
  comm.aborted = true;
  comm.job.reset();
  comm.registrations.clear();
  comm.windows.clear();
  if (!comm.initialised) comm.clique->broken = true;
  changed.notify_all();
  changed.wait(lock, [&] { return comm.inside == 0; });
}

void NcclWorld::tell_peers(const NcclCommunicatorState& comm) {
  const std::scoped_lock lock(mutex);
  for (const auto& member : comm.clique->members) {
    const auto peer = member.lock();
    if (!peer || peer.get() == &comm || peer->error != ncclSuccess) continue;
    peer->error = ncclRemoteError;
    peer->last_error = "rank " + std::to_string(comm.rank) + " has closed its connections";
  }
}

// Sends and receives between two ranks of a communicator.

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
