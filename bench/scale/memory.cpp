#include "bench/scale/memory.h"

#include <cstdint>
#include <cstring>
#include <new>
#include <simgrid/s4u.hpp>
#include <stdexcept>
#include <string>

#include "core/base/checked.h"
#include "ops/local/kernels.h"

namespace bench::scale {

using hora::internal::BoundUnit;
using hora::internal::ChunkPart;
using hora::internal::Completion;
using hora::internal::kAlignment;
using hora::internal::Location;

namespace {

struct alignas(kAlignment) Line {
  std::byte bytes[kAlignment];
};

std::byte* new_block(std::size_t bytes) {
  return static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kAlignment)));
}

std::byte* new_or_folded(std::size_t bytes, std::size_t folded_from) {
  if (bytes < folded_from) return new_block(bytes);
  if (bytes > kFoldedBytes) {
    throw std::length_error("a block of " + std::to_string(bytes) +
                            " bytes: simulated memory has at most 64 MiB; use smaller tensors");
  }
  return folded_memory();
}

void delete_unless_folded(std::byte* data) noexcept {
  if (!is_folded(data)) ::operator delete(data, std::align_val_t(kAlignment));
}

bool is_folded(const BoundUnit& unit) {
  return unit.unit.bytes >= kFoldedFrom;
}

}  // namespace

std::byte* folded_memory() {
  static Line* const memory = new Line[kFoldedBytes / kAlignment]();
  return memory->bytes;
}

bool is_folded(const void* data) {
  const auto* const address = static_cast<const std::byte*>(data);
  return address >= folded_memory() && address < folded_memory() + kFoldedBytes;
}

void MemoryTime::pass(std::size_t bytes) const {
  if (bytes == 0) return;
  simgrid::s4u::this_actor::sleep_for(static_cast<double>(bytes) * ranks / bandwidth);
}

SimulatedMemory::~SimulatedMemory() {
  for (const auto& [data, bytes] : blocks_) delete_unless_folded(const_cast<std::byte*>(data));
}

hora::internal::NodeMemory::MemoryBlock SimulatedMemory::allocate(std::size_t bytes) {
  std::byte* const data = new_or_folded(bytes, kFoldedFrom);
  blocks_[data] = bytes;
  return {data, {0, 0, reinterpret_cast<std::uintptr_t>(data)}};
}

void SimulatedMemory::release(std::byte* data) noexcept {
  if (blocks_.erase(data) > 0) delete_unless_folded(data);
}

std::optional<Location> SimulatedMemory::find(const std::byte* data, std::size_t bytes) const {
  const auto after = blocks_.upper_bound(data);
  if (after == blocks_.begin()) return std::nullopt;
  const auto& [begin, length] = *std::prev(after);
  if (data + bytes > begin + length) return std::nullopt;
  return Location{0, 0, reinterpret_cast<std::uintptr_t>(data)};
}

std::byte* SimulatedMemory::address(int /*local_rank*/, Location location, std::size_t /*bytes*/) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(location.offset));
}

void SimulatedMemory::copy_past_caches(std::byte* out, const std::byte* in, std::size_t bytes) {
  if (bytes > 0 && !bench::scale::is_folded(out)) std::memcpy(out, in, bytes);
}

std::byte* SimulatedSpace::allocate(std::size_t bytes) {
  return new_or_folded(bytes, kFoldedWorkFrom);
}

void SimulatedSpace::release(std::byte* data) noexcept {
  delete_unless_folded(data);
}

Completion SimulatedSpace::reduce(const hora::internal::Reduction& reduction,
                                  std::span<const std::byte* const> inputs, std::byte* output,
                                  std::size_t count) {
  time_.pass((inputs.size() + 1) * count * hora::size_of(reduction.type));
  if (bench::scale::is_folded(output)) return {};
  return hora::internal::host_space().reduce(reduction, inputs, output, count);
}

Completion SimulatedSpace::convert(hora::DataType source, const std::byte* input,
                                   hora::DataType target, std::byte* output, std::size_t count) {
  time_.pass(count * (hora::size_of(source) + hora::size_of(target)));
  if (bench::scale::is_folded(output)) return {};
  return hora::internal::host_space().convert(source, input, target, output, count);
}

std::byte* SimulatedGroup::staging(const ChunkPart& part) {
  return is_folded(part.unit) ? folded_memory() : group_.staging(part);
}

Completion SimulatedGroup::run(const BoundUnit& unit) {
  const auto own =
      hora::internal::slice_range({0, unit.unit.bytes}, local_rank_, local_size_).bytes;
  time_.pass(own * 2 * static_cast<std::size_t>(local_size_));
  return is_folded(unit) ? Completion() : group_.run(unit);
}

Completion SimulatedGroup::reduce_scatter(const ChunkPart& part) {
  time_.pass(part.slice.bytes * (static_cast<std::size_t>(local_size_) + 1));
  return is_folded(part.unit) ? Completion() : group_.reduce_scatter(part);
}

Completion SimulatedGroup::all_gather(const ChunkPart& part) {
  time_.pass(part.slice.bytes * (static_cast<std::size_t>(local_size_) + 1));
  return is_folded(part.unit) ? Completion() : group_.all_gather(part);
}

}  // namespace bench::scale
