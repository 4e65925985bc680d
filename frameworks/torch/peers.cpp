#include "frameworks/torch/peers.h"

#include <hora/error.h>
#include <hora/hora.h>
#include <hora/objects.h>
#include <hora/process_set.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/parameters.h"

namespace hora::internal {

Peers peers_of(const Context& context, ProcessSet set) {
  if (set == kWorld) return {context, kWorld, context.size(), context.rank(), 0};
  const auto members = ranks_of(context, set);
  const auto position = std::find(members.begin(), members.end(), context.rank());
  if (position == members.end()) {
    throw Error(
        ErrorCode::invalid_argument,
        "process set " + to_string(set) + " does not hold this rank: only its members may use it",
        context.rank());
  }
  return {context, set, static_cast<int>(members.size()),
          static_cast<int>(position - members.begin()), members.front()};
}

namespace {

// The root's text on every rank.
std::string share(const Peers& peers, const std::string& name, const std::string& text, int root) {
  return broadcast_object(peers.context, std::string_view(text),
                          {.name = name, .root = root, .process_set = peers.set});
}

std::string line_or_none(std::span<const std::string> lines, std::size_t index) {
  return index < lines.size() ? lines[index] : "none";
}

}  // namespace

void check_agreement(const Peers& peers, const Agreement& agreement, const std::string& name,
                     std::span<const std::string> lines) {
  if (peers.size == 1) return;
  const std::vector<std::string> expected =
      split_lines(share(peers, name, join_lines(lines), peers.first));

  // Each world rank's first differing line, counted from 1; 0: none.
  std::vector<std::int64_t> differing(static_cast<std::size_t>(peers.context.size()), 0);
  if (const auto index = first_difference(lines, expected)) {
    differing[static_cast<std::size_t>(peers.context.rank())] =
        static_cast<std::int64_t>(*index) + 1;
  }
  allreduce(peers.context, view(differing.data(), peers.context.size()),
            {.name = name + ".verdict", .op = ReduceOp::sum, .process_set = peers.set});
  const auto first =
      std::find_if(differing.begin(), differing.end(), [](auto v) { return v != 0; });
  if (first == differing.end()) return;

  const auto rank = static_cast<int>(first - differing.begin());
  const auto index = static_cast<std::size_t>(*first - 1);
  const std::string theirs = share(peers, name + ".difference", line_or_none(lines, index), rank);
  throw Error(ErrorCode::mismatch,
              agreement.what + " differ between ranks: rank " + std::to_string(peers.first) +
                  " has " + line_or_none(expected, index) + ", rank " + std::to_string(rank) +
                  " has " + theirs + ". " + agreement.advice,
              rank, name);
}

}  // namespace hora::internal
