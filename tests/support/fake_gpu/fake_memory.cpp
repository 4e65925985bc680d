#include <algorithm>
#include <cstring>
#include <new>

#include "tests/support/fake_gpu/fake_device.h"

namespace hora::internal::test {
namespace {

constexpr std::align_val_t kAlignment{256};
constexpr int kPattern = 0xcb;

}  // namespace

FakeMemory::~FakeMemory() {
  for (const auto& [begin, block] : blocks_) {
    ::operator delete(const_cast<std::byte*>(begin), kAlignment);
  }
}

void* FakeMemory::allocate(MemoryKind kind, std::size_t bytes) {
  void* data = ::operator new(bytes, kAlignment);
  std::memset(data, kPattern, bytes);
  const std::scoped_lock lock(mutex_);
  blocks_.emplace(static_cast<std::byte*>(data), Block{kind, bytes});
  return data;
}

bool FakeMemory::release(MemoryKind kind, void* data) {
  const std::scoped_lock lock(mutex_);
  const auto found = blocks_.find(static_cast<std::byte*>(data));
  if (found == blocks_.end() || found->second.kind != kind) return false;
  blocks_.erase(found);
  ::operator delete(data, kAlignment);
  return true;
}

const FakeMemory::Block* FakeMemory::find(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  const auto found = blocks_.lower_bound(begin);  // the last block that begins at or before it
  if (found == blocks_.end()) return nullptr;
  const auto offset = static_cast<std::size_t>(begin - found->first);
  return offset <= found->second.bytes && bytes <= found->second.bytes - offset ? &found->second
                                                                                : nullptr;
}

MemoryUse FakeMemory::use(const std::vector<MemoryRange>& ranges) const {
  const std::scoped_lock lock(mutex_);
  MemoryUse users;
  for (const auto& [data, bytes] : ranges) {
    const Block* const block = bytes == 0 ? nullptr : find(data, bytes);
    if (block != nullptr) users.push_back(block->users);
  }
  return users;
}

bool FakeMemory::in_use(const void* data) const {
  const std::scoped_lock lock(mutex_);
  const auto found = blocks_.find(static_cast<const std::byte*>(data));
  return found != blocks_.end() && found->second.users.use_count() > 1;
}

bool FakeMemory::on_device(const void* data, std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  const Block* block = find(data, bytes);
  return bytes == 0 || (block != nullptr && block->kind != MemoryKind::pinned);
}

bool FakeMemory::pinned(const void* data, std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  const Block* block = find(data, bytes);
  return bytes == 0 || (block != nullptr && block->kind == MemoryKind::pinned);
}

bool FakeMemory::is_block(MemoryKind kind, const void* data, std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  const auto found = blocks_.find(static_cast<const std::byte*>(data));
  return found != blocks_.end() && found->second.kind == kind && bytes <= found->second.bytes;
}

int FakeMemory::blocks(MemoryKind kind) const {
  const std::scoped_lock lock(mutex_);
  return static_cast<int>(std::ranges::count_if(
      blocks_, [kind](const auto& block) { return block.second.kind == kind; }));
}

}  // namespace hora::internal::test
