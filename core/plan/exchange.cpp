#include "core/plan/exchange.h"

#include <hora/error.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>

#include "core/base/checked.h"

namespace hora::internal {
namespace {

/// Adds a transfer at the end, unless it is empty.
void append(ByteLayout& layout, Transfer transfer, std::size_t bytes) {
  if (bytes == 0) return;
  transfer.range = {length_of(layout), bytes};
  layout.push_back(transfer);
}

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

/// They come from peers: none may be negative, and no sum of those of a rank, in bytes, may wrap.
/// Gives all rows together.
Checked checked_rows(const ExchangeExtents& extents) {
  Checked all = 0;
  for (std::size_t rank = 0; rank < extents.rows.size(); ++rank) {
    Checked rows = 0;
    for (const std::int64_t extent : extents.rows[rank]) rows = rows + extent;
    const Checked bytes = rows * std::max<std::size_t>(extents.row_bytes, 1);
    if (!bytes.at_most(kMaxBytes)) {
      throw Error(ErrorCode::transport,
                  "exchange: what rank " + std::to_string(rank) +
                      " of the process set says of its rows cannot be, as rows of " +
                      std::to_string(extents.row_bytes) +
                      " bytes. Do all ranks run the same build of hora?");
    }
    all = all + rows;
  }
  return all;
}

}  // namespace

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
  return layout.empty() ? 0 : layout.back().range.begin + layout.back().range.bytes;
}

ByteLayout cut(const ByteLayout& layout, Range range) {
  ByteLayout result;
  const std::size_t end = range.begin + range.bytes;
  auto transfer = std::partition_point(layout.begin(), layout.end(), [&](const Transfer& p) {
    return p.range.begin + p.range.bytes <= range.begin;
  });
  for (; transfer != layout.end() && transfer->range.begin < end; ++transfer) {
    const std::size_t from = std::max(range.begin, transfer->range.begin);
    const std::size_t to = std::min(end, transfer->range.begin + transfer->range.bytes);
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
               std::string(name_of(extents_.kind)) + ": the results of its " +
                   std::to_string(size_) + " ranks would be " +
                   (bytes.at_most(UINT64_MAX) ? std::to_string(bytes.value() >> 20) + " MiB"
                                              : std::string("more than 2^64 bytes")) +
                   " together, and their nodes have " + std::to_string(memory >> 20) +
                   " MiB; give fewer rows, or use more nodes");
}

const std::vector<int>& ExchangeMap::ranks_of(int node) const {
  return topology_.ranks_of_node[at(node)];
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

std::size_t ExchangeMap::bytes(std::int64_t rows) const {
  return static_cast<std::size_t>(rows) * extents_.row_bytes;
}

ByteLayout ExchangeMap::layout(int from_node, int to_node) const {
  if (extents_.kind == OperationKind::alltoall) return alltoall_layout(from_node, to_node);
  if (extents_.kind == OperationKind::reduce_scatter) return scattered_layout(to_node);
  return gathered_layout(from_node);
}

ByteLayout ExchangeMap::gathered_layout(int from_node) const {
  std::vector<std::size_t> begin;
  std::size_t total = 0;
  for (int rank = 0; rank < size_; ++rank) {
    begin.push_back(total);
    total += bytes(rows(rank, 0));
  }
  ByteLayout result;
  int source = 0;
  for (const int rank : ranks_of(from_node)) {
    append(result, {source++, 0, Transfer::kAll, begin[at(rank)], {}}, bytes(rows(rank, 0)));
  }
  return result;
}

ByteLayout ExchangeMap::alltoall_layout(int from_node, int to_node) const {
  // Where the part of each source begins in the result of each destination.
  std::vector<std::vector<std::size_t>> begin_in_result;
  for (const int to : ranks_of(to_node)) {
    auto& begin = begin_in_result.emplace_back();
    std::size_t total = 0;
    for (int from = 0; from < size_; ++from) {
      begin.push_back(total);
      total += bytes(rows(from, to));
    }
  }
  ByteLayout result;
  int source = 0;
  for (const int from : ranks_of(from_node)) {
    std::vector<std::size_t> begin_in_input;
    std::size_t total = 0;
    for (int to = 0; to < size_; ++to) {
      begin_in_input.push_back(total);
      total += bytes(rows(from, to));
    }
    int destination = 0;
    for (const int to : ranks_of(to_node)) {
      const std::size_t offset = begin_in_result[at(destination)][at(from)];
      append(result, {source, begin_in_input[at(to)], destination, offset, {}},
             bytes(rows(from, to)));
      ++destination;
    }
    ++source;
  }
  return result;
}

ByteLayout ExchangeMap::scattered_layout(int to_node) const {
  const std::int64_t whole = extents_.rows[0][0];
  ByteLayout result;
  int destination = 0;
  for (const int to : ranks_of(to_node)) {
    const std::size_t offset = bytes(first_scattered_row(whole, size_, to));
    append(result, {Transfer::kAll, offset, destination++, 0, {}}, bytes(rows(0, to)));
  }
  return result;
}

std::size_t ExchangeMap::stream_bytes(int from_node, int to_node) const {
  std::size_t total = 0;
  if (extents_.kind == OperationKind::alltoall) {
    for (const int from : ranks_of(from_node)) {
      for (const int to : ranks_of(to_node)) total += bytes(rows(from, to));
    }
  } else if (extents_.kind == OperationKind::reduce_scatter) {
    for (const int to : ranks_of(to_node)) total += bytes(rows(0, to));
  } else {
    for (const int from : ranks_of(from_node)) total += bytes(rows(from, 0));
  }
  return total;
}

std::size_t ExchangeMap::longest_stream() const {
  std::size_t longest = 0;
  for (int from = 0; from < topology_.nodes(); ++from) {
    for (int to = 0; to < topology_.nodes(); ++to) {
      if (from != to) longest = std::max(longest, stream_bytes(from, to));
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
