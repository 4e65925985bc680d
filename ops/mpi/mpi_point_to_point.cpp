#include <fmt/format.h>
#include <hora/error.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <new>
#include <string>
#include <utility>

#include "ops/mpi/communicator.h"

namespace hora::internal {

MpiPointToPoint::MpiPointToPoint(const Communicator& communicator, int index,
                                 std::vector<int> ranks, std::size_t part_bytes)
    : PointToPoint(index, static_cast<int>(ranks.size())),
      communicator_(communicator),
      ranks_(std::move(ranks)),
      part_bytes_(part_bytes) {
  mpi_count(part_bytes_, "a part of a message");
}

MpiPointToPoint::~MpiPointToPoint() {
  if (mpi_is_finalized()) return;
  for (RequestSlot& slot : slots_) {
    for (MPI_Request& part : slot.parts) {
      if (part == MPI_REQUEST_NULL) continue;
      if (slot.is_receive) MPI_Cancel(&part);
      MPI_Request_free(&part);
    }
  }
}

std::size_t MpiPointToPoint::part_length(const RequestSlot& slot, std::size_t part) const {
  return std::min(part_bytes_, slot.bytes - part * part_bytes_);
}

template <class Call, class Byte>
PointToPoint::Request MpiPointToPoint::start(Call call, std::string_view name, int member, int tag,
                                             std::span<Byte> bytes, bool is_receive) {
  if (free_.empty()) {
    slots_.emplace_back();
    free_.push_back(static_cast<Request>(slots_.size() - 1));
  }
  const Request request = free_.back();
  free_.pop_back();
  RequestSlot& slot = slots_[static_cast<std::size_t>(request)];
  slot.next = 0;
  slot.bytes = bytes.size();
  slot.peer = ranks_.at(static_cast<std::size_t>(member));
  slot.is_receive = is_receive;
  slot.is_cancelled = false;
  // An empty message is one empty part.
  const std::size_t parts =
      std::max<std::size_t>(1, (bytes.size() + part_bytes_ - 1) / part_bytes_);
  slot.parts.assign(parts, MPI_REQUEST_NULL);
  for (std::size_t part = 0; part < parts; ++part) {
    mpi_check(call(bytes.data() + part * part_bytes_, static_cast<int>(part_length(slot, part)),
                   MPI_BYTE, slot.peer, tag, communicator_.get(), &slot.parts[part]),
              name, slot.peer);
  }
  return request;
}

PointToPoint::Request MpiPointToPoint::send(int to, int tag, std::span<const std::byte> bytes) {
  return start(MPI_Isend, "MPI_Isend to", to, tag, bytes, false);
}

PointToPoint::Request MpiPointToPoint::receive(int from, int tag, std::span<std::byte> bytes) {
  return start(MPI_Irecv, "MPI_Irecv from", from, tag, bytes, true);
}

bool MpiPointToPoint::test(Request request) {
  RequestSlot& slot = slots_.at(static_cast<std::size_t>(request));
  for (; slot.next < slot.parts.size(); ++slot.next) {
    int done = 0;
    MPI_Status status;
    mpi_check(MPI_Test(&slot.parts[slot.next], &done, &status),
              slot.is_receive ? "receiving from" : "sending to", slot.peer);
    if (done == 0) return false;
    if (slot.is_receive) check_length(slot, status);
  }
  free_.push_back(request);
  return true;
}

bool MpiPointToPoint::cancel(Request receive) {
  RequestSlot& slot = slots_[static_cast<std::size_t>(receive)];
  if (!slot.is_cancelled) {
    for (std::size_t part = slot.next; part < slot.parts.size(); ++part) {
      // Without effect on one that a message has met; then the rest of it is still to come.
      if (slot.parts[part] != MPI_REQUEST_NULL) MPI_Cancel(&slot.parts[part]);
    }
    slot.is_cancelled = true;
  }
  for (; slot.next < slot.parts.size(); ++slot.next) {
    int done = 0;
    const int result = MPI_Test(&slot.parts[slot.next], &done, MPI_STATUS_IGNORE);
    const bool has_failed = result != MPI_SUCCESS && slot.parts[slot.next] == MPI_REQUEST_NULL;
    if (done == 0 && !has_failed) return false;
  }
  free_.push_back(receive);
  return true;
}

// A longer message is MPI's error (MPICH ends the job, unless MPI_COMM_WORLD returns errors); a
// shorter one would go unnoticed.
void MpiPointToPoint::check_length(const RequestSlot& slot, const MPI_Status& status) const {
  int count = 0;
  mpi_check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  const std::size_t expected = part_length(slot, slot.next);
  if (count < 0 || static_cast<std::size_t>(count) != expected) {
    throw Error(
        ErrorCode::transport,
        fmt::format("rank {} sent {} bytes where {} were expected: the ranks do not run the "
                    "same plan. Do all run the same build of hora?",
                    slot.peer, count, expected),
        slot.peer);
  }
}

namespace {

// Head: length of the message (std::uint64_t of this machine), then its first bytes. Just below the
// 4 KiB up to which Open MPI's shared-memory and TCP transports send without asking the receiver.
constexpr std::size_t kHeadBytes = 4032;
constexpr std::size_t kPrefixBytes = sizeof(std::uint64_t);
constexpr std::size_t kInlineBytes = kHeadBytes - kPrefixBytes;
// Buffers of sent messages that are longer than this are freed.
constexpr std::size_t kKeptBytes = std::size_t{64} << 10;
constexpr int kHeadTag = 0;
constexpr int kRestTag = 1;

// For a link that is destroyed with messages under way, which happens only before an abort: MPI may
// still access the buffer, so it is leaked. Does not wait for a peer.
void abandon(MPI_Request& request, std::vector<std::byte>& buffer, bool is_receive) noexcept {
  if (request == MPI_REQUEST_NULL) return;
  // A persistent request that is not started counts as done, and may not be cancelled.
  int done = 0;
  if (is_receive && MPI_Request_get_status(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
      done == 0) {
    MPI_Cancel(&request);
  }
  if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0 &&
      request == MPI_REQUEST_NULL) {
    return;
  }
  if (done == 0) static_cast<void>(new (std::nothrow) std::vector<std::byte>(std::move(buffer)));
  MPI_Request_free(&request);
}

}  // namespace

MpiTreeLink::MpiTreeLink(const Communicator& communicator, std::vector<int> leaders, int node)
    : communicator_(communicator),
      leaders_(std::move(leaders)),
      node_of_rank_(static_cast<std::size_t>(communicator.size()), -1),
      node_(node),
      head_(kHeadBytes) {
  for (std::size_t i = 0; i < leaders_.size(); ++i) {
    node_of_rank_.at(static_cast<std::size_t>(leaders_[i])) = static_cast<int>(i);
  }
  mpi_check(MPI_Recv_init(head_.data(), static_cast<int>(kHeadBytes), MPI_BYTE, MPI_ANY_SOURCE,
                          kHeadTag, communicator_.get(), &head_request_),
            "MPI_Recv_init for negotiation");
  mpi_check(MPI_Start(&head_request_), "MPI_Start for negotiation");
}

MpiTreeLink::~MpiTreeLink() {
  if (mpi_is_finalized()) return;
  abandon(head_request_, head_, true);
  for (Arriving& arriving : arriving_) abandon(arriving.rest, arriving.message.bytes, true);
  for (Outgoing& outgoing : in_flight_) {
    abandon(outgoing.head, outgoing.bytes, false);
    abandon(outgoing.rest, outgoing.bytes, false);
  }
}

void MpiTreeLink::send(int node, std::span<const std::byte> message) {
  if (message.size() > kMaximumBytes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a message of negotiation from node {} to node {} is {} bytes long, at "
                            "most {} are allowed: submit fewer new names at once, or shorter ones",
                            node_, node, message.size(), kMaximumBytes));
  }
  const int peer = leaders_.at(static_cast<std::size_t>(node));
  if (free_.empty()) flushed();
  if (free_.empty()) free_.emplace_back();
  in_flight_.splice(in_flight_.end(), free_, free_.begin());
  Outgoing& outgoing = in_flight_.back();
  const std::uint64_t length = message.size();
  outgoing.bytes.resize(kPrefixBytes + message.size());
  std::memcpy(outgoing.bytes.data(), &length, kPrefixBytes);
  std::copy(message.begin(), message.end(), outgoing.bytes.begin() + kPrefixBytes);
  const std::size_t head_bytes = std::min(outgoing.bytes.size(), kHeadBytes);
  mpi_check(MPI_Isend(outgoing.bytes.data(), static_cast<int>(head_bytes), MPI_BYTE, peer, kHeadTag,
                      communicator_.get(), &outgoing.head),
            "MPI_Isend of negotiation to", peer);
  if (outgoing.bytes.size() > kHeadBytes) {
    mpi_check(MPI_Isend(outgoing.bytes.data() + kHeadBytes,
                        mpi_count(outgoing.bytes.size() - kHeadBytes, "a message of negotiation"),
                        MPI_BYTE, peer, kRestTag, communicator_.get(), &outgoing.rest),
              "MPI_Isend of negotiation to", peer);
  }
}

