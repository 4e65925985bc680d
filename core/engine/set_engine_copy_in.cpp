/// SetEngine: where a submission's data is while peers work on it.
#include <algorithm>
#include <cstring>

#include "core/engine/exchange_header.h"
#include "core/engine/set_engine.h"
#include "core/negotiation/signature.h"
#include "core/plan/exchange.h"

namespace hora {
namespace {

/// Longest result that is expected to be even: where it is not, the memory is wasted.
constexpr std::size_t kLongestExpected = std::size_t{64} << 20;

}  // namespace

/// What no other rank of the node touches: all of it where there is none; this rank's own part of
/// an exchange; in a set of one node also its slice of a large tensor, which is a unit of its own
/// there.
Range SetEngine::direct_range(const Submission& submission, const Request& request) const {
  if (control_block_.local_size() == 1) return {0, submission.bytes};
  const Signature& signature = submission.signature;
  if (is_exchange(signature.kind)) {
    if (signature.kind == OperationKind::reduce_scatter && !single_node_) return {};
    const Topology& ranks = parts_.topology;
    return rows_to_rank(signature.kind, request.rows, ranks.size(),
                        ranks.index_of(shared_.parts.rank), signature.row_bytes());
  }
  if (!single_node_ || submission.bytes < kAloneBytes) return {};
  const Range slice = slice_range({0, align_up(submission.bytes)}, control_block_.local_rank(),
                                  control_block_.local_size());
  if (slice.bytes == 0) return {};
  return {slice.begin, std::min(slice.bytes, submission.bytes - slice.begin)};
}

void SetEngine::copy_in(Submission& submission, const Request& request, Caller caller) {
  if (request.location) {
    submission.location = *request.location;
    return;
  }
  if (is_exchange(submission.signature.kind)) return copy_in_exchange(submission, request, caller);
  submission.bytes = submission.signature.bytes();
  if (on_device(submission.signature)) {
    copy_in_device_data(submission, request.data);
  } else if (submission.signature.device != DeviceKind::cpu) {
    copy_in_through_host(submission, request);
  } else {
    copy_in_host_data(submission, request, caller);
  }
}

bool SetEngine::on_device(const Signature& signature) const {
  return runs_on_device(signature, parts_.topology.nodes());
}

bool SetEngine::brings_data(const Signature& signature) const {
  return signature.kind != OperationKind::broadcast || signature.root == shared_.parts.rank;
}

void SetEngine::copy_in_exchange(Submission& submission, const Request& request, Caller caller) {
  submission.bytes = request.bytes;
  submission.result = request.result;
  Location expected = kNowhere;
  if (on_device(submission.signature)) {
    copy_in_device_data(submission, request.data);
  } else {
    const auto result = expect_result(submission, request);
    if (result) expected = result->location;
    if (!result || !place_in_result(submission, request, caller, *result)) {
      copy_in_host_data(submission, request, caller);
    }
  }
  const NodeMemory::Block header =
      parts_.memory->allocate(ExchangeHeader::bytes_for(request.rows.size()));
  submission.header = header.data;
  ExchangeHeader::write(header.data, submission.location, expected, submission.bytes, request.rows);
  submission.location = header.location;
}

/// In one node: where peers can write this rank's result, if all of them give as much.
std::optional<NodeMemory::Block> SetEngine::expect_result(const Submission& submission,
                                                          const Request& request) {
  const auto ranks = static_cast<std::size_t>(control_block_.local_size());
  const OperationKind kind = submission.signature.kind;
  if (!single_node_ || ranks == 1 || !may_push(kind) || !is_even(request.rows)) return std::nullopt;
  const std::size_t copies = kind == OperationKind::allgather ? ranks : 1;
  if (submission.bytes == 0 || submission.bytes > kLongestExpected / copies) return std::nullopt;
  std::byte* const result = request.result->expect(copies * submission.bytes);
  if (!result) return std::nullopt;
  return NodeMemory::Block{result, *parts_.memory->find(result, submission.bytes)};
}

/// An allgather whose input may not be read later: straight to its place if all ranks bring as
/// much, which is also where peers find it. False, and nothing is done, of anything else.
bool SetEngine::place_in_result(Submission& submission, const Request& request, Caller caller,
                                const NodeMemory::Block& result) {
  if (submission.signature.kind != OperationKind::allgather || caller == Caller::waits ||
      parts_.memory->find(request.data, submission.bytes)) {
    return false;
  }
  const std::size_t offset =
      static_cast<std::size_t>(control_block_.local_rank()) * submission.bytes;
  submission.block = result.data + offset;
  submission.location = result.location;
  submission.location.offset += offset;
  parts_.memory->publish(submission.block, request.data, submission.bytes);
  return true;
}

void SetEngine::copy_in_device_data(Submission& submission, std::byte* data) {
  submission.block = data;
  submission.work = shared_.parts.device->begin(submission.stream);
}

/// What peers see instead of the user's data.
void SetEngine::take_block(Submission& submission) {
  const NodeMemory::Block block = parts_.memory->allocate(submission.bytes);
  submission.block = block.data;
  submission.location = block.location;
}

void SetEngine::copy_in_through_host(Submission& submission, const Request& request) {
  if (submission.bytes == 0) return;
  take_block(submission);
  submission.user_data = request.data;
  submission.through_host = true;
  if (!brings_data(submission.signature)) return;
  shared_.parts.device_heap->to_host(submission.block, request.data, submission.bytes,
                                     submission.stream);
}

void SetEngine::copy_in_host_data(Submission& submission, const Request& request, Caller caller) {
  if (submission.bytes == 0) return;
  if (const auto location = parts_.memory->find(request.data, submission.bytes)) {
    submission.block = request.data;
    submission.location = *location;
    return;
  }
  submission.user_data = request.data;
  // Not for handles: an exception may drop one, and free the memory, while peers go on.
  if (caller == Caller::waits) {
    submission.direct = direct_range(submission, request);
    submission.reads_in_place = is_exchange(submission.signature.kind);
  }
  if (submission.direct.bytes == submission.bytes) {
    // Peers have nothing to read, and nothing to write to.
    if (control_block_.local_size() > 1) submission.location = kNowhere;
    return;
  }
  const bool waits_in_node = caller == Caller::waits && single_node_;
  const OperationKind kind = submission.signature.kind;
  submission.fetches =
      waits_in_node && submission.direct.bytes == 0 && !brings_data(submission.signature);
  if (submission.fetches || (waits_in_node && may_push(kind))) {
    submission.location = kNowhere;
    return;
  }
  take_block(submission);
  if (!brings_data(submission.signature)) return;
  submission.publishes =
      waits_in_node && kind == OperationKind::broadcast && is_followed(submission.bytes);
  if (submission.publishes) return;
  const bool peers_write = kind == OperationKind::allreduce;
  copy_around(submission.direct, submission.block, request.data, submission.bytes,
              [&](std::byte* target, const std::byte* source, std::size_t bytes) {
                if (peers_write) {
                  std::memcpy(target, source, bytes);
                } else {
                  parts_.memory->publish(target, source, bytes);
                }
              });
}

}  // namespace hora
