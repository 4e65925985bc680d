#include "ops/mpi/mpi_point_to_point.h"

#include <hora/error.h>

#include <algorithm>
#include <string>
#include <utility>

#include "ops/mpi/check.h"

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
  int finalized = 0;
  if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) {
    return;
  }
  for (RequestSlot& slot : slots_) {
    for (MPI_Request& part : slot.parts) {
      if (part == MPI_REQUEST_NULL) {
        continue;
      }
      if (slot.is_receive) {
        MPI_Cancel(&part);
      }
      MPI_Request_free(&part);
    }
  }
}

PointToPoint::Request MpiPointToPoint::take_slot(int member, std::size_t bytes, bool is_receive) {
  if (free_.empty()) {
    slots_.emplace_back();
    free_.push_back(static_cast<Request>(slots_.size() - 1));
  }
  const Request request = free_.back();
  free_.pop_back();
  RequestSlot& slot = slots_[static_cast<std::size_t>(request)];
  slot.next = 0;
  slot.bytes = bytes;
  slot.peer = ranks_.at(static_cast<std::size_t>(member));
  slot.is_receive = is_receive;
  slot.is_withdrawn = false;
  // An empty message is one empty part.
  const std::size_t parts = std::max<std::size_t>(1, (bytes + part_bytes_ - 1) / part_bytes_);
  slot.parts.assign(parts, MPI_REQUEST_NULL);
  return request;
}

std::size_t MpiPointToPoint::part_length(const RequestSlot& slot, std::size_t part) const {
  return std::min(part_bytes_, slot.bytes - part * part_bytes_);
}

PointToPoint::Request MpiPointToPoint::send(int to, int tag, std::span<const std::byte> bytes) {
  const Request request = take_slot(to, bytes.size(), false);
  RequestSlot& slot = slots_[static_cast<std::size_t>(request)];
  for (std::size_t part = 0; part < slot.parts.size(); ++part) {
    mpi_check(
        MPI_Isend(bytes.data() + part * part_bytes_, static_cast<int>(part_length(slot, part)),
                  MPI_BYTE, slot.peer, tag, communicator_.get(), &slot.parts[part]),
        "MPI_Isend to", slot.peer);
  }
  return request;
}

PointToPoint::Request MpiPointToPoint::receive(int from, int tag, std::span<std::byte> bytes) {
  const Request request = take_slot(from, bytes.size(), true);
  RequestSlot& slot = slots_[static_cast<std::size_t>(request)];
  for (std::size_t part = 0; part < slot.parts.size(); ++part) {
    mpi_check(
        MPI_Irecv(bytes.data() + part * part_bytes_, static_cast<int>(part_length(slot, part)),
                  MPI_BYTE, slot.peer, tag, communicator_.get(), &slot.parts[part]),
        "MPI_Irecv from", slot.peer);
  }
  return request;
}

bool MpiPointToPoint::test(Request request) {
  RequestSlot& slot = slots_.at(static_cast<std::size_t>(request));
  for (; slot.next < slot.parts.size(); ++slot.next) {
    int done = 0;
    MPI_Status status;
    mpi_check(MPI_Test(&slot.parts[slot.next], &done, &status),
              slot.is_receive ? "receiving from" : "sending to", slot.peer);
    if (done == 0) {
      return false;
    }
    if (slot.is_receive) {
      check_length(slot, status);
    }
  }
  free_.push_back(request);
  return true;
}

bool MpiPointToPoint::withdraw(Request receive) {
  RequestSlot& slot = slots_[static_cast<std::size_t>(receive)];
  if (!slot.is_withdrawn) {
    for (std::size_t part = slot.next; part < slot.parts.size(); ++part) {
      // Without effect on one that a message has met; then the rest of it is still to come.
      if (slot.parts[part] != MPI_REQUEST_NULL) MPI_Cancel(&slot.parts[part]);
    }
    slot.is_withdrawn = true;
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
    throw Error(ErrorCode::transport,
                "rank " + std::to_string(slot.peer) + " sent " + std::to_string(count) +
                    " bytes where " + std::to_string(expected) +
                    " were expected: the ranks do not run the same plan. Do all run the same "
                    "build of hora?",
                slot.peer);
  }
}

}  // namespace hora::internal
