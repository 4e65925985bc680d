#include "tests/support/threads/wires.h"

#include <cstring>
#include <functional>
#include <utility>

#include "ops/local/kernels.h"

namespace hora::test {

void Post::send(int from, int to, std::span<const std::byte> message) {
  const std::lock_guard lock(mutex_);
  boxes_.at(static_cast<std::size_t>(to)).push_back({from, {message.begin(), message.end()}});
}

std::optional<TreeLink::Received> Post::receive(int node) {
  const std::lock_guard lock(mutex_);
  auto& box = boxes_.at(static_cast<std::size_t>(node));
  if (box.empty()) return std::nullopt;
  auto message = std::move(box.front());
  box.pop_front();
  return message;
}

void Meeting::bring(int node, std::uint64_t sequence, std::span<const std::byte> part) {
  const std::lock_guard lock(mutex_);
  Operation& operation = operations_[sequence];
  operation.parts.resize(static_cast<std::size_t>(nodes_));
  operation.parts[static_cast<std::size_t>(node)].assign(part.begin(), part.end());
  ++operation.brought;
}

const std::vector<std::vector<std::byte>>* Meeting::complete(std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  const Operation& operation = operations_.at(sequence);
  return operation.brought == nodes_ ? &operation.parts : nullptr;
}

void Meeting::leave(std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  if (++operations_.at(sequence).left == nodes_) operations_.erase(sequence);
}

namespace {

class Attendance final : public PendingWork {
 public:
  using Parts = std::vector<std::vector<std::byte>>;
  Attendance(Meeting& meeting, std::uint64_t sequence, std::function<void(const Parts&)> take)
      : meeting_(meeting), sequence_(sequence), take_(std::move(take)) {}
  bool poll() override {
    const Parts* parts = meeting_.complete(sequence_);
    if (!parts) return false;
    take_(*parts);
    meeting_.leave(sequence_);
    return true;
  }

 private:
  Meeting& meeting_;
  std::uint64_t sequence_;
  std::function<void(const Parts&)> take_;
};

}  // namespace

Completion MeetingCrossGroup::allreduce(const Reduction& reduction, std::span<std::byte> staging,
                                        std::uint64_t sequence) {
  meeting_.bring(node_, sequence, staging);
  return Completion(std::make_unique<Attendance>(
      meeting_, sequence, [=](const std::vector<std::vector<std::byte>>& parts) {
        std::vector<const std::byte*> inputs;
        for (const auto& part : parts) inputs.push_back(part.data());
        std::byte* output = staging.data();
        reduce(reduction.type, reduction.op, inputs, {&output, 1},
               staging.size() / size_of(reduction.type), {.post = reduction.scale});
      }));
}

Completion MeetingCrossGroup::broadcast(std::span<std::byte> staging, int root,
                                        std::uint64_t sequence) {
  meeting_.bring(node_, sequence, staging);
  return Completion(std::make_unique<Attendance>(
      meeting_, sequence, [=](const std::vector<std::vector<std::byte>>& parts) {
        std::memcpy(staging.data(), parts[static_cast<std::size_t>(root)].data(), staging.size());
      }));
}

}  // namespace hora::test
