/// Cross groups in one process.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "core/engine/interfaces.h"
#include "ops/hierarchy/groups.h"

namespace hora::internal::test {

/// One cross group's meeting place: operation `sequence` is done once every node has brought its
/// part, or, of an exchange, its parts by the node that they are for. Thread rule: any thread.
class Meeting {
 public:
  using Parts = std::vector<std::vector<std::byte>>;
  explicit Meeting(int nodes) : nodes_(nodes) {}
  void bring(int node, std::uint64_t sequence, Parts parts);
  /// All nodes' parts, once all are there.
  const std::vector<Parts>* complete(std::uint64_t sequence);
  /// Called once by each node when it has taken what it needs.
  void leave(std::uint64_t sequence);
  /// Operations of which node 0 has brought its part.
  std::uint64_t begun() const { return begun_.load(); }

 private:
  struct Operation {
    std::vector<Parts> of_node;
    int brought = 0;
    int left = 0;
  };
  int nodes_;
  std::atomic<std::uint64_t> begun_{0};
  std::mutex mutex_;
  std::map<std::uint64_t, Operation> operations_;
};

class MeetingCrossGroup final : public CrossGroup {
 public:
  MeetingCrossGroup(Meeting& meeting, int node) : meeting_(meeting), node_(node) {}
  Completion allreduce(const Reduction& reduction, std::span<std::byte> staging,
                       std::uint64_t sequence) override;
  /// There is no model of it here.
  Completion adasum(DataType, std::span<std::byte>, std::vector<Range>, std::uint64_t) override {
    throw std::logic_error("a Meeting knows no Adasum");
  }
  Completion broadcast(std::span<std::byte> staging, int root, std::uint64_t sequence) override;
  /// Completes with std::logic_error where the lengths of a pair differ.
  Completion exchange(std::span<const std::span<const std::byte>> sends,
                      std::span<const std::span<std::byte>> receives,
                      std::uint64_t sequence) override;

 private:
  Meeting& meeting_;
  int node_;
};

}  // namespace hora::internal::test
