#include "ops/nccl/buffers.h"

#include <algorithm>
#include <utility>

#include "ops/nccl/functions.h"

namespace hora::internal {
namespace {

template <class Member>
bool all_alike(std::span<const Location> places, Member member) {
  return std::ranges::all_of(
      places, [&](const Location& place) { return place.*member == places.front().*member; });
}

}  // namespace

WindowAgreement agreement_of(std::span<const Location> places) {
  if (places.empty() || !all_alike(places, &Location::window)) return {};
  const Location& any = places.front();
  if (any.window == kNoWindow || any.window == kNowhere.window) return {};
  const bool same = all_alike(places, &Location::offset);
  if (any.window == kProposedWindow) return {.begins = same};
  return {.is_shared = true, .ends = same ? static_cast<std::uint32_t>(any.offset) : kNoWindow};
}

void NcclBuffers::add(RegisteredMemory memory) {
  const std::byte* const data = memory.data();
  if (data == nullptr) return;
  const LockGuard lock(mutex_);
  buffers_.emplace(data, Buffer{.memory = std::move(memory)});
}

std::optional<RegisteredMemory> NcclBuffers::give_back(std::byte* data) {
  const LockGuard lock(mutex_);
  auto node = buffers_.extract(data);
  Buffer& buffer = node.mapped();
  if (buffer.window == kNoWindow) return std::move(buffer.memory);
  given_back_.emplace(buffer.window, std::move(buffer.memory));
  return std::nullopt;
}

/// The buffer that the memory lies in.
NcclBuffers::Buffer* NcclBuffers::find(const std::byte* data) {
  const auto found = buffers_.lower_bound(data);  // the last one that begins at or before it
  if (data == nullptr || found == buffers_.end()) return nullptr;
  const auto offset = static_cast<std::size_t>(data - found->first);
  return offset < found->second.memory.bytes() ? &found->second : nullptr;
}

Location NcclBuffers::place(const std::byte* data) {
  if (!enabled_ || data == nullptr) return {};
  const LockGuard lock(mutex_);
  const auto found = buffers_.find(data);
  if (found == buffers_.end()) return {};
  Buffer& buffer = found->second;
  if (buffer.window != kNoWindow) {
    const std::uint32_t first = given_back_.empty() ? kNoWindow : given_back_.begin()->first;
    return {.window = buffer.window, .offset = first};
  }
  if (std::exchange(buffer.is_proposed, true)) return {};
  return {.window = kProposedWindow, .offset = buffer.memory.bytes()};
}

WindowPlan NcclBuffers::plan(const BoundUnit& unit, int local_rank) {
  WindowPlan plan;
  if (!enabled_) return plan;
  const auto ranks = static_cast<std::size_t>(unit.local_size);
  const auto places_of = [&](std::size_t position) {
    return std::span(unit.places).subspan(position * ranks, ranks);
  };
  const LockGuard lock(mutex_);
  for (std::size_t i = 0; i < unit.unit.tensors.size(); ++i) {
    const auto places = places_of(i);
    const WindowAgreement agreed = agreement_of(places);
    if (agreed.begins) ++last_window_;
    const bool proposes = places[static_cast<std::size_t>(local_rank)].window == kProposedWindow;
    if (Buffer* const own = proposes ? find(unit.tensor(i, local_rank)) : nullptr) {
      own->is_proposed = false;
      if (agreed.begins) {
        own->window = last_window_;
        plan.begins.push_back(&own->memory);
      }
    }
    if (auto ended = given_back_.extract(agreed.ends)) {
      plan.ends.push_back(agreed.ends);
      ending_.insert(std::move(ended));
    }
  }
  // When all windows of the unit are known.
  for (std::size_t i = 0; i < unit.unit.tensors.size(); ++i) {
    const WindowAgreement agreed = agreement_of(places_of(i));
    if (agreed.begins || agreed.is_shared) {
      plan.shared.resize(unit.unit.tensors.size());
      plan.shared[i] = true;
      continue;
    }
    const Buffer* const own = find(unit.tensor(i, local_rank));
    if (own == nullptr || own->window == kNoWindow) continue;
    plan.apart.resize(unit.unit.tensors.size());
    plan.apart[i] = true;
  }
  return plan;
}

void NcclBuffers::carry_out(const WindowPlan& plan, const NcclFunctions& nccl) {
  for (const std::uint32_t window : plan.ends) ending_.erase(window);  // and frees it
  if (plan.begins.empty()) return;
  NcclCallGroup calls(nccl);
  for (RegisteredMemory* const memory : plan.begins) memory->become_window();
  calls.end();
}

bool NcclBuffers::in_window(const std::byte* data) {
  if (!enabled_) return false;
  const LockGuard lock(mutex_);
  const Buffer* const buffer = find(data);
  return buffer != nullptr && buffer->window != kNoWindow;
}

bool NcclBuffers::has_windows() {
  const LockGuard lock(mutex_);
  return !given_back_.empty() || std::ranges::any_of(buffers_, [](const auto& entry) {
    return entry.second.window != kNoWindow;
  });
}

void NcclBuffers::end_windows() noexcept {
  enabled_ = false;
  const LockGuard lock(mutex_);
  given_back_.clear();
  for (auto& [data, buffer] : buffers_) {
    if (std::exchange(buffer.window, kNoWindow) != kNoWindow) buffer.memory.deregister();
  }
}

bool NcclBuffers::empty() {
  const LockGuard lock(mutex_);
  return buffers_.empty() && given_back_.empty() && ending_.empty();
}

void NcclBuffers::free_all() noexcept {
  const LockGuard lock(mutex_);
  buffers_.clear();
  given_back_.clear();
  ending_.clear();
}

void NcclBuffers::leave_in_place() noexcept {
  const LockGuard lock(mutex_);
  for (auto& [data, buffer] : buffers_) buffer.memory.leave_in_place();
  for (auto& [window, memory] : given_back_) memory.leave_in_place();
  for (auto& [window, memory] : ending_) memory.leave_in_place();
}

}  // namespace hora::internal