bool MpiTreeLink::sent(Outgoing& outgoing) {
  int done = 0;
  mpi_check(MPI_Test(&outgoing.head, &done, MPI_STATUS_IGNORE), "MPI_Test of a sent message");
  if (done != 0) {
    mpi_check(MPI_Test(&outgoing.rest, &done, MPI_STATUS_IGNORE), "MPI_Test of a sent message");
  }
  return done != 0;
}

bool MpiTreeLink::flushed() {
  for (auto outgoing = in_flight_.begin(); outgoing != in_flight_.end();) {
    const auto next = std::next(outgoing);
    if (sent(*outgoing)) {
      if (outgoing->bytes.capacity() > kKeptBytes) std::vector<std::byte>().swap(outgoing->bytes);
      free_.splice(free_.begin(), in_flight_, outgoing);
    }
    outgoing = next;
  }
  return in_flight_.empty();
}

std::optional<TreeLink::Received> MpiTreeLink::receive() {
  take_heads();
  for (auto entry = arriving_.begin(); entry != arriving_.end(); ++entry) {
    const bool node_waits = std::any_of(arriving_.begin(), entry, [&](const Arriving& earlier) {
      return earlier.message.node == entry->message.node;
    });
    if (node_waits) continue;
    int done = 1;
    if (entry->rest != MPI_REQUEST_NULL) {
      mpi_check(MPI_Test(&entry->rest, &done, MPI_STATUS_IGNORE),
                "MPI_Test of the rest of a message from node", entry->message.node);
    }
    if (done != 0) {
      Received received = std::move(entry->message);
      arriving_.erase(entry);
      return received;
    }
  }
  return std::nullopt;
}

