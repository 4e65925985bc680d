#include "core/engine/tensor_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/engine/operations.h"
#include "core/negotiation/signature.h"
#include "core/plan/plan.h"

namespace hora::internal {
namespace {

/// Longest result that is expected to be even: where it is not, the memory is wasted.
constexpr std::size_t kLongestExpected = std::size_t{64} << 20;

bool exceeds_caches(const SetMemory& set) {
  return set.volume && set.volume->exceeds_caches();
}

/// Copies all of [0, bytes) but `left_out`.
void copy_around(const SetMemory& set, Range left_out, std::byte* target, const std::byte* source,
                 std::size_t bytes, bool past_caches) {
  const auto copy = [&](std::size_t begin, std::size_t length) {
    if (past_caches) {
      set.memory().copy_past_caches(target + begin, source + begin, length);
    } else {
      std::memcpy(target + begin, source + begin, length);
    }
  };
  const std::size_t end = left_out.begin + left_out.bytes;
  copy(0, left_out.begin);
  copy(end, bytes - end);
}

MemoryWay way_of(const MemoryFacts& facts) {
  if (facts.runs_on_device) return MemoryWay::device;
  if (facts.bytes == 0) return MemoryWay::nothing;
  if (facts.is_on_device) return MemoryWay::through_host;
  if (facts.in_windows) return MemoryWay::windows;
  if (facts.caller == Caller::goes_on) {
    // As long as there is a handle, parts that peers do not touch are not copied.
    if (facts.kind == OperationKind::allreduce && facts.own.bytes > 0) return MemoryWay::around;
    return facts.has_place ? MemoryWay::result : MemoryWay::block;
  }
  if (facts.own.bytes == facts.bytes) return MemoryWay::in_place;
  if (facts.single_node) {
    if (may_push(facts.kind)) return MemoryWay::in_place;
    if (!facts.brings_data && facts.own.bytes == 0) return MemoryWay::fetched;
    if (facts.kind == OperationKind::broadcast && facts.brings_data && is_followed(facts.bytes)) {
      return MemoryWay::published;
    }
  }
  return is_exchange(facts.kind) || facts.own.bytes > 0 ? MemoryWay::around : MemoryWay::block;
}

/// In one node: where peers can write this rank's result, if all of them give as much.
std::optional<NodeMemory::MemoryBlock> expect_result(const SetMemory& set,
                                                     const Signature& signature,
                                                     const Request& request) {
  const auto ranks = static_cast<std::size_t>(set.local_size);
  const OperationKind kind = signature.kind;
  if (!set.single_node() || ranks == 1 || !may_push(kind) || !is_even(request.rows)) {
    return std::nullopt;
  }
  const std::size_t copies = kind == OperationKind::allgather ? ranks : 1;
  if (request.bytes == 0 || request.bytes > kLongestExpected / copies) return std::nullopt;
  std::byte* const result = request.result->expect(copies * request.bytes);
  if (!result) return std::nullopt;
  return NodeMemory::MemoryBlock{result, *set.memory().find(result, request.bytes)};
}

}  // namespace

SmallBlocks::~SmallBlocks() {
  for (const NodeMemory::MemoryBlock& block : free_) memory_.release(block.data);
}

NodeMemory::MemoryBlock SmallBlocks::take() {
  {
    const LockGuard lock(mutex_);
    if (!free_.empty()) {
      const NodeMemory::MemoryBlock block = free_.back();
      free_.pop_back();
      return block;
    }
  }
  return memory_.allocate(kBytes);
}

void SmallBlocks::put_back(const NodeMemory::MemoryBlock& block) {
  const LockGuard lock(mutex_);
  free_.push_back(block);
}

MemoryPlan plan_memory(const MemoryFacts& facts) {
  MemoryPlan plan{.way = way_of(facts)};
  if (plan.way == MemoryWay::in_place) plan.own = {0, facts.bytes};
  if (plan.way == MemoryWay::around) plan.own = facts.own;
  const bool has_block = plan.way == MemoryWay::around || plan.way == MemoryWay::block ||
                         plan.way == MemoryWay::through_host;
  const bool changes =
      !is_exchange(facts.kind) && (facts.kind != OperationKind::broadcast || !facts.brings_data);
  plan.copies_in = has_block && facts.brings_data;
  plan.copies_out = has_block && changes;
  return plan;
}

Range own_part(const SetMemory& set, const Signature& signature, std::size_t bytes,
               std::span<const std::int64_t> rows) {
  if (set.local_size == 1) return {0, bytes};
  if (is_exchange(signature.kind)) {
    if (signature.kind == OperationKind::reduce_scatter && !set.single_node()) return {};
    return rows_to_rank(signature.kind, rows, set.topology().size(),
                        set.topology().index_of(set.rank), signature.row_bytes());
  }
  if (!set.single_node() || bytes < kAloneBytes) return {};
  if (set.set.memory_nodes.sum_apart(signature, bytes)) return {};
  const Range slice = slice_range({0, align_up(bytes)}, set.local_rank, set.local_size);
  if (slice.bytes == 0) return {};
  return {slice.begin, std::min(slice.bytes, bytes - slice.begin)};
}

void TensorMemory::copy_in(const SetMemory& set, const Signature& signature, const Request& request,
                           Caller caller) {
  stream_ = request.stream;
  output_stream_ = request.output_stream;
  if (request.location) return set_location(*request.location);
  if (!is_exchange(signature.kind)) {
    bytes_ = signature.bytes();
    return take(set, signature, request, caller, std::nullopt);
  }
  bytes_ = request.bytes;
  const auto result =
      set.on_device(signature) ? std::nullopt : expect_result(set, signature, request);
  take(set, signature, request, caller, result);
  write_header(set, request, result ? result->location : kNowhere);
}

void TensorMemory::take(const SetMemory& set, const Signature& signature, const Request& request,
                        Caller caller, const std::optional<NodeMemory::MemoryBlock>& result) {
  const bool exchanges = is_exchange(signature.kind);
  MemoryFacts facts{.kind = signature.kind,
                    .bytes = bytes_,
                    .caller = caller,
                    .brings_data = set.brings_data(signature),
                    .runs_on_device = set.on_device(signature),
                    .is_on_device = !exchanges && signature.device != DeviceKind::cpu,
                    .has_place = result && signature.kind == OperationKind::allgather,
                    .single_node = set.single_node(),
                    .own = {}};
  std::optional<Location> found;
  if (bytes_ > 0 && !facts.runs_on_device && !facts.is_on_device) {
    found = set.memory().find(request.data, bytes_);
    facts.in_windows = found.has_value();
    const bool may_stay = caller == Caller::waits || signature.kind == OperationKind::allreduce;
    if (may_stay && !found) {
      facts.own = own_part(set, signature, bytes_, request.rows);
    }
  }
  const MemoryPlan plan = plan_memory(facts);
  data_ = request.data;
  switch (plan.way) {
    case MemoryWay::nothing:
      data_ = nullptr;
      break;
    case MemoryWay::windows:
      location_ = *found;
      break;
    case MemoryWay::result: {
      const std::size_t offset = static_cast<std::size_t>(set.local_rank) * bytes_;
      data_ = result->data + offset;
      location_ = result->location;
      location_.offset += offset;
      set.memory().copy_past_caches(data_, request.data, bytes_);
      break;
    }
    case MemoryWay::in_place:
    case MemoryWay::fetched:
      if (set.local_size > 1) location_ = kNowhere;
      break;
    case MemoryWay::around:
    case MemoryWay::block:
    case MemoryWay::published:
    case MemoryWay::through_host:
      take_block(set);
      break;
    case MemoryWay::device: {
      const std::byte* const in_place = set.is_world && !exchanges ? data_ : nullptr;
      BegunOnDevice begun = set.device->begin(in_place, stream_, output_stream_);
      work_ = std::move(begun.work);
      location_ = begun.place;
      break;
    }
  }
  plan_ = plan;
  if (plan_.copies_in) copy_to_block(set, signature.kind);
}

void TensorMemory::take_block(const SetMemory& set) {
  is_small_ = set.small && bytes_ <= SmallBlocks::kBytes;
  const NodeMemory::MemoryBlock block =
      is_small_ ? set.small->take() : set.memory().allocate(bytes_);
  if (set.volume) set.volume->add(bytes_);
  block_ = block.data;
  location_ = block_location_ = block.location;
}

void TensorMemory::copy_to_block(const SetMemory& set, OperationKind kind) {
  if (plan_.way == MemoryWay::through_host) {
    set.heap->to_host(block_, data_, bytes_, stream_);
    return;
  }
  const bool peers_write = kind == OperationKind::allreduce;
  copy_around(set, plan_.own, block_, data_, bytes_, !peers_write || exceeds_caches(set));
}

void TensorMemory::write_header(const SetMemory& set, const Request& request, Location expected) {
  const NodeMemory::MemoryBlock header =
      set.memory().allocate(ExchangeHeader::bytes_for(request.rows.size()));
  header_ = header.data;
  ExchangeHeader::write(header_, location_, expected, bytes_, request.rows);
  location_ = header.location;
}

void TensorMemory::copy_out(const SetMemory& set) {
  if (work_) {
    work_->wait_done(stream_);
    if (output_stream_) work_->wait_done(*output_stream_);
  }
  if (!plan_.copies_out) return;
  if (plan_.way == MemoryWay::through_host) {
    set.heap->to_device(data_, block_, bytes_, stream_);
  } else {
    copy_around(set, plan_.own, data_, block_, bytes_, exceeds_caches(set));
  }
}

void TensorMemory::release(const SetMemory& set) {
  if (block_ && set.volume) set.volume->remove(bytes_);
  if (block_ && is_small_) set.small->put_back({std::exchange(block_, nullptr), block_location_});
  for (std::byte** const owned : {&block_, &header_}) {
    if (*owned) set.memory().release(std::exchange(*owned, nullptr));
  }
}

bool TensorMemory::cancel() {
  if (plan_.way != MemoryWay::around) return true;
  if (in_messages_) return false;
  std::memcpy(block_ + plan_.own.begin, data_ + plan_.own.begin, plan_.own.bytes);
  plan_ = {.way = MemoryWay::block};
  is_cancelled_ = true;
  return true;
}

std::byte* TensorMemory::own_data() const {
  switch (plan_.way) {
    case MemoryWay::block:
    case MemoryWay::published:
    case MemoryWay::through_host:
      return block_;
    case MemoryWay::fetched:
      return nullptr;
    default:
      return data_;
  }
}

}  // namespace hora::internal
