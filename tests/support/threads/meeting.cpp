#include "tests/support/threads/meeting.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "ops/local/kernels.h"

namespace hora::internal::test {

void Meeting::bring(int node, std::uint64_t sequence, Parts parts) {
  const std::lock_guard lock(mutex_);
  Operation& operation = operations_[sequence];
  operation.of_node.resize(static_cast<std::size_t>(nodes_));
  operation.of_node[static_cast<std::size_t>(node)] = std::move(parts);
  ++operation.brought;
  if (node == 0) begun_.fetch_add(1);
}

const std::vector<Meeting::Parts>* Meeting::complete(std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  const Operation& operation = operations_.at(sequence);
  return operation.brought == nodes_ ? &operation.of_node : nullptr;
}

void Meeting::leave(std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  if (++operations_.at(sequence).left == nodes_) operations_.erase(sequence);
}

namespace {

class Attendance final : public PendingWork {
 public:
  using Take = std::function<void(const std::vector<Meeting::Parts>&)>;
  Attendance(Meeting& meeting, std::uint64_t sequence, Take take)
      : meeting_(meeting), sequence_(sequence), take_(std::move(take)) {}
  bool poll() override {
    const std::vector<Meeting::Parts>* of_node = meeting_.complete(sequence_);
    if (!of_node) return false;
    take_(*of_node);
    meeting_.leave(sequence_);
    return true;
  }

 private:
  Meeting& meeting_;
  std::uint64_t sequence_;
  Take take_;
};

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

/// Brings parts, and takes what is wanted of all when all are there.
Completion attend(Meeting& meeting, int node, std::uint64_t sequence, Meeting::Parts parts,
                  Attendance::Take take) {
  meeting.bring(node, sequence, std::move(parts));
  return Completion(std::make_unique<Attendance>(meeting, sequence, std::move(take)));
}

}  // namespace

Completion MeetingCrossGroup::allreduce(const Reduction& reduction, std::span<std::byte> staging,
                                        std::uint64_t sequence) {
  return attend(meeting_, node_, sequence, {copy_of(staging)}, [=](const auto& of_node) {
    std::vector<const std::byte*> inputs;
    for (const auto& parts : of_node) inputs.push_back(parts[0].data());
    std::byte* output = staging.data();
    reduce(reduction.type, reduction.op, inputs, {&output, 1},
           staging.size() / size_of(reduction.type), {.post = reduction.scale});
  });
}

Completion MeetingCrossGroup::broadcast(std::span<std::byte> staging, int root,
                                        std::uint64_t sequence) {
  return attend(meeting_, node_, sequence, {copy_of(staging)}, [=](const auto& of_node) {
    std::ranges::copy(of_node[static_cast<std::size_t>(root)][0], staging.begin());
  });
}

Completion MeetingCrossGroup::exchange(std::span<const std::span<const std::byte>> sends,
                                       std::span<const std::span<std::byte>> receives,
                                       std::uint64_t sequence) {
  Meeting::Parts own_parts;
  for (const auto& bytes : sends) own_parts.push_back(copy_of(bytes));
  const auto own_node = static_cast<std::size_t>(node_);
  const std::vector<std::span<std::byte>> targets(receives.begin(), receives.end());
  return attend(meeting_, node_, sequence, std::move(own_parts), [=](const auto& of_node) {
    for (std::size_t node = 0; node < of_node.size(); ++node) {
      if (node == own_node) continue;
      const std::vector<std::byte>& part = of_node[node].at(own_node);
      if (part.size() != targets.at(node).size()) {
        throw std::logic_error("an exchange got " + std::to_string(part.size()) + " bytes where " +
                               std::to_string(targets[node].size()) + " were expected");
      }
      std::ranges::copy(part, targets[node].begin());
    }
  });
}

}  // namespace hora::internal::test
