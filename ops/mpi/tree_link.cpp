#include "ops/mpi/tree_link.h"

#include <hora/error.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "ops/mpi/check.h"

namespace hora::internal {
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
  if (request == MPI_REQUEST_NULL) {
    return;
  }
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
  if (done == 0) {
    auto* leaked = new (std::nothrow) std::vector<std::byte>(std::move(buffer));
    static_cast<void>(leaked);
  }
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
  int finalized = 0;
  if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) {
    return;
  }
  abandon(head_request_, head_, true);
  for (Arriving& arriving : arriving_) {
    abandon(arriving.rest, arriving.message.bytes, true);
  }
  for (const std::size_t slot : in_flight_) {
    abandon(outgoing_[slot].head, outgoing_[slot].bytes, false);
    abandon(outgoing_[slot].rest, outgoing_[slot].bytes, false);
  }
}

void MpiTreeLink::send(int node, std::span<const std::byte> message) {
  if (node < 0 || static_cast<std::size_t>(node) >= leaders_.size()) {
    throw Error(ErrorCode::invalid_argument, "no node " + std::to_string(node) + ": there are " +
                                                 std::to_string(leaders_.size()) +
                                                 ", numbered from 0");
  }
  if (message.size() > kMaximumBytes) {
    throw Error(ErrorCode::invalid_argument,
                "a message of negotiation from node " + std::to_string(node_) + " to node " +
                    std::to_string(node) + " is " + std::to_string(message.size()) +
                    " bytes long, at most " + std::to_string(kMaximumBytes) +
                    " are allowed: submit fewer new names at once, or shorter ones");
  }
  const int peer = leaders_[static_cast<std::size_t>(node)];
  const std::size_t slot = take_free_slot();
  Outgoing& outgoing = outgoing_[slot];
  const std::uint64_t length = message.size();
  outgoing.bytes.resize(kPrefixBytes + message.size());
  std::memcpy(outgoing.bytes.data(), &length, kPrefixBytes);
  std::copy(message.begin(), message.end(), outgoing.bytes.begin() + kPrefixBytes);

  in_flight_.push_back(slot);
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

std::size_t MpiTreeLink::take_free_slot() {
  if (free_.empty()) {
    flushed();
  }
  if (free_.empty()) {
    outgoing_.emplace_back();
    return outgoing_.size() - 1;
  }
  const std::size_t slot = free_.back();
  free_.pop_back();
  return slot;
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
  std::erase_if(in_flight_, [this](std::size_t slot) {
    Outgoing& outgoing = outgoing_[slot];
    if (!sent(outgoing)) {
      return false;
    }
    if (outgoing.bytes.capacity() > kKeptBytes) {
      std::vector<std::byte>().swap(outgoing.bytes);
    }
    free_.push_back(slot);
    return true;
  });
  return in_flight_.empty();
}

std::optional<TreeLink::Received> MpiTreeLink::receive() {
  take_heads();
  for (auto entry = arriving_.begin(); entry != arriving_.end(); ++entry) {
    const bool node_waits = std::any_of(arriving_.begin(), entry, [&](const Arriving& earlier) {
      return earlier.message.node == entry->message.node;
    });
    if (node_waits) {
      continue;
    }
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
    if (done == 0) {
      return;
    }
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
  if (bytes >= kPrefixBytes) {
    std::memcpy(&length, head_.data(), kPrefixBytes);
  }
  if (node < 0 || bytes < kPrefixBytes || length > kMaximumBytes ||
      bytes != kPrefixBytes + std::min<std::size_t>(length, kInlineBytes)) {
    throw Error(ErrorCode::transport,
                "rank " + std::to_string(source) + " sent a malformed message of negotiation: " +
                    std::to_string(bytes) + " bytes that announce a length of " +
                    std::to_string(length) + ". Do all ranks run the same build of hora?",
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
