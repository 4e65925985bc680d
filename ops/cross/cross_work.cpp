#include "ops/cross/cross_work.h"

#include <fmt/format.h>
#include <hora/error.h>

#include <new>
#include <string>

#include "core/base/checked.h"
#include "ops/local/kernels.h"

namespace hora::internal {

std::byte* HostSpace::allocate(std::size_t bytes) {
  return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlignment}));
}

void HostSpace::release(std::byte* data) noexcept {
  ::operator delete (data, std::align_val_t{kAlignment});
}

Completion HostSpace::reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
                             std::byte* output, std::size_t count) {
  internal::reduce(reduction.type, reduction.op, inputs, {&output, 1}, count,
                   {.post = reduction.scale});
  return {};
}

Completion HostSpace::convert(DataType source, const std::byte* input, DataType target,
                              std::byte* output, std::size_t count) {
  internal::convert(source, input, target, output, count);
  return {};
}

HostSpace& host_space() noexcept {
  static HostSpace space;
  return space;
}

std::byte* WorkBuffer::reserve(std::size_t bytes) {
  if (bytes > capacity_) {
    data_.reset();  // first, so that both never exist at once
    capacity_ = 0;
    data_.reset(space_.allocate(bytes));
    capacity_ = bytes;
  }
  return data_.get();
}

Workspace& CrossResources::take_workspace() {
  if (free_.empty()) {
    workspaces_.push_back(std::make_unique<Workspace>(space_));
    free_.push_back(workspaces_.back().get());
  }
  Workspace& workspace = *free_.back();
  free_.pop_back();
  return workspace;
}

void CrossResources::reserve(std::size_t operations, std::size_t bytes) {
  std::vector<Workspace*> taken;
  for (std::size_t i = 0; i < operations; ++i) {
    taken.push_back(&take_workspace());
    taken.back()->buffer.reserve(bytes);
  }
  free_.insert(free_.end(), taken.begin(), taken.end());
}

Workspace& CrossResources::begin(std::uint64_t sequence) {
  const auto slot = static_cast<std::size_t>(sequence % kWindow);
  if (under_way_.test(slot)) {
    throw Error(
        ErrorCode::invalid_use,
        fmt::format("operation {} of a cross group started while one that is {} or a multiple "
                    "of it earlier is under way: start fewer at once",
                    sequence, kWindow + 0));
  }
  Workspace& workspace = take_workspace();
  under_way_.set(slot);
  return workspace;
}

void CrossResources::end(std::uint64_t sequence, Workspace& workspace) {
  under_way_.reset(static_cast<std::size_t>(sequence % kWindow));
  workspace.sends.clear();
  workspace.receives.clear();
  workspace.gather_sends.clear();
  workspace.gather_receives.clear();
  workspace.inputs.clear();
  free_.push_back(&workspace);
}

CrossWork::CrossWork(CrossResources& resources, std::uint64_t sequence)
    : resources_(resources), sequence_(sequence), workspace_(&resources.begin(sequence)) {}

MemoryUse CrossWork::cancel() {
  const bool received = workspace_->receives.cancelled(link());
  if (!workspace_->gather_receives.cancelled(link()) || !received) return MemoryUse::writes;
  try {
    const bool sent = workspace_->sends.drained(link());
    return workspace_->gather_sends.drained(link()) && sent ? MemoryUse::none : MemoryUse::reads;
  } catch (const Error&) {
    return MemoryUse::none;  // another failure: nobody can be helped
  }
}

int CrossWork::tag(int phase) const {
  return static_cast<int>(sequence_ % CrossResources::kWindow) * CrossResources::kPhases + phase;
}

void CrossWork::send(RequestQueue& queue, int to, int phase, std::span<const std::byte> bytes) {
  queue.add(bytes.empty() ? RequestQueue::kNothing : link().send(to, tag(phase), bytes));
}

void CrossWork::receive(RequestQueue& queue, int from, int phase, std::span<std::byte> bytes) {
  queue.add(bytes.empty() ? RequestQueue::kNothing : link().receive(from, tag(phase), bytes));
}

bool CrossWork::finish() {
  resources_.end(sequence_, *workspace_);
  return true;
}

}  // namespace hora::internal
