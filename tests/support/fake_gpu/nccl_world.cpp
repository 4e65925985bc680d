#include "tests/support/fake_gpu/nccl_world.h"

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
  if (!place) {
    place = std::make_shared<NcclMeeting>(clique.size());
  }
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
    for (const std::optional<Collective>& part : meeting.parts) {
      parts.push_back(*part);
    }
    wrong = disagreement(parts);
    if (wrong.empty()) {
      meeting.computing = true;
      lock.unlock();
      perform(parts);
      lock.lock();
      meeting.computing = false;
    }
  }
  if (!wrong.empty()) {
    fail(clique, "collective " + std::to_string(number) + ": " + wrong);
  }
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
  if (!comm.initialised) {
    comm.clique->broken = true;
  }
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

}  // namespace hora::internal::test
