#include "tests/ops/hierarchy/exchange_model.h"

#include <algorithm>
#include <numeric>

#include "core/plan/exchange.h"
#include "tests/support/reference/elements.h"

namespace hora::internal::test {
namespace {

std::int64_t sum_of(const std::vector<std::int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

/// Sum of the nodes' sums, as the hierarchy rounds it.
Bytes sum_over_nodes(const ExchangeOperation& operation, const Topology& topology) {
  std::vector<Bytes> of_node;
  for (const auto& ranks : topology.ranks_of_node) {
    std::vector<Bytes> inputs;
    for (const int rank : ranks) inputs.push_back(operation.inputs[at(rank)]);
    const double scale = topology.nodes() == 1 ? operation.scale : 1.0;
    of_node.push_back(
        reduced(operation.type, ReduceOp::sum, inputs, {.post = operation.prescale * scale}));
  }
  return topology.nodes() == 1
             ? of_node[0]
             : reduced(operation.type, ReduceOp::sum, of_node, {.post = operation.scale});
}

}  // namespace

Exchanged ExchangeOperation::expected(const Topology& topology, int rank) const {
  switch (kind) {
    case OperationKind::allreduce:
      return {sum_over_nodes(*this, topology), {}};
    case OperationKind::reduce_scatter:
      return scattered(sum_over_nodes(*this, topology), rows[0][0], row_bytes, topology.size(),
                       rank);
    case OperationKind::alltoall:
      return alltoall_of(inputs, rows, row_bytes, rank);
    default:
      return allgathered(inputs, rows, row_bytes);
  }
}

ExchangeOperation random_exchange(OperationKind kind, int ranks, std::int64_t most_rows,
                                  std::mt19937_64& random) {
  ExchangeOperation result;
  result.kind = kind;
  result.type = kAllTypes[random() % kAllTypes.size()];
  if (random() % 2 == 0 && is_floating_point(result.type)) result.scale = 1.0 / ranks;
  if (random() % 2 == 0 && is_floating_point(result.type)) result.prescale = 0.5;
  result.row_bytes = random() % 8 * size_of(result.type);
  const bool nothing = random() % 10 == 0;
  const auto some_rows = [&] {
    return nothing || random() % 4 == 0
               ? std::int64_t{0}
               : static_cast<std::int64_t>(random() % (static_cast<std::uint64_t>(most_rows) + 1));
  };
  const std::int64_t whole = some_rows() * (kind == OperationKind::reduce_scatter ? ranks : 1);
  const bool differ = kind != OperationKind::reduce_scatter && random() % 3 != 0;
  for (int rank = 0; rank < ranks; ++rank) {
    auto& own = result.rows.emplace_back(extents_of_rank(kind, ranks), whole);
    if (differ) std::generate(own.begin(), own.end(), some_rows);
    const std::size_t bytes = static_cast<std::size_t>(sum_of(own)) * result.row_bytes;
    result.inputs.push_back(random_values(result.type, bytes, random));
    result.pushes.push_back(random() % 2 == 0);
    result.expects.push_back(random() % 3 != 0);
  }
  return result;
}

ExchangeOperation allreduce_of(const ExchangeOperation& reduce_scatter) {
  ExchangeOperation result = reduce_scatter;
  result.kind = OperationKind::allreduce;
  return result;
}

}  // namespace hora::internal::test
