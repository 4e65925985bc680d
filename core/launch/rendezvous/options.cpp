#include "core/launch/rendezvous/options.h"

#include <hora/printable.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace hora::launch {
namespace {

tl::unexpected<std::string> refused(std::string why) {
  return tl::unexpected(std::move(why));
}

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool consists_of(std::string_view text, std::string_view others) {
  return std::ranges::all_of(text, [&](char c) {
    return is_letter_or_digit(c) || others.find(c) != std::string_view::npos;
  });
}

}  // namespace

tl::expected<void, std::string> check(const RendezvousOptions& options) {
  if (options.nodes < 1 || options.nodes > kMostNodes) {
    return refused("--nnodes " + std::to_string(options.nodes) + ": allowed: 1 to " +
                   std::to_string(kMostNodes));
  }
  if (options.node_rank && (*options.node_rank < 0 || *options.node_rank >= options.nodes)) {
    return refused("--node-rank " + std::to_string(*options.node_rank) + ": with --nnodes " +
                   std::to_string(options.nodes) + " node ranks are 0 to " +
                   std::to_string(options.nodes - 1));
  }
  if (options.ranks < 1 || options.ranks > kMostNodes) {
    return refused("--nproc-per-node " + std::to_string(options.ranks) + ": allowed: 1 to " +
                   std::to_string(kMostNodes));
  }
  const std::string& job = options.job;
  if (job.empty() || job.size() > 64 || job.front() == '.' || job.front() == '-' ||
      !consists_of(job, "._-")) {
    return refused("the job's id " + in_quotes(job) +
                   ": allowed: up to 64 letters, digits and ._- , the first a letter or digit");
  }
  return {};
}

}  // namespace hora::launch
