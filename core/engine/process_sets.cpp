#include "core/engine/process_sets.h"

#include <hora/error.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/text.h"

namespace hora::internal {
namespace {

std::vector<int> ranks_in(const Signature& signature) {
  std::vector<int> ranks;
  for (const std::int64_t rank : signature.shape) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

Request request_of(OperationKind kind, std::string_view name, Shape numbers) {
  Request request{.name = name, .signature = {}};
  request.signature.kind = kind;
  request.signature.type = DataType::int64;
  request.signature.shape = std::move(numbers);
  request.location = Location{};
  return request;
}

[[noreturn]] void refuse(const std::string& why, int rank, std::string_view tensor) {
  const std::string about = tensor.empty() ? "" : tensor_text(tensor) + ": ";
  throw Error(ErrorCode::invalid_argument, about + why, rank, std::string(tensor));
}

}  // namespace

ProcessSets::ProcessSets(const EngineParts& parts, ProgressLock& progress_lock)
    : parts_(parts),
      progress_lock_(progress_lock),
      shared_{.parts = parts_,
              .sets_change =
                  [this](auto operation) {
                    progress_lock_.assert_held();
                    on_change(std::move(operation));
                  },
              .waits_on =
                  [this](const std::string& name) {
                    progress_lock_.assert_held();
                    return waits_on(name);
                  }} {
  Set& world = *sets_.emplace_back(std::make_unique<Set>());
  for (const auto& ranks : parts_.world.topology.ranks_of_node) {
    world.ranks.insert(world.ranks.end(), ranks.begin(), ranks.end());
  }
  std::sort(world.ranks.begin(), world.ranks.end());
  world.engine = std::make_unique<SetEngine>(parts_.world, shared_);
  world_ = world.engine.get();
  engines_.push_back(world_);
}

const ProcessSets::Set& ProcessSets::known(ProcessSet set, std::string_view tensor) const {
  if (set.number() >= sets_.size()) {
    refuse(fmt::format("process set {} does not exist: there are {} (0 is the world), others come "
                       "from hora::add_process_set()",
                       set.number(), sets_.size()),
           parts_.rank, tensor);
  }
  if (sets_[set.number()]->removed) {
    refuse("process set " + to_string(set) + " was removed", parts_.rank, tensor);
  }
  return *sets_[set.number()];
}

SetEngine& ProcessSets::engine_of(ProcessSet set, std::string_view tensor) const {
  // The world is there from construction on, and is never removed.
  if (set == kWorld) return *world_;
  const SharedGuard lock(sets_lock_);
  const Set& found = known(set, tensor);
  if (!found.engine) {
    refuse(fmt::format("rank {} is not in process set {}, which has the ranks {}: only they may "
                       "submit to it",
                       parts_.rank, set.number(), ranks_text(found.ranks)),
           parts_.rank, tensor);
  }
  return *found.engine;
}

const std::vector<int>& ProcessSets::ranks_of(ProcessSet set) const {
  const SharedGuard lock(sets_lock_);
  return known(set).ranks;
}

ProcessSet ProcessSets::add(const std::vector<int>& ranks, const Collective& agree) {
  const LockGuard one_at_a_time(call_lock_);
  Request request =
      request_of(OperationKind::add_process_set, kAddSetName, {ranks.begin(), ranks.end()});
  // The first member on this rank's node allocates the memory of their control block.
  const Topology of_set = restricted(parts_.world.topology, ranks);
  const int node = of_set.node_of(parts_.rank);
  if (node < 0 || of_set.local_rank_of(parts_.rank) != 0) {
    return ProcessSet(static_cast<std::uint32_t>(agree(std::move(request))));
  }
  const std::size_t bytes = parts_.sets->control_block_bytes(of_set, node);
  const NodeMemory::MemoryBlock control_block = parts_.world.memory->allocate(bytes);
  std::memset(control_block.data, 0, bytes);
  request.location = control_block.location;
  try {
    return ProcessSet(static_cast<std::uint32_t>(agree(std::move(request))));
  } catch (...) {
    if (!aborted().load()) parts_.world.memory->release(control_block.data);
    throw;
  }
}

void ProcessSets::remove(ProcessSet set, const Collective& agree) {
  const LockGuard one_at_a_time(call_lock_);
  {
    const SharedGuard lock(sets_lock_);
    const Set& found = known(set);
    if (set == kWorld) {
      throw Error(ErrorCode::invalid_argument, "process set 0 is the world, which stays",
                  parts_.rank);
    }
    const auto open = found.engine ? found.engine->operations().open_name() : std::nullopt;
    if (open) {
      throw Error(ErrorCode::invalid_use,
                  fmt::format("process set {} cannot be removed: {} is in flight on it: wait for "
                              "its handle first",
                              set.number(), tensor_text(*open)),
                  parts_.rank, *open);
    }
  }
  agree(request_of(OperationKind::remove_process_set, kRemoveSetName,
                   {static_cast<std::int64_t>(set.number())}));
}

std::vector<SetEngine*> ProcessSets::engines_in(bool removed_too) const {
  std::vector<SetEngine*> engines;
  const SharedGuard lock(sets_lock_);
  for (const auto& set : sets_) {
    if (set->engine && (removed_too || !set->removed)) engines.push_back(set->engine.get());
  }
  return engines;
}

void ProcessSets::report_stalls() {
  const SharedGuard lock(sets_lock_);
  for (const auto& set : sets_) {
    if (set->engine) set->engine->operations().report_stalls();
  }
}

Statistics ProcessSets::statistics() const {
  Statistics sum;
  for (const SetEngine* engine : all()) {
    const Statistics one = engine->operations().statistics();
    sum.operations += one.operations;
    sum.bytes += one.bytes;
    sum.in_flight += one.in_flight;
    sum.batches += one.batches;
  }
  return sum;
}

void ProcessSets::disconnect() {
  const SharedGuard lock(sets_lock_);
  for (const auto& set : sets_) {
    if (set->transport) set->transport->disconnect();
  }
}

std::vector<ProcessSet> ProcessSets::waits_on(const std::string& name) const {
  std::vector<ProcessSet> sets;
  for (const SetEngine* engine : engines_) {
    if (engine->operations().wait_for_peers(name)) sets.push_back(engine->id());
  }
  return sets;
}

void ProcessSets::on_change(std::shared_ptr<Operation> operation) {
  Change change;
  if (operation->signature.kind == OperationKind::add_process_set) {
    change.plan.topology = restricted(parts_.world.topology, ranks_in(operation->signature));
    const int node = change.plan.topology.node_of(parts_.rank);
    if (node >= 0) {
      const int first = change.plan.topology.ranks_of_node[static_cast<std::size_t>(node)].front();
      change.plan.control_block_owner = parts_.world.topology.local_rank_of(first);
      change.plan.control_block =
          operation->peer_locations[static_cast<std::size_t>(change.plan.control_block_owner)];
    }
  }
  change.operation = std::move(operation);
  changes_.push_back(std::move(change));
}

bool ProcessSets::advance_changes() {
  bool any = false;
  while (!changes_.empty()) {
    Change& change = changes_.front();
    if (change.operation->signature.kind == OperationKind::remove_process_set) {
      carry_out_removal(change);
    } else if (!advance_addition(change)) {
      return any;
    }
    world().operations().finish(change.operation, std::nullopt);
    changes_.pop_front();
    any = true;
  }
  return any;
}

/// False while the set's transport is in the making.
bool ProcessSets::advance_addition(Change& change) {
  if (!change.transport) {
    {
      const SharedGuard lock(sets_lock_);
      change.plan.id = ProcessSet(static_cast<std::uint32_t>(sets_.size()));
    }
    change.transport = parts_.sets->begin(change.plan);
  }
  if (!change.transport->poll()) return false;
  auto set = std::make_unique<Set>();
  set->ranks = ranks_in(change.operation->signature);
  set->transport = std::move(change.transport);
  if (change.plan.topology.node_of(parts_.rank) >= 0) {
    set->engine = std::make_unique<SetEngine>(set->transport->parts(), shared_, change.plan.id);
    engines_.push_back(set->engine.get());
  }
  change.operation->number = static_cast<int>(change.plan.id.number());
  const LockGuard lock(sets_lock_);
  sets_.push_back(std::move(set));
  return true;
}

void ProcessSets::carry_out_removal(const Change& change) {
  const LockGuard lock(sets_lock_);
  Set& set = *sets_[static_cast<std::size_t>(change.operation->signature.shape.front())];
  set.removed = true;
  set.transport->disconnect();
  if (!set.engine) return;
  set.engine->operations().fail_undecided(
      Error(ErrorCode::invalid_use, "its process set was removed", parts_.rank));
  std::erase(engines_, set.engine.get());
}

}  // namespace hora::internal
