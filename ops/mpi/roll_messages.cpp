#include "ops/mpi/roll_messages.h"

#include <hora/error.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "ops/mpi/check.h"

namespace hora {

RollBytes bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

RollBytes bytes_of(const std::vector<int>& ranks) {
  const auto bytes = std::as_bytes(std::span(ranks));
  return {bytes.begin(), bytes.end()};
}

std::string text_of(const RollBytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<int> ranks_of(const RollBytes& bytes, MPI_Comm comm) {
  std::vector<int> ranks(bytes.size() / sizeof(int));
  std::memcpy(ranks.data(), bytes.data(), ranks.size() * sizeof(int));
  int size = 0;
  mpi_check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  std::erase_if(ranks, [size](int rank) { return rank < 0 || rank >= size; });
  return ranks;
}

RollBytes joined(const RollHead& head, const RollBytes& body) {
  RollBytes bytes(sizeof head + body.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  std::copy(body.begin(), body.end(), bytes.begin() + sizeof head);
  return bytes;
}

std::optional<RollMessage> next_message(MPI_Comm comm, int source, int tag) {
  int there = 0;
  MPI_Message handle = MPI_MESSAGE_NULL;
  MPI_Status status;
  mpi_check(MPI_Improbe(source, tag, comm, &there, &handle, &status), "MPI_Improbe");
  if (there == 0) return std::nullopt;
  int count = 0;
  mpi_check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  RollBytes bytes(static_cast<std::size_t>(count));
  mpi_check(MPI_Mrecv(bytes.data(), count, MPI_BYTE, &handle, MPI_STATUS_IGNORE), "MPI_Mrecv");
  RollMessage message{status.MPI_SOURCE, {}, {}};
  if (bytes.size() < sizeof(RollHead)) {
    throw Error(ErrorCode::transport, "a message of tag " + std::to_string(tag) +
                                          " is not one of hora's: the application may not use it");
  }
  std::memcpy(&message.head, bytes.data(), sizeof(RollHead));
  message.body.assign(bytes.begin() + sizeof(RollHead), bytes.end());
  return message;
}

}  // namespace hora
