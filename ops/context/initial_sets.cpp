#include "ops/context/initial_sets.h"

#include <hora/error.h>

#include <span>

#include "ops/mpi/communicator.h"

namespace hora {
namespace {

/// "[0 2] [1]", in the order given; "none".
std::string text_of(const std::vector<std::vector<int>>& sets) {
  if (sets.empty()) return "none";
  std::string text;
  for (const auto& ranks : sets) {
    text += text.empty() ? "[" : " [";
    for (const int rank : ranks) text += (text.back() == '[' ? "" : " ") + std::to_string(rank);
    text += "]";
  }
  return text;
}

}  // namespace

std::string sets_disagreement(const std::vector<std::string>& by_rank) {
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == by_rank.front()) continue;
    return "hora::init: InitOptions::process_sets differ: rank 0 has " + by_rank.front() +
           ", rank " + std::to_string(rank) + " has " + by_rank[rank] +
           ": give every rank the same lists, in one order";
  }
  return {};
}

void agree_on_sets(const Communicator& world, const std::vector<std::vector<int>>& sets) {
  const std::string mine = text_of(sets);
  std::vector<std::string> by_rank;
  for (const auto& bytes : world.all_gather(std::as_bytes(std::span(mine)))) {
    by_rank.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  const std::string problem = sets_disagreement(by_rank);
  if (!problem.empty()) throw Error(ErrorCode::mismatch, problem);
}

}  // namespace hora
