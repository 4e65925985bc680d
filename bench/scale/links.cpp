#include "bench/scale/links.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace bench::scale {
namespace {

void check(int result, const char* what) {
  if (result != MPI_SUCCESS) {
    throw std::runtime_error(std::string(what) + " failed with " + std::to_string(result));
  }
}

int length_of(std::span<const std::byte> bytes) {
  return static_cast<int>(bytes.size());
}

MPI_Request start_send(int to, int tag, std::span<const std::byte> bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Isend(bytes.data(), length_of(bytes), MPI_BYTE, to, tag, MPI_COMM_WORLD, &request),
        "MPI_Isend");
  return request;
}

}  // namespace

OpenRequests::Number OpenRequests::add(MPI_Request request) {
  if (free_.empty()) {
    free_.push_back(static_cast<Number>(slots_.size()));
    slots_.emplace_back();
  }
  const Number number = free_.back();
  free_.pop_back();
  slots_[static_cast<std::size_t>(number)].done = false;
  requests_.push_back(request);
  numbers_.push_back(number);
  return number;
}

bool OpenRequests::take(Number number, MPI_Status* status) {
  const Slot& slot = slots_[static_cast<std::size_t>(number)];
  if (!slot.done) return false;
  if (status != nullptr) *status = slot.status;
  free_.push_back(number);
  return true;
}

void OpenRequests::await() {
  int index = MPI_UNDEFINED;
  MPI_Status status;
  check(MPI_Waitany(static_cast<int>(requests_.size()), requests_.data(), &index, &status),
        "MPI_Waitany");
  const auto completed = static_cast<std::size_t>(index);
  slots_[static_cast<std::size_t>(numbers_[completed])] = {true, status};
  requests_[completed] = requests_.back();
  numbers_[completed] = numbers_.back();
  requests_.pop_back();
  numbers_.pop_back();
}

StandingReceive::StandingReceive(OpenRequests& requests, MessageCount& count, int tag,
                                 std::size_t longest)
    : requests_(requests),
      count_(count),
      tag_(tag),
      longest_(longest),
      memory_(std::make_unique_for_overwrite<std::byte[]>(2 * longest + 1)) {
  post();
}

void StandingReceive::post() {
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Irecv(memory_.get() + half_ * longest_, static_cast<int>(longest_), MPI_BYTE,
                  MPI_ANY_SOURCE, tag_, MPI_COMM_WORLD, &request),
        "MPI_Irecv");
  number_ = requests_.add(request);
}

std::optional<StandingReceive::Message> StandingReceive::take() {
  MPI_Status status;
  if (!requests_.take(number_, &status)) return std::nullopt;
  int bytes = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
  ++count_.received;
  const std::byte* const data = memory_.get() + half_ * longest_;
  half_ = 1 - half_;
  post();
  return Message{status.MPI_SOURCE, {data, static_cast<std::size_t>(bytes)}};
}

SmpiTreeLink::SmpiTreeLink(OpenRequests& requests, MessageCount& count, int ranks_per_node)
    : requests_(requests),
      count_(count),
      ranks_per_node_(ranks_per_node),
      heads_(requests, count, kTreeTag, kLongest) {}

void SmpiTreeLink::send(int node, std::span<const std::byte> message) {
  if (message.size() > kLongest) throw std::length_error("a message of negotiation above 1 MiB");
  flushed();
  ++count_.sent;
  std::vector<std::byte> bytes(message.begin(), message.end());
  const auto number = requests_.add(start_send(node * ranks_per_node_, kTreeTag, bytes));
  outgoing_.push_back({std::move(bytes), number});
}

std::optional<hora::internal::TreeLink::Received> SmpiTreeLink::receive() {
  const auto message = heads_.take();
  if (!message) return std::nullopt;
  return Received{message->source / ranks_per_node_,
                  {message->bytes.begin(), message->bytes.end()}};
}

bool SmpiTreeLink::flushed() {
  std::erase_if(outgoing_, [this](const Outgoing& one) { return requests_.take(one.number); });
  return outgoing_.empty();
}

SmpiPointToPoint::SmpiPointToPoint(OpenRequests& requests, MessageCount& count, int index,
                                   std::vector<int> members)
    : PointToPoint(index, static_cast<int>(members.size())),
      requests_(requests),
      count_(count),
      members_(std::move(members)) {}

SmpiPointToPoint::Request SmpiPointToPoint::send(int to, int tag,
                                                 std::span<const std::byte> bytes) {
  ++count_.sent;
  return requests_.add(start_send(members_[static_cast<std::size_t>(to)], tag, bytes));
}

SmpiPointToPoint::Request SmpiPointToPoint::receive(int from, int tag, std::span<std::byte> bytes) {
  ++count_.received;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Irecv(bytes.data(), length_of(bytes), MPI_BYTE,
                  members_[static_cast<std::size_t>(from)], tag, MPI_COMM_WORLD, &request),
        "MPI_Irecv");
  return requests_.add(request);
}

}  // namespace bench::scale