// Heads are taken in MPI's order, which for one source is the order of sending; the rests of one
// source are received in that order too, because their receives are posted in it.
void MpiTreeLink::take_heads() {
  for (;;) {
    int done = 0;
    MPI_Status status;
    mpi_check(MPI_Test(&head_request_, &done, &status), "MPI_Test for negotiation");
    if (done == 0) return;
    int count = 0;
    mpi_check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    arriving_.push_back(take_head(status.MPI_SOURCE, static_cast<std::size_t>(count)));
    mpi_check(MPI_Start(&head_request_), "MPI_Start for negotiation");
    if (arriving_.back().rest == MPI_REQUEST_NULL) {
      return;  // something to return; what else has arrived is taken next time
    }
  }
}

MpiTreeLink::Arriving MpiTreeLink::take_head(int source, std::size_t bytes) {
  std::uint64_t length = 0;
  const int node = node_of_rank_.at(static_cast<std::size_t>(source));
  if (bytes >= kPrefixBytes) std::memcpy(&length, head_.data(), kPrefixBytes);
  if (node < 0 || bytes < kPrefixBytes || length > kMaximumBytes ||
      bytes != kPrefixBytes + std::min<std::size_t>(length, kInlineBytes)) {
    throw Error(
        ErrorCode::transport,
        fmt::format("rank {} sent a malformed message of negotiation: {} bytes that announce "
                    "a length of {}. Do all ranks run the same build of hora?",
                    source, bytes, length),
        source);
  }
  Arriving arriving{{node, std::vector<std::byte>(length)}, MPI_REQUEST_NULL};
  const std::size_t inline_bytes = bytes - kPrefixBytes;
  std::copy_n(head_.begin() + kPrefixBytes, inline_bytes, arriving.message.bytes.begin());
  if (length > inline_bytes) {
    mpi_check(MPI_Irecv(arriving.message.bytes.data() + inline_bytes,
                        mpi_count(length - inline_bytes, "a message of negotiation"), MPI_BYTE,
                        source, kRestTag, communicator_.get(), &arriving.rest),
              "MPI_Irecv of negotiation from", source);
  }
  return arriving;
}

}  // namespace hora::internal
