#include "ops/cross/cross_group.h"

#include <fmt/format.h>

#include <array>
#include <new>

#include "ops/local/kernels.h"

namespace hora::internal {

StagingSpace& host_space() noexcept {
  static class final : public StagingSpace {
    std::byte* allocate(std::size_t bytes) override {
      return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlignment}));
    }
    void release(std::byte* data) noexcept override {
      ::operator delete (data, std::align_val_t{kAlignment});
    }
    Completion reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
                      std::byte* output, std::size_t count) override {
      internal::reduce(reduction.type, reduction.op, inputs, {&output, 1}, count,
                       {.post = reduction.scale});
      return {};
    }
    Completion convert(DataType source, const std::byte* input, DataType target, std::byte* output,
                       std::size_t count) override {
      internal::convert(source, input, target, output, count);
      return {};
    }
  } space;
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

namespace {

constexpr int kDown = 0;

/// Down a binomial tree that is rooted at `root`: ceil(log2 n) hops, each member receives the data
/// once. Long data is cut into chunks by the caller, whose broadcasts then follow each other down
/// the tree. Thread rule: as CrossGroup.
class BinomialBroadcast : public CrossWork {
 public:
  // The parent of position p is p without its lowest set bit; its children are p + 2^k for every
  // 2^k below that bit (for the root: below n).
  BinomialBroadcast(CrossResources& resources, std::span<std::byte> staging, int root,
                    std::uint64_t sequence)
      : CrossWork(resources, sequence),
        staging_(staging),
        root_(root),
        position_((link().index() - root + link().size()) % link().size()),
        members_(link().size()) {
    if (position_ != 0) {
      const int parent = position_ & (position_ - 1);
      receive(workspace().receives, (parent + root_) % members_, kDown, staging_);
    }
  }
  bool poll() override {
    if (!workspace().receives.drained(link())) return false;
    if (!sent_) {
      send_to_children();
      sent_ = true;
    }
    return workspace().sends.drained(link()) && finish();
  }

 private:
  void send_to_children() {
    const int lowest_bit = position_ & -position_;
    int bit = 1;
    while (bit < members_ && (position_ == 0 || bit < lowest_bit)) bit *= 2;
    // The child with the deepest subtree first.
    for (bit /= 2; bit > 0; bit /= 2) {
      if (position_ + bit < members_) {
        send(workspace().sends, (position_ + bit + root_) % members_, kDown, staging_);
      }
    }
  }

  std::span<std::byte> staging_;
  int root_;
  int position_;  // counted from the root
  int members_;
  bool sent_ = false;
};

constexpr int kExchange = 0;

/// One message for each pair of members that have something for each other, at most n - 1 out of
/// and n - 1 into a member, all at once and each member beginning with another peer. Both ends know
/// the lengths, and nothing is sent for an empty span. Thread rule: as CrossGroup.
class DirectExchange : public CrossWork {
 public:
  /// `sends`, `receives`: by member; the own ones are ignored.
  DirectExchange(CrossResources& resources, std::span<const std::span<const std::byte>> sends,
                 std::span<const std::span<std::byte>> receives, std::uint64_t sequence)
      : CrossWork(resources, sequence) {
    const int own_index = link().index();
    const int members = link().size();
    for (int k = 1; k < members; ++k) {
      const int from =
          (own_index + members - k) % members;  // the peer that begins with this member comes first
      receive(workspace().receives, from, kExchange, receives[static_cast<std::size_t>(from)]);
    }
    for (int k = 1; k < members; ++k) {
      const int to = (own_index + k) % members;
      send(workspace().sends, to, kExchange, sends[static_cast<std::size_t>(to)]);
    }
  }
  bool poll() override {
    return workspace().receives.drained(link()) && workspace().sends.drained(link()) && finish();
  }
};

}  // namespace

const AllreduceAlgorithm& allreduce_algorithm(CrossAlgorithm setting) {
  switch (setting) {
    case CrossAlgorithm::automatic:
    case CrossAlgorithm::direct:
      return kDirectAllreduce;
    case CrossAlgorithm::ring:
      return kRingAllreduce;
  }
  throw Error(ErrorCode::invalid_argument,
              "there is no cross algorithm " + std::to_string(static_cast<int>(setting)));
}

CrossOptions cross_options(const Settings& settings) {
  return {.algorithm = settings.cross_algorithm, .small_message = settings.small_message};
}

void MessageCrossGroup::reserve(std::size_t operations, std::size_t staging_bytes) {
  const int members = resources_.link().size();
  const std::size_t gathered =
      kDisseminationAllreduce.work_bytes(std::min(staging_bytes, small_message_), members);
  resources_.reserve(operations, std::max(gathered, algorithm_.work_bytes(staging_bytes, members)));
}

Completion MessageCrossGroup::allreduce(const Reduction& reduction, std::span<std::byte> staging,
                                        std::uint64_t sequence) {
  if (staging.size() % size_of(reduction.type) != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} bytes of staging are no whole number of {} elements",
                            staging.size(), name_of(reduction.type)));
  }
  if (staging.empty()) return Completion();
  if (resources_.link().size() == 1) {
    const std::array<const std::byte*, 1> input{staging.data()};
    return resources_.space().reduce(reduction, input, staging.data(),
                                     staging.size() / size_of(reduction.type));
  }
  const bool is_small = staging.size() <= small_message_;
  return (is_small ? kDisseminationAllreduce : algorithm_)
      .start(resources_, reduction, staging, sequence);
}

Completion MessageCrossGroup::adasum(DataType type, std::span<std::byte> staging,
                                     std::vector<Range> tensors, std::uint64_t sequence) {
  return start_adasum(resources_, type, staging, std::move(tensors), sequence);
}

Completion MessageCrossGroup::broadcast(std::span<std::byte> staging, int root,
                                        std::uint64_t sequence) {
  const int members = resources_.link().size();
  if (staging.empty() || members == 1) return Completion();
  return Completion(std::make_unique<BinomialBroadcast>(resources_, staging, root, sequence));
}

Completion MessageCrossGroup::exchange(std::span<const std::span<const std::byte>> sends,
                                       std::span<const std::span<std::byte>> receives,
                                       std::uint64_t sequence) {
  if (resources_.link().size() == 1) return Completion();
  return Completion(std::make_unique<DirectExchange>(resources_, sends, receives, sequence));
}

}  // namespace hora::internal
