#include "bench/scale/contenders.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <simgrid/s4u.hpp>
#include <stdexcept>

#include "ops/cross/cross_work.h"

namespace bench::scale {

using hora::internal::OperationKind;
using hora::internal::Signature;

namespace {

// About what hora's report of a name takes.
constexpr std::size_t kRequestBytes = 128;

std::string allreduce_name(const char* contender, std::size_t bytes) {
  return std::string(contender) + "/allreduce/bytes:" + std::to_string(bytes);
}

void check_sum(const std::byte* data, std::size_t bytes, int ranks, int rank) {
  std::vector<float> values(bytes / sizeof(float));
  std::memcpy(values.data(), data, bytes);
  const auto wrong =
      std::ranges::find_if(values, [&](float value) { return value != static_cast<float>(ranks); });
  if (wrong == values.end()) return;
  throw std::runtime_error("an allreduce of ones over " + std::to_string(ranks) + " ranks gave " +
                           std::to_string(*wrong) + " on rank " + std::to_string(rank));
}

void fill_ones(std::byte* data, std::size_t bytes) {
  const std::vector<float> ones(bytes / sizeof(float), 1.0F);
  std::memcpy(data, ones.data(), bytes);
}

void send(int to, std::size_t bytes, MessageCount& count) {
  const std::array<std::byte, kRequestBytes> message{};
  MPI_Send(message.data(), static_cast<int>(bytes), MPI_BYTE, to, kCoordinatorTag, MPI_COMM_WORLD);
  ++count.sent;
}

void receive(int from, MessageCount& count) {
  std::array<std::byte, kRequestBytes> message;
  MPI_Recv(message.data(), static_cast<int>(message.size()), MPI_BYTE, from, kCoordinatorTag,
           MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  ++count.received;
}

/// A request from each child.
void serve(const std::vector<int>& children, MessageCount& count) {
  for (std::size_t i = 0; i < children.size(); ++i) receive(MPI_ANY_SOURCE, count);
}

void answer(const std::vector<int>& children, std::size_t bytes, MessageCount& count) {
  for (const int child : children) send(child, bytes, count);
}

}  // namespace

std::size_t Rounds::begin(int rank, const std::string& name) {
  const auto index = static_cast<std::size_t>(rank);
  if (next_.size() <= index) next_.resize(index + 1);
  const std::size_t round = next_[index]++;
  if (round == rounds_.size()) rounds_.push_back({.name = name});
  simgrid::s4u::this_actor::sleep_until(static_cast<double>(round + 1) * kSpacing);
  return round;
}

void Rounds::end(std::size_t round, int rank, const MessageCount& before,
                 const MessageCount& after) {
  Round& of = rounds_[round];
  const double begin = static_cast<double>(round + 1) * kSpacing;
  of.seconds = std::max(of.seconds, simgrid::s4u::Engine::get_clock() - begin);
  if (rank == 0) {
    of.root_messages = after.sent - before.sent + after.received - before.received;
  }
}

void run_hora(Job& job, int rank) {
  const WorldShape& shape = job.shape;
  SimulatedRank own(job.topology, shape,
                    *job.nodes[static_cast<std::size_t>(rank / shape.ranks_per_node)], rank);
  const auto round = [&](const std::string& name, const std::string& tensor,
                         const Signature& signature, std::byte* data) {
    const std::size_t number = job.rounds.begin(rank, name);
    const MessageCount before = own.count();
    own.carry_out(tensor, signature, data);
    job.rounds.end(number, rank, before, own.count());
  };
  Signature barrier;
  barrier.kind = OperationKind::barrier;
  for (int i = 0; i < job.repetitions; ++i) {
    round("hora/first_by_name", "name " + std::to_string(i), barrier, nullptr);
  }
  for (int i = 0; i < job.repetitions; ++i) round("hora/cached", "name 0", barrier, nullptr);
  for (const std::size_t bytes : job.sizes) {
    Signature sum;
    sum.shape = hora::Shape({static_cast<std::int64_t>(bytes / sizeof(float))});
    const auto block = own.memory().allocate(bytes);
    const std::string name = allreduce_name("hora", bytes);
    for (int i = 0; i <= job.repetitions; ++i) {
      if (!is_folded(block.data)) fill_ones(block.data, bytes);
      round(i == 0 ? name + "/first" : name, name, sum, block.data);
      if (!is_folded(block.data)) check_sum(block.data, bytes, shape.ranks, rank);
    }
    own.memory().release(block.data);
  }
}

void run_coordinator(Job& job, int rank, Senders senders) {
  const bool by_leaders = senders == Senders::leaders;
  const int per_node = by_leaders ? job.shape.ranks_per_node : 1;
  const bool leads = rank % per_node == 0;
  std::vector<int> of_node;
  std::vector<int> others;
  if (leads) {
    for (int r = 1; r < per_node; ++r) of_node.push_back(rank + r);
  }
  if (rank == 0) {
    for (int r = per_node; r < job.shape.ranks; r += per_node) others.push_back(r);
  }
  for (int i = 0; i < job.repetitions; ++i) {
    MessageCount count;
    const std::size_t number =
        job.rounds.begin(rank, by_leaders ? "linear_of_leaders/negotiation" : "linear/negotiation");
    if (!leads) {
      send(rank / per_node * per_node, 0, count);
      receive(rank / per_node * per_node, count);
    } else {
      serve(of_node, count);
      serve(others, count);
      if (rank != 0) {
        send(0, kRequestBytes, count);
        receive(0, count);
      }
      answer(others, kRequestBytes, count);
      answer(of_node, 0, count);
    }
    job.rounds.end(number, rank, {}, count);
  }
}

void run_ring(Job& job, int rank) {
  OpenRequests requests;
  MessageCount count;
  std::vector<int> members(static_cast<std::size_t>(job.shape.ranks));
  std::iota(members.begin(), members.end(), 0);
  SmpiPointToPoint link(requests, count, rank, members);
  SimulatedSpace space({job.shape.memory_bandwidth, job.shape.ranks_per_node});
  hora::internal::CrossResources resources(link, space);
  SimulatedMemory memory;
  std::uint64_t sequence = 0;
  for (std::size_t s = 0; s < std::min(job.ring_sizes, job.sizes.size()); ++s) {
    const std::size_t bytes = job.sizes[s];
    const auto block = memory.allocate(bytes);
    if (!is_folded(block.data)) fill_ones(block.data, bytes);
    const std::size_t number = job.rounds.begin(rank, allreduce_name("flat_ring", bytes));
    const MessageCount before = count;
    auto work =
        hora::internal::kRingAllreduce.start(resources, {}, {block.data, bytes}, sequence++);
    while (!work.poll()) requests.await();
    job.rounds.end(number, rank, before, count);
    if (!is_folded(block.data)) check_sum(block.data, bytes, job.shape.ranks, rank);
    memory.release(block.data);
  }
}

}  // namespace bench::scale
