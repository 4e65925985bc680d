#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/local/kernels.h"
#include "tests/support/fake_gpu/fake_nccl.h"

namespace hora::internal::test {
namespace {

bool rooted(const Collective& part) {
  return part.kind == CollectiveKind::broadcast || part.kind == CollectiveKind::reduce ||
         part.is_transfer();
}

bool reduces(const Collective& part) {
  return part.kind != CollectiveKind::all_gather && part.kind != CollectiveKind::broadcast &&
         !part.is_transfer();
}

bool receives(const Collective& part) {
  if (part.is_transfer()) return part.kind == CollectiveKind::recv;
  return part.kind != CollectiveKind::reduce || part.rank == part.root;
}

bool sends(const Collective& part) {
  if (part.is_transfer()) return part.kind == CollectiveKind::send;
  return part.kind != CollectiveKind::broadcast || part.rank == part.root;
}

/// Reduces [first, first + count) of all ranks' memory into `outputs`.
void combine(std::span<const Collective> parts, std::size_t first,
             std::span<std::byte* const> outputs) {
  const Collective& any = parts.front();
  if (any.count == 0) return;
  std::vector<const std::byte*> inputs;
  for (const Collective& part : parts) {
    inputs.push_back(static_cast<const std::byte*>(part.send) + first * size_of(any.type));
  }
  reduce(any.type, any.op, inputs, outputs, any.count,
         {.post = any.op == ReduceOp::average ? 1.0 / any.ranks : 1.0});
}

template <class Key, class Value, std::size_t count>
std::optional<Value> found_in(const std::pair<Key, Value> (&pairs)[count], Key key) {
  for (const auto& [each, value] : pairs) {
    if (each == key) return value;
  }
  return std::nullopt;
}

void copy(void* target, const void* source, std::size_t bytes) {
  if (bytes > 0 && target != source) std::memmove(target, source, bytes);
}

}  // namespace

const char* name_of(CollectiveKind kind) {
  constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                    "reduce",     "send",           "recv"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::size_t Collective::send_bytes() const {
  const std::size_t part = count * size_of(type);
  if (kind == CollectiveKind::reduce_scatter) return part * static_cast<std::size_t>(ranks);
  return sends(*this) ? part : 0;
}

std::size_t Collective::receive_bytes() const {
  const std::size_t part = count * size_of(type);
  if (kind == CollectiveKind::all_gather) return part * static_cast<std::size_t>(ranks);
  return receives(*this) ? part : 0;
}

std::string Collective::text() const {
  std::string text = std::string(name_of(kind)) + " of " + std::to_string(count) + " " +
                     std::string(hora::name_of(type));
  if (reduces(*this)) text += ", " + std::string(hora::name_of(op));
  if (rooted(*this)) text += (is_transfer() ? ", peer " : ", root ") + std::to_string(root);
  if (!windows.empty()) text += ", in" + windows;
  return text;
}

std::optional<DataType> from_nccl(ncclDataType_t type) {
  constexpr std::pair<ncclDataType_t, DataType> kTypes[] = {
      {ncclFloat16, DataType::float16}, {ncclBfloat16, DataType::bfloat16},
      {ncclFloat32, DataType::float32}, {ncclFloat64, DataType::float64},
      {ncclInt32, DataType::int32},     {ncclInt64, DataType::int64},
      {ncclUint8, DataType::uint8},     {ncclInt8, DataType::int8},
      {ncclUint32, DataType::uint32},   {ncclUint64, DataType::uint64}};
  return found_in(kTypes, type);
}

std::optional<ReduceOp> from_nccl(ncclRedOp_t op) {
  constexpr std::pair<ncclRedOp_t, ReduceOp> kOps[] = {{ncclSum, ReduceOp::sum},
                                                       {ncclAvg, ReduceOp::average},
                                                       {ncclMin, ReduceOp::min},
                                                       {ncclMax, ReduceOp::max},
                                                       {ncclProd, ReduceOp::product}};
  return found_in(kOps, op);
}

std::string disagreement(std::span<const Collective> parts) {
  const std::string first = parts.front().text();
  for (const Collective& part : parts) {
    if (part.text() != first) {
      return "rank 0: " + first + "; rank " + std::to_string(part.rank) + ": " + part.text();
    }
  }
  return {};
}

void perform(std::span<const Collective> parts) {
  const Collective& any = parts.front();
  const std::size_t bytes = any.count * size_of(any.type);
  const Collective& root = parts[static_cast<std::size_t>(any.root)];
  std::vector<std::byte*> outputs;
  for (const Collective& part : parts) outputs.push_back(static_cast<std::byte*>(part.receive));
  switch (any.kind) {
    case CollectiveKind::all_reduce:
      return combine(parts, 0, outputs);
    case CollectiveKind::reduce_scatter:
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        combine(parts, rank * any.count, std::span(outputs).subspan(rank, 1));
      }
      return;
    case CollectiveKind::all_gather:
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        for (std::byte* output : outputs) copy(output + rank * bytes, parts[rank].send, bytes);
      }
      return;
    case CollectiveKind::broadcast:
      for (std::byte* output : outputs) copy(output, root.send, bytes);
      return;
    case CollectiveKind::reduce:
      return combine(parts, 0, std::span(outputs).subspan(static_cast<std::size_t>(any.root), 1));
    case CollectiveKind::send:
    case CollectiveKind::recv:
      return;  // NcclWorld::transfer
  }
}

// Where ranks meet.

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
  error(text);
  for (const auto& member : clique.members) {
    if (const auto comm = member.lock()) comm->fail(ncclInvalidUsage, text);
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
    peer->fail(ncclRemoteError,
               "rank " + std::to_string(comm.rank) + " has closed its connections");
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
