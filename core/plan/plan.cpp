#include "core/plan/plan.h"

#include <fmt/format.h>

#include <numeric>

namespace hora::internal {
namespace {

/// The longest chunk that is chosen: staging takes several.
constexpr std::size_t kLongestChunk = std::size_t{32} << 20;

bool fuses(const Signature& a, const Signature& b) {
  if (is_exchange(a.kind)) return false;
  return a.kind == b.kind && a.type == b.type && a.op == b.op && a.device == b.device &&
         a.root == b.root && a.prescale == b.prescale && a.postscale == b.postscale;
}

std::size_t chunk_length(std::size_t unit_bytes, std::size_t limit) {
  if (limit == 0 || unit_bytes <= limit) return std::max(unit_bytes, kAlignment);
  // Equal chunks instead of a short last one: ceil(unit / number of chunks).
  const std::size_t chunks = (unit_bytes + limit - 1) / limit;
  return align_up((unit_bytes + chunks - 1) / chunks);
}

/// Ranks of a memory node that are fewer have nothing to share.
constexpr std::size_t kLeastRanks = 2;

bool fits(OperationKind kind, DataType type, double prescale, std::size_t bytes) {
  return bytes >= MemoryNodes::kLeastBytes && kind == OperationKind::allreduce && prescale == 1.0 &&
         type != DataType::float16 && type != DataType::bfloat16;
}

/// Every rank of the node has all of its tensors.
bool is_complete(const BoundUnit& unit) {
  for (std::size_t t = 0; t < unit.unit.tensors.size(); ++t) {
    if (unit.unit.tensors[t].range.bytes == 0) continue;
    for (int r = 0; r < unit.local_size; ++r) {
      if (!unit.tensor(t, r)) return false;
    }
  }
  return true;
}

/// Adds a transfer at the end, unless it is empty.
void append(ByteLayout& layout, Transfer transfer, std::size_t bytes) {
  if (bytes == 0) return;
  transfer.range = {length_of(layout), bytes};
  layout.push_back(transfer);
}

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

/// Where each of so many parts begins that lie end to end. `bytes_of`: the length of a part.
std::vector<std::size_t> beginnings(int parts, auto&& bytes_of) {
  std::vector<std::size_t> begin;
  std::size_t total = 0;
  for (int part = 0; part < parts; ++part) {
    begin.push_back(total);
    total += bytes_of(part);
  }
  return begin;
}

/// All rows together: peers' ones, none negative, whose sums in bytes must not wrap.
Checked checked_rows(const ExchangeExtents& extents) {
  Checked all = 0;
  for (std::size_t rank = 0; rank < extents.rows.size(); ++rank) {
    Checked rows = 0;
    for (const std::int64_t extent : extents.rows[rank]) rows = rows + extent;
    const Checked bytes = rows * std::max<std::size_t>(extents.row_bytes, 1);
    if (!bytes.at_most(kMaxBytes)) {
      throw Error(
          ErrorCode::transport,
          fmt::format("exchange: what rank {} of the process set says of its rows cannot be, "
                      "as rows of {} bytes. Do all ranks run the same build of hora?",
                      rank, extents.row_bytes));
    }
    all = all + rows;
  }
  return all;
}

}  // namespace

std::size_t chunk_limit(std::size_t setting, int nodes) {
  constexpr std::size_t kOfEachNode = std::size_t{32} << 10;
  constexpr std::size_t kLeast = std::size_t{1} << 20;
  if (setting > 0) return setting;
  return std::clamp(static_cast<std::size_t>(nodes) * kOfEachNode, kLeast, kLongestChunk);
}

std::size_t broadcast_chunk_limit(std::size_t setting) {
  return setting > 0 ? setting : std::size_t{512} << 10;
}

std::size_t device_chunk_limit(std::size_t setting, int nodes, int slices) {
  constexpr std::size_t kOfEachSlice = std::size_t{2} << 20;
  if (setting > 0) return setting;
  return std::clamp(static_cast<std::size_t>(slices) * kOfEachSlice, chunk_limit(0, nodes),
                    kLongestChunk);
}

std::size_t plan_unit(std::span<const Signature* const> decided, std::size_t first,
                      const PlanLimits& limits, Unit& unit) {
  const Signature& leading = *decided[first];
  unit.kind = leading.kind;
  unit.type = leading.type;
  unit.op = leading.op;
  unit.device = leading.device;
  unit.root = leading.root;
  unit.prescale = leading.prescale;
  unit.postscale = leading.postscale;
  unit.tensors.clear();
  unit.bytes = 0;
  const auto alone = [&](std::size_t size) {
    return limits.alone_bytes > 0 && size >= limits.alone_bytes;
  };
  std::size_t next = first;
  for (; next < decided.size(); ++next) {
    const std::size_t bytes = decided[next]->bytes();
    if (next > first) {
      const bool joins = fuses(*decided[next - 1], *decided[next]) && !alone(bytes) &&
                         !alone(unit.tensors.back().range.bytes) &&
                         unit.bytes + align_up(bytes) <= limits.fusion_bytes;
      if (!joins) break;
    }
    unit.tensors.push_back({next, {unit.bytes, bytes}});
    unit.bytes += align_up(bytes);
  }
  // Adasum takes whole tensors together.
  const std::size_t limit = unit.op == ReduceOp::adasum ? 0 : limits.chunk_bytes;
  unit.chunk_bytes = chunk_length(unit.bytes, limit);
  return next;
}

bool is_followed(const Unit& unit) {
  return unit.kind == OperationKind::broadcast &&
         std::ranges::any_of(unit.tensors, [](auto& t) { return is_followed(t.range.bytes); });
}

Range chunk_range(const Unit& unit, std::size_t chunk) {
  const std::size_t begin = std::min(chunk * unit.chunk_bytes, unit.bytes);
  return {begin, std::min(unit.chunk_bytes, unit.bytes - begin)};
}

Range slice_range(Range chunk, int slice, int slices) {
  const auto count = static_cast<std::size_t>(slices);
  const std::size_t length = align_up((chunk.bytes + count - 1) / count);
  const std::size_t begin = std::min(static_cast<std::size_t>(slice) * length, chunk.bytes);
  return {chunk.begin + begin, std::min(length, chunk.bytes - begin)};
}

std::vector<Run> runs(const Unit& unit, Range range) {
  std::vector<Run> result;
  for_each_run(unit, range, [&](const Run& run) { result.push_back(run); });
  return result;
}

MemoryNodes MemoryNodes::of(std::span<const int> of_rank) {
  if (of_rank.empty()) return {};
  const auto first = static_cast<std::size_t>(
      std::ranges::find_if(of_rank, [&](int node) { return node != of_rank.front(); }) -
      of_rank.begin());
  if (first < kLeastRanks || first == of_rank.size() || of_rank.size() % first != 0) return {};
  for (std::size_t r = 0; r < of_rank.size(); ++r) {
    if (of_rank[r] < 0 || of_rank[r] != of_rank[r - r % first]) return {};
    // A memory node's ranks are together: it does not come again.
    if (std::ranges::count(of_rank, of_rank[r]) != static_cast<long>(first)) return {};
  }
  return {.count = static_cast<int>(of_rank.size() / first), .ranks = static_cast<int>(first)};
}

MemoryNodes MemoryNodes::of(const Topology& set, std::span<const int> of_rank) {
  if (set.nodes() != 1) return {};
  std::vector<int> of_local_rank;
  for (const int rank : set.ranks_of_node.front()) {
    of_local_rank.push_back(of_rank[static_cast<std::size_t>(rank)]);
  }
  return of(of_local_rank);
}

std::vector<int> virtual_memory_nodes(const Topology& world, int ranks) {
  std::vector<int> of_rank(static_cast<std::size_t>(world.size()));
  for (const auto& of_node : world.ranks_of_node) {
    for (std::size_t r = 0; r < of_node.size(); ++r) {
      of_rank[static_cast<std::size_t>(of_node[r])] = static_cast<int>(r) / ranks;
    }
  }
  return of_rank;
}

bool MemoryNodes::sum_apart(const Signature& signature, std::size_t bytes) const {
  return count > 1 && fits(signature.kind, signature.type, signature.prescale, bytes);
}

bool MemoryNodes::sum_apart(const BoundUnit& unit) const {
  const Unit& plan = unit.unit;
  return count > 1 && fits(plan.kind, plan.type, plan.prescale, plan.bytes) && is_complete(unit);
}

std::size_t extents_of_rank(OperationKind kind, int ranks) {
  return kind == OperationKind::alltoall ? static_cast<std::size_t>(ranks) : 1;
}

std::int64_t scattered_rows(std::int64_t rows, int ranks, int rank) {
  return rows / ranks + (rank < rows % ranks ? 1 : 0);
}

std::int64_t first_scattered_row(std::int64_t rows, int ranks, int rank) {
  return rows / ranks * rank + std::min<std::int64_t>(rank, rows % ranks);
}

Range rows_to_rank(OperationKind kind, std::span<const std::int64_t> rows, int ranks, int to,
                   std::size_t row_bytes) {
  std::int64_t first = 0;
  std::int64_t count = 0;
  if (kind == OperationKind::alltoall) {
    first = std::accumulate(rows.begin(), rows.begin() + to, std::int64_t{0});
    count = rows[at(to)];
  } else if (kind == OperationKind::reduce_scatter) {
    first = first_scattered_row(rows[0], ranks, to);
    count = scattered_rows(rows[0], ranks, to);
  }
  return {static_cast<std::size_t>(first) * row_bytes, static_cast<std::size_t>(count) * row_bytes};
}

std::size_t length_of(const ByteLayout& layout) {
  return layout.empty() ? 0 : layout.back().range.end();
}

ByteLayout cut(const ByteLayout& layout, Range range) {
  ByteLayout result;
  auto transfer = std::ranges::partition_point(
      layout, [&](const Transfer& p) { return p.range.end() <= range.begin; });
  for (; transfer != layout.end() && transfer->range.begin < range.end(); ++transfer) {
    const std::size_t from = std::max(range.begin, transfer->range.begin);
    const std::size_t to = std::min(range.end(), transfer->range.end());
    Transfer part = *transfer;
    part.source_offset += from - transfer->range.begin;
    part.destination_offset += from - transfer->range.begin;
    append(result, part, to - from);
  }
  return result;
}

bool may_push(OperationKind kind) {
  return kind == OperationKind::allgather || kind == OperationKind::alltoall;
}

ByteLayout moved_by(int local_rank, const std::vector<bool>& pushes, const ByteLayout& layout) {
  ByteLayout result;
  for (const Transfer& transfer : layout) {
    const bool is_pushed =
        transfer.source != Transfer::kAll && !pushes.empty() && pushes[at(transfer.source)];
    const int mover = is_pushed ? transfer.source : transfer.destination;
    if (mover == local_rank || mover == Transfer::kAll)
      append(result, transfer, transfer.range.bytes);
  }
  return result;
}

bool is_even(std::span<const std::int64_t> rows) {
  return !rows.empty() && rows.front() > 0 &&
         std::all_of(rows.begin(), rows.end(), [&](std::int64_t r) { return r == rows.front(); });
}

std::size_t round_bytes(std::size_t chunk_bytes, int nodes) {
  return std::max(align_up(chunk_bytes / static_cast<std::size_t>(std::max(1, nodes - 1))),
                  kAlignment);
}

ExchangeMap::ExchangeMap(const Topology& topology, ExchangeExtents extents)
    : topology_(topology),
      extents_(std::move(extents)),
      size_(topology.size()),
      all_rows_(checked_rows(extents_)) {}

std::optional<Error> ExchangeMap::refusal(std::uint64_t memory) const {
  // Every rank gathers all; of a reduce-scatter every rank has said how long the whole is.
  Checked bytes = all_rows_ * extents_.row_bytes;
  if (extents_.kind == OperationKind::allgather) bytes = bytes * size_;
  if (extents_.kind == OperationKind::reduce_scatter) {
    bytes = Checked(extents_.rows[0][0]) * extents_.row_bytes;
  }
  if (bytes.at_most(memory)) return std::nullopt;
  return Error(ErrorCode::out_of_memory,
               fmt::format("{}: the results of its {} ranks would be {} together, and their nodes "
                           "have {} MiB; give fewer rows, or use more nodes",
                           name_of(extents_.kind), size_,
                           bytes.at_most(UINT64_MAX) ? fmt::format("{} MiB", bytes.value() >> 20)
                                                     : "more than 2^64 bytes",
                           memory >> 20));
}

/// Rows that one rank gives to another; of a reduce-scatter every rank gives the same.
std::int64_t ExchangeMap::rows(int from_rank, int to_rank) const {
  const auto own = extents_.rows[at(from_rank)];
  switch (extents_.kind) {
    case OperationKind::alltoall:
      return own[at(to_rank)];
    case OperationKind::reduce_scatter:
      return scattered_rows(own[0], size_, to_rank);
    default:
      return own[0];
  }
}

const std::vector<int>& ExchangeMap::ranks(int node, OperationKind all_alike) const {
  static const std::vector<int> kFirst{0};
  return extents_.kind == all_alike ? kFirst : topology_.ranks_of_node[at(node)];
}

ByteLayout ExchangeMap::layout(int from_node, int to_node) const {
  const auto& sources = ranks(from_node, OperationKind::reduce_scatter);
  const auto& destinations = ranks(to_node, OperationKind::allgather);
  const bool sums = extents_.kind == OperationKind::reduce_scatter;
  const bool gathers = extents_.kind == OperationKind::allgather;
  using Beginnings = std::vector<std::size_t>;
  // Where the part of each source begins in the result of each destination.
  std::vector<Beginnings> in_result;
  for (const int to : destinations) {
    in_result.push_back(sums ? Beginnings{0}
                             : beginnings(size_, [&](int from) { return bytes(rows(from, to)); }));
  }
  ByteLayout result;
  for (int source = 0; source < static_cast<int>(sources.size()); ++source) {
    const int from = sources[at(source)];
    const auto in_input =
        gathers ? Beginnings{0} : beginnings(size_, [&](int to) { return bytes(rows(from, to)); });
    for (int destination = 0; destination < static_cast<int>(destinations.size()); ++destination) {
      const int to = destinations[at(destination)];
      append(result,
             {.source = sums ? Transfer::kAll : source,
              .source_offset = in_input[at(to)],
              .destination = gathers ? Transfer::kAll : destination,
              .destination_offset = in_result[at(destination)][at(from)],
              .range = {}},
             bytes(rows(from, to)));
    }
  }
  return result;
}

std::size_t ExchangeMap::longest_stream() const {
  std::size_t longest = 0;
  for (int from = 0; from < topology_.nodes(); ++from) {
    for (int to = 0; to < topology_.nodes(); ++to) {
      std::size_t stream = 0;
      for (const int giver : ranks(from, OperationKind::reduce_scatter)) {
        for (const int getter : ranks(to, OperationKind::allgather)) {
          stream += bytes(rows(giver, getter));
        }
      }
      if (from != to) longest = std::max(longest, stream);
    }
  }
  return longest;
}

std::vector<std::int64_t> ExchangeMap::result_rows(int rank) const {
  if (extents_.kind == OperationKind::reduce_scatter) return {rows(0, rank)};
  std::vector<std::int64_t> result;
  for (int from = 0; from < size_; ++from) result.push_back(rows(from, rank));
  return result;
}

std::size_t ExchangeMap::result_bytes(int rank) const {
  std::size_t total = 0;
  for (const std::int64_t count : result_rows(rank)) total += bytes(count);
  return total;
}

}  // namespace hora::internal
