#include "frameworks/torch/agreement.h"

#include <hora/hora.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "frameworks/torch/parameter_list.h"

namespace hora {
namespace {

// The root's text on every rank.
std::string share(const Context& context, const std::string& name, std::string text, int root) {
  auto bytes = static_cast<std::int64_t>(text.size());
  broadcast(context, view(&bytes, 1), {.name = name + ".bytes", .root = root});
  text.resize(static_cast<std::size_t>(bytes));
  auto* data = reinterpret_cast<std::uint8_t*>(text.data());
  if (bytes > 0) broadcast(context, view(data, bytes), {.name = name, .root = root});
  return text;
}

std::string line_or_none(std::span<const std::string> lines, std::size_t index) {
  return index < lines.size() ? lines[index] : "none";
}

}  // namespace

void check_agreement(const Context& context, const Agreement& agreement, const std::string& name,
                     std::span<const std::string> lines) {
  if (context.size() == 1) return;
  const std::vector<std::string> expected =
      split_lines(share(context, name, join_lines(lines), /*root=*/0));

  // Each rank's first differing line, counted from 1; 0: none.
  std::vector<std::int64_t> differing(static_cast<std::size_t>(context.size()), 0);
  if (const auto index = first_difference(lines, expected)) {
    differing[static_cast<std::size_t>(context.rank())] = static_cast<std::int64_t>(*index) + 1;
  }
  allreduce(context, view(differing.data(), context.size()),
            {.name = name + ".verdict", .op = ReduceOp::sum});
  const auto first =
      std::find_if(differing.begin(), differing.end(), [](auto v) { return v != 0; });
  if (first == differing.end()) return;

  const auto rank = static_cast<int>(first - differing.begin());
  const auto index = static_cast<std::size_t>(*first - 1);
  const std::string theirs = share(context, name + ".difference", line_or_none(lines, index), rank);
  throw Error(ErrorCode::mismatch,
              agreement.what + " differ between ranks: rank 0 has " +
                  line_or_none(expected, index) + ", rank " + std::to_string(rank) + " has " +
                  theirs + " (number " + std::to_string(index) +
                  " in order of registration). Every rank must build the same model",
              rank, name);
}

}  // namespace hora
