/// Engine: process sets. A change is a collective of the world without data: when it is decided,
/// every rank makes the same change, in the same order.
#include <hora/error.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/engine/engine.h"
#include "core/negotiation/diagnosis.h"
#include "core/tensor_text.h"

namespace hora {
namespace {

std::vector<int> ranks_in(const Signature& signature) {
  std::vector<int> ranks;
  for (const std::int64_t rank : signature.shape) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

}  // namespace

const Engine::Set& Engine::known_set(ProcessSet set, const std::string& tensor) const {
  if (set >= sets_.size()) {
    throw Error(ErrorCode::invalid_argument,
                "process set " + std::to_string(set) + " does not exist: there are " +
                    std::to_string(sets_.size()) +
                    " (0 is the world), others come from hora::add_process_set()",
                parts_.rank, tensor);
  }
  if (sets_[set]->removed) {
    throw Error(ErrorCode::invalid_argument, "process set " + std::to_string(set) + " was removed",
                parts_.rank, tensor);
  }
  return *sets_[set];
}

SetEngine& Engine::set_engine(ProcessSet set, const std::string& tensor) const {
  const SharedGuard lock(sets_lock_);
  const Set& known = known_set(set, tensor);
  if (!known.engine) {
    throw Error(ErrorCode::invalid_argument,
                "rank " + std::to_string(parts_.rank) + " is not in process set " +
                    std::to_string(set) + ", which has the ranks " + ranks_text(known.ranks) +
                    ": only they may submit to it",
                parts_.rank, tensor);
  }
  return *known.engine;
}

bool Engine::runs_on_device(const Request& request, ProcessSet set) const {
  return set_engine(set, request.name).on_device(request.signature);
}

const std::vector<int>& Engine::ranks_of(ProcessSet set) const {
  const SharedGuard lock(sets_lock_);
  return known_set(set).ranks;
}

std::vector<ProcessSet> Engine::waits_on(const std::string& name) const {
  std::vector<ProcessSet> sets;
  for (const SetEngine* engine : engines_) {
    if (engine->waits_for_peers(name)) sets.push_back(engine->id());
  }
  return sets;
}

ProcessSet Engine::change_sets(Request request) {
  const auto submission = submit(std::move(request));
  wait(*submission);
  return static_cast<ProcessSet>(submission->number);
}

ProcessSet Engine::add_set(const std::vector<int>& ranks) {
  const LockGuard one_at_a_time(sets_call_lock_);
  Request request{.name = std::string(kAddSetName), .signature = {}};
  request.signature.kind = OperationKind::add_process_set;
  request.signature.type = DataType::int64;
  request.signature.shape = {ranks.begin(), ranks.end()};
  request.location = Location{};
  // The first member on this rank's node allocates the memory of their control block.
  const Topology of_set = restricted(parts_.world.topology, ranks);
  const int node = of_set.node_of(parts_.rank);
  if (node < 0 || of_set.local_rank_of(parts_.rank) != 0) return change_sets(std::move(request));
  const std::size_t bytes = parts_.sets->control_block_bytes(of_set, node);
  const NodeMemory::Block control_block = parts_.world.memory->allocate(bytes);
  std::memset(control_block.data, 0, bytes);
  request.location = control_block.location;
  try {
    return change_sets(std::move(request));
  } catch (...) {
    if (!poisoned()) parts_.world.memory->release(control_block.data);
    throw;
  }
}

void Engine::remove_set(ProcessSet set) {
  const LockGuard one_at_a_time(sets_call_lock_);
  {
    const SharedGuard lock(sets_lock_);
    const Set& known = known_set(set);
    if (set == 0) {
      throw Error(ErrorCode::invalid_argument, "process set 0 is the world, which stays",
                  parts_.rank);
    }
    if (const auto open = known.engine ? known.engine->open_name() : std::nullopt) {
      throw Error(ErrorCode::invalid_use,
                  "process set " + std::to_string(set) + " cannot be removed: " +
                      tensor_text(*open) + " is in flight on it: wait for its handle first",
                  parts_.rank, *open);
    }
  }
  Request request{.name = std::string(kRemoveSetName), .signature = {}};
  request.signature.kind = OperationKind::remove_process_set;
  request.signature.type = DataType::int64;
  request.signature.shape = {static_cast<std::int64_t>(set)};
  request.location = Location{};
  change_sets(std::move(request));
}

void Engine::on_sets_change(std::shared_ptr<Submission> submission) {
  SetsChange change;
  if (submission->signature.kind == OperationKind::add_process_set) {
    change.plan.topology = restricted(parts_.world.topology, ranks_in(submission->signature));
    const int node = change.plan.topology.node_of(parts_.rank);
    if (node >= 0) {
      const int first = change.plan.topology.ranks_of_node[static_cast<std::size_t>(node)].front();
      change.plan.control_block_owner = parts_.world.topology.local_rank_of(first);
      change.plan.control_block =
          submission->peer_locations[static_cast<std::size_t>(change.plan.control_block_owner)];
    }
  }
  change.submission = std::move(submission);
  sets_changes_.push_back(std::move(change));
}

bool Engine::advance_sets_changes() {
  bool any = false;
  while (!sets_changes_.empty()) {
    SetsChange& change = sets_changes_.front();
    if (change.submission->signature.kind == OperationKind::remove_process_set) {
      remove(change);
    } else {
      if (!change.transport) {
        {
          const SharedGuard lock(sets_lock_);
          change.plan.id = static_cast<ProcessSet>(sets_.size());
        }
        change.transport = parts_.sets->begin(change.plan);
      }
      if (!change.transport->poll()) return any;
      add(change);
    }
    world().finish(change.submission, std::nullopt);
    sets_changes_.pop_front();
    any = true;
  }
  return any;
}

void Engine::add(SetsChange& change) {
  auto set = std::make_unique<Set>();
  set->ranks = ranks_in(change.submission->signature);
  set->transport = std::move(change.transport);
  if (change.plan.topology.node_of(parts_.rank) >= 0) {
    set->engine = std::make_unique<SetEngine>(set->transport->parts(), shared_, change.plan.id);
    engines_.push_back(set->engine.get());
  }
  change.submission->number = static_cast<int>(change.plan.id);
  const LockGuard lock(sets_lock_);
  sets_.push_back(std::move(set));
}

void Engine::disconnect_sets() {
  const SharedGuard lock(sets_lock_);
  for (const auto& set : sets_) {
    if (set->transport) set->transport->disconnect();
  }
}

void Engine::remove(SetsChange& change) {
  const LockGuard lock(sets_lock_);
  Set& set = *sets_[static_cast<std::size_t>(change.submission->signature.shape.front())];
  set.removed = true;
  set.transport->disconnect();
  if (!set.engine) return;
  set.engine->fail_undecided(
      Error(ErrorCode::invalid_use, "its process set was removed", parts_.rank));
  std::erase(engines_, set.engine.get());
}

}  // namespace hora
