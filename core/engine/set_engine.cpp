
#include <spdlog/fmt/fmt.h>

#include <exception>
#include <iterator>

#include "core/base/log.h"

namespace hora::internal {
namespace {

/// Before the unit starts.
void trace_unit(const Tracer& trace, std::uint64_t number, const Unit& unit,
                const std::vector<std::shared_ptr<Operation>>& operations) {
  if (!trace.on()) return;
  std::vector<TensorFacts> tensors;
  for (const auto& operation : operations) {
    tensors.push_back({operation->name, operation->memory.bytes(), operation->decided_at});
  }
  const bool reduces =
      unit.kind == OperationKind::allreduce || unit.kind == OperationKind::reduce_scatter;
  const UnitFacts facts{.operation = name_of(unit.kind),
                        .type = name_of(unit.type),
                        .op = reduces ? name_of(unit.op) : std::string_view(),
                        .bytes = unit.bytes,
                        .tensors = tensors.size(),
                        .chunks = unit.chunks()};
  trace.record(
      [&](Recording& recording) { recording.planned(trace.unit(number), facts, tensors); });
}

Error timeout_error(const WaitReport& report) {
  return Error(ErrorCode::timeout, timeout_text(report), report.rank, report.name);
}

/// The error of a collective that the data path has refused.
std::optional<Error> refusal_of(const Operation& operation) {
  if (!operation.result || !operation.result->refusal()) return std::nullopt;
  const Error& why = *operation.result->refusal();
  return Error(why.code(), why.what(), why.rank(), operation.name);
}

[[noreturn]] void refuse_message(const std::string& from, const std::string& problem) {
  throw Error(
      ErrorCode::transport,
      fmt::format("negotiation: message from {}: {}. Do all ranks run the same build of hora?",
                  from, problem));
}

/// For a message of one cause to leave; peers that are gone take none.
constexpr auto kSendTime = std::chrono::milliseconds(10);

/// The message, of a kind that `from` sends.
template <class Expected>
const Expected& as(const Message& message, const std::string& from) {
  const Expected* const expected = std::get_if<Expected>(&message);
  if (!expected) refuse_message(from, "of a kind that is never sent from there");
  return *expected;
}

Message read_message(std::span<const std::byte> bytes, const MessageLimits& limits,
                     const std::string& from) {
  auto message = decode(bytes, &limits);
  if (!message) refuse_message(from, message.error());
  if (const auto* const end = std::get_if<JobEnd>(&*message)) {
    throw EndedElsewhere(end->code, end->text, end->rank, end->tensor);
  }
  return *std::move(message);
}

std::span<const Rounds> after(const Message& message) {
  if (const Up* const up = std::get_if<Up>(&message)) return up->after;
  const Decision* const decision = std::get_if<Decision>(&message);
  return decision ? decision->after : std::span<const Rounds>();
}

}  // namespace

LeaderIo::LeaderIo(const Topology& topology, int node, int id_capacity,
                   NodeControlBlock& control_block, TreeLink* tree, ProcessSet set,
                   Duration warning_interval, std::function<std::string(int)> remark,
                   const EagerUse& eager)
    : parent_(tree_parent(node, topology.radix)),
      children_(tree_children(node, topology.nodes(), topology.radix)),
      limits_(message_limits(topology, id_capacity, 0)),
      control_block_(control_block),
      tree_(tree),
      leader_(
          topology, node, id_capacity,
          {.retire = [&control_block](Id id, bool idle) { return control_block.retire(id, idle); },
           .ready_ranks = [&control_block](Id id) { return control_block.ready_ranks(id); },
           .remark = std::move(remark),
           .eager = eager},
          set, warning_interval),
      spread_(eager.spread),
      node_(node),
      nodes_(topology.nodes()),
      local_ranks_(topology.ranks_of_node[static_cast<std::size_t>(node)]) {}

bool LeaderIo::work(Duration now) {
  bool any = false;
  for (int r = 0; r < control_block_.local_size(); ++r) {
    while (const auto bytes = control_block_.pop_mail(r)) {
      any = true;
      const std::string from = fmt::format("local rank {}", r);
      leader_.on_mail(r, as<Mail>(read_message(*bytes, limits_, from), from), now);
    }
  }
  while (const auto id = tree_ ? control_block_.pop_arrival() : std::nullopt) {
    any = true;
    leader_.on_node_ready(*id, control_block_.last_arrival(*id, local_ranks_),
                          control_block_.take_resized(*id));
  }
  while (const auto received = tree_ ? tree_->receive() : std::nullopt) {
    any = true;
    read(*received, now);
  }
  obey_held(now);
  any |= leader_.on_joined_arrivals();
  // A leader that waits looks often, and mostly has nothing to say.
  if (any || has_more_ || !leader_.is_idle() ||
      leader_.deadline().value_or(Duration::max()) <= now) {
    has_more_ = hand_out(now);
    any |= has_more_;
  }
  any |= flush_log();
  return any;
}

void LeaderIo::send_end(const Error& error) noexcept {
  if (!tree_) return;
  try {
    const auto bytes = encode(JobEnd{error.code(), error.rank(), error.what(), error.tensor()});
    if (parent_ >= 0) tree_->send(parent_, bytes);
    for (const int child : children_) tree_->send(child, bytes);
    const auto end = std::chrono::steady_clock::now() + kSendTime;
    while (!tree_->flushed() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  } catch (const std::exception&) {
    // The transport has failed, or memory: neighbours find a cause of their own.
  }
}

void LeaderIo::read(const TreeLink::Received& received, Duration now) {
  const int sender = received.node;
  Message message = read_message(received.bytes, limits_, fmt::format("node {}", sender));
  if (NodeSum* const sum = std::get_if<NodeSum>(&message)) {
    if (leader_.on_sum(sender, std::move(*sum), now)) return;
    refuse_message(fmt::format("node {}", sender), "a sum that this node cannot expect");
  }
  const bool holds_earlier =
      std::ranges::any_of(held_, [&](const auto& held) { return held.first == sender; });
  if (holds_earlier || !leader_.reached(after(message))) {
    held_.emplace_back(sender, std::move(message));
  } else {
    obey(sender, message, now);
  }
}

void LeaderIo::obey(int sender, const Message& message, Duration now) {
  const std::string from = fmt::format("node {}", sender);
  if (sender == parent_) {
    const auto& decision = as<Decision>(message, from);
    const std::string problem = leader_.problem_in(decision);
    if (!problem.empty()) refuse_message(from, problem);
    leader_.on_decision(decision);
  } else if (std::find(children_.begin(), children_.end(), sender) != children_.end()) {
    leader_.on_up(sender, as<Up>(message, from), now);
  } else {
    refuse_message(from, "it is neither above nor below this node");
  }
}

/// Obeys what can be read by now, of each sender in order.
void LeaderIo::obey_held(Duration now) {
  std::set<int> waiting;
  std::erase_if(held_, [&](const auto& held) {
    const auto& [sender, message] = held;
    if (waiting.contains(sender) || !leader_.reached(after(message))) {
      waiting.insert(sender);
      return false;
    }
    obey(sender, message, now);
    return true;
  });
}

bool LeaderIo::hand_out(Duration now) {
  const LeaderOutput output = leader_.take(now);
  for (const NodeSum& sum : output.sums) {
    const auto bytes = encode(sum);
    for (int node = 0; node < nodes_; ++node) {
      if (node != node_) tree_->send(node, bytes);
    }
  }
  for (const auto& sums : output.complete) {
    spread_(sums);
    control_block_.push_run({&sums.front().id, 1}, LogBatch::Kind::complete);
    control_block_.signal_others();
  }
  if (!output.up.empty()) tree_->send(parent_, encode(output.up));
  for (const Decision& decision : output.decisions) {
    if (!children_.empty()) {
      Decision plain = decision;
      for (Assigned& assigned : plain.assigned) assigned.locations.clear();
      const auto bytes = encode(plain);
      for (const int child : children_) tree_->send(child, bytes);
    }
    for (const Id id : decision.retired) {
      // Its last arriver on this node may be about to append it: that takes two instructions.
      while (!control_block_.retire(id, false)) spin_pause();
    }
    for_log_.push_back(decision);
    flush_log();
  }
  for (const std::string& warning : output.warnings) log().warn("{}", warning);
  arrivals_.insert(arrivals_.end(), output.arrivals.begin(), output.arrivals.end());
  expired_.insert(expired_.end(), output.expired.begin(), output.expired.end());
  return !output.up.empty() || !output.decisions.empty();
}

bool LeaderIo::flush_log() {
  bool any = false;
  while (!for_log_.empty()) {
    const Decision& decision = for_log_.front();
    if (decision.only_runs()) {
      control_block_.push_run(decision.run);
    } else if (!control_block_.push_control(encode(decision))) {
      break;
    }
    any = true;
    for_log_.pop_front();
  }
  if (any) control_block_.signal_others();
  return any;
}

void Batches::start(std::vector<std::shared_ptr<Operation>>& decided) {
  signatures_.clear();
  for (const auto& operation : decided) signatures_.push_back(&operation->signature);
  PlanLimits limits{.fusion_bytes = set_.engine.settings.fusion_threshold,
                    .alone_bytes = set_.single_node() ? kAloneBytes : 0};
  for (std::size_t next = 0; next < signatures_.size();) {
    bound_.clear();
    Unit& unit = bound_.unit;
    // One kind, type and operation: if one of its tensors goes through host memory, all do.
    const bool on_device = set_.on_device(*signatures_[next]);
    limits.chunk_bytes = longest_chunk(signatures_[next]->kind, on_device);
    next = plan_unit(signatures_, next, limits, unit);
    if (!on_device) unit.device = DeviceKind::cpu;
    if (unit.device != DeviceKind::cpu && set_.parts.device_spans_nodes) unit.make_one_chunk();
    Started& entry = started_.push();
    entry.number = ++number_;
    entry.operations.clear();
    for (const UnitTensor& tensor : unit.tensors) {
      entry.operations.push_back(std::move(decided[tensor.index]));
    }
    trace_unit(set_.trace, entry.number, unit, entry.operations);
    bind(entry.operations);
    set_.parts.data_path->start(std::move(bound_));
  }
  decided.clear();
}

std::size_t Batches::longest_chunk(OperationKind kind, bool on_device) const {
  const Topology& topology = set_.topology();
  if (topology.nodes() == 1) return 0;
  const std::size_t setting = set_.engine.settings.chunk_size;
  if (on_device) return device_chunk_limit(setting, topology.nodes(), topology.smallest_node());
  return kind == OperationKind::broadcast ? broadcast_chunk_limit(setting)
                                          : chunk_limit(setting, topology.nodes());
}

void Batches::note_started(BoundUnit& unit) {
  const auto& operations = started_[unit.number - started_.front().number].operations;
  auto own = static_cast<std::size_t>(set_.local_rank);
  for (const auto& operation : operations) {
    TensorMemory& memory = operation->memory;
    unit.memory[own] = memory.own_data();  // another, if it was cancelled
    if (!set_.single_node()) memory.note_messages();
    own += static_cast<std::size_t>(set_.local_size);
  }
  if (!set_.record.on()) return;
  const Duration time = now();
  for (const auto& operation : operations) set_.record.started(operation->record, time);
}

/// The rest of `bound_`, beside its unit, whose tensors are those of `operations`.
void Batches::bind(std::span<const std::shared_ptr<Operation>> operations) {
  BoundUnit& bound = bound_;
  const Unit& unit = bound.unit;
  bound.number = number_;
  bound.on_start = [this](BoundUnit& started) { note_started(started); };
  bound.scale = unit.postscale;
  if (unit.kind == OperationKind::add_process_set) shares_device_ = true;
  bound.takes_turns = shares_device_;
  if (unit.op == ReduceOp::average) bound.scale /= set_.topology().size();
  if (unit.kind == OperationKind::broadcast) {
    bound.root_node = set_.topology().node_of(unit.root);
    bound.root_local = set_.topology().local_rank_of(unit.root);
    bound.root_index = set_.topology().index_of(unit.root);
  }
  bound.local_size = set_.local_size;
  for (const auto& operation : operations) {
    operation->unit = number_;
    if (operation->memory.work()) bound.work.push_back(operation->memory.work());
    if (operation->memory.is_in_place()) bound.is_lent = true;
    if (!operation->owner) bound.is_joined_proxy = true;
    if (is_exchange(unit.kind)) {
      bind_exchange(bound, *operation);
    } else {
      bind_tensor(bound, *operation, unit.device == DeviceKind::cpu);
    }
  }
}

void Batches::bind_tensor(BoundUnit& bound, const Operation& operation, bool on_host) const {
  const TensorMemory& memory = operation.memory;
  const std::vector<Location>& locations = operation.locations;
  const std::size_t position = bound.memory.size() / static_cast<std::size_t>(bound.local_size);
  if (!on_host) bound.places.insert(bound.places.end(), locations.begin(), locations.end());
  if (std::byte* const to = memory.fetches_to()) bound.fetches.push_back({position, to});
  if (const std::byte* const from = memory.published_from()) {
    bound.publishes.push_back({position, from});
  }
  for (int r = 0; r < bound.local_size; ++r) {
    std::byte* address = memory.own_data();
    const Location location = locations[static_cast<std::size_t>(r)];
    if (r != set_.local_rank && memory.bytes() > 0 && on_host) {
      address = location == kNowhere ? nullptr : set_.memory().address(r, location, memory.bytes());
    }
    bound.memory.push_back(address);
  }
}

void Batches::bind_exchange(BoundUnit& bound, const Operation& operation) const {
  BoundExchange& exchange = bound.exchange;
  exchange.row_bytes = operation.signature.row_bytes();
  exchange.result = operation.result;
  exchange.last = operation.last_extents;
  exchange.repeats = operation.repeats;
  const std::size_t count = extents_of_rank(operation.signature.kind, set_.topology().size());
  for (int r = 0; r < bound.local_size; ++r) {
    const auto local = static_cast<std::size_t>(r);
    const bool is_own = r == set_.local_rank;
    std::byte* const header = is_own ? operation.memory.header()
                                     : set_.memory().address(r, operation.locations[local],
                                                             ExchangeHeader::bytes_for(count));
    const ExchangePart part(header, count, exchange.row_bytes, set_.ranks_of_node()[local]);
    exchange.rows.push_back(part.extents);
    if (operation.memory.work()) exchange.room.emplace_back(ExchangeHeader::room_of(header));
    const bool pushes = part.header.payload == kNowhere;
    if (set_.single_node() && may_push(operation.signature.kind)) {
      exchange.pushes.push_back(pushes);
      exchange.expected.push_back(part.header.expected);
    }
    std::byte* input = is_own ? operation.memory.own_data() : nullptr;
    if (!is_own && part.header.bytes > 0 && !operation.memory.work() && !pushes) {
      input = set_.memory().address(r, part.header.payload,
                                    static_cast<std::size_t>(part.header.bytes));
    }
    bound.memory.push_back(input);
  }
}

SetEngine::SetEngine(const SetParts& parts, const EngineParts& engine,
                     const std::atomic<bool>& aborted, ProcessSet id)
    : set_{.parts = parts, .engine = engine, .id = id},
      log_limits_(message_limits(set_.topology(), control_block().id_capacity(),
                                 static_cast<std::size_t>(set_.local_size))),
      waits_(set_),
      operations_(set_, aborted),
      batches_(set_) {
  if (set_.local_rank != 0) return;
  const auto remark = [this](int local_rank) {
    return waits_.state_of(set_.ranks_of_node()[static_cast<std::size_t>(local_rank)]);
  };
  leader_io_.emplace(set_.topology(), set_.node, control_block().id_capacity(), control_block(),
                     parts.tree, id, engine.settings.stall_warning, remark, eager_use());
  // Not where the record is off: for benchmarks of what both cost.
  const bool counts = !engine.flight || set_.record.on();
  if (set_.root() == engine.rank && counts) stragglers_.emplace(set_);
}

bool SetEngine::make_progress(Duration time) {
  bool progress = operations_.flush_mail();
  if (leader_io_) {
    progress |= leader_io_->work(time);
    for (const auto& [id, last] : leader_io_->take_arrivals()) {
      if (stragglers_) stragglers_->count(id, last);
    }
    for (const Expired& expired : leader_io_->take_expired()) {
      throw timeout_error(waits_.report_on(expired));
    }
  }
  while (control_block().next_batch(log_batch_)) {
    const bool is_complete = log_batch_.kind == LogBatch::Kind::complete;
    const Decision& decision = decision_in(log_batch_);
    is_complete ? finish_eager(decision) : execute(decision);
    decided_at_ = time;
    progress = true;
  }
  progress |= data_path().advance();
  progress |= finish_completed();
  return progress;
}

/// In what it returns, all ids, ranks and signatures are within the set's limits.
const Decision& SetEngine::decision_in(LogBatch& batch) {
  constexpr const char* kLog = "this node's log";
  if (batch.kind == LogBatch::Kind::control) {
    return decision_ = as<Decision>(read_message(batch.payload, log_limits_, kLog), kLog);
  }
  if (!decision_.only_runs()) decision_ = {};
  decision_.run.swap(batch.ids);
  for (const Id id : decision_.run) {
    if (slot_of(id) < log_limits_.id_capacity) continue;
    refuse_message(kLog, fmt::format("id {}, of slot {}", id, slot_of(id)));
  }
  return decision_;
}

/// Who came last on the only node, where no leader sees the ids that run.
LastArrival SetEngine::last_of_node(Id id) const {
  return control_block().last_arrival(id, set_.ranks_of_node());
}

/// For the timeline: of each id that runs. Of several nodes the root alone knows.
std::vector<LastArrival> SetEngine::last_arrivals(const Decision& decision) const {
  std::vector<LastArrival> last;
  if (!set_.trace.on() || (!set_.single_node() && !stragglers_)) return last;
  for (const Id id : decision.run) {
    last.push_back(set_.single_node() ? last_of_node(id) : stragglers_->last_of(id));
  }
  return last;
}

void SetEngine::execute(const Decision& decision) {
  if (stragglers_) {
    stragglers_->note_names(decision);
    for (const Id id : decision.run) {
      if (!set_.single_node()) break;
      if (const LastArrival last = last_of_node(id); last.rank >= 0) stragglers_->count(id, last);
    }
  }
  operations_.take(decision, last_arrivals(decision), decided_);
  for (const Failed& failed : decision.failed) operations_.fail(failed);
  batches_.start(decided_);
  if (decision.all_joined) operations_.end_join(decision.last_joined);
  if (!decision.departed.empty()) {
    waits_.note_departed(decision.departed);
    operations_.fail_undecided(Error(
        ErrorCode::shut_down,
        ranks_have(decision.departed) + " called shutdown(): no collective can complete any more",
        decision.departed.front()));
  }
  for (const std::string& name : decision.asked) operations_.note_answer(name);
  if (decision.finished) all_departed_.store(true);
}

void SetEngine::finish_eager(const Decision& complete) {
  operations_.take(complete, last_arrivals(complete), decided_, true);
  for (const auto& operation : decided_) {
    Unit unit;
    unit.type = operation->signature.type;
    unit.op = operation->signature.op;
    unit.bytes = operation->signature.bytes();
    unit.make_one_chunk();
    trace_unit(set_.trace, 0, unit, {operation});
    set_.trace.completed(0);
    operations_.finish(operation, std::nullopt);
  }
  decided_.clear();
}

/// By local rank. `own`: this rank's operation, which waits for the id.
std::vector<std::byte*> SetEngine::tensors_of_node(const Operation& own, Id id) const {
  std::vector<std::byte*> tensors;
  for (int r = 0; r < set_.local_size; ++r) {
    const bool is_own = r == set_.local_rank;
    const Location at = control_block().location(id, r);
    tensors.push_back(is_own ? own.memory.own_data()
                             : set_.memory().address(r, at, own.memory.bytes()));
  }
  return tensors;
}

EagerUse SetEngine::eager_use() {
  const auto node_sum = [this](Id id) {
    const auto own = operations_.waiting(id);
    const auto tensors = tensors_of_node(*own, id);
    std::vector<std::uint8_t> sum(own->memory.bytes());
    std::byte* const output = std::as_writable_bytes(std::span(sum)).data();
    const std::vector<const std::byte*> inputs(tensors.begin(), tensors.end());
    data_path().reduce(own->signature, inputs, {&output, 1}, own->signature.prescale, 1.0);
    return sum;
  };
  const auto spread = [this](std::span<const NodeSum> sums) {
    const auto own = operations_.waiting(sums.front().id);
    std::vector<const std::byte*> inputs;
    for (const NodeSum& sum : sums) inputs.push_back(std::as_bytes(std::span(sum.data)).data());
    const double size = own->signature.op == ReduceOp::average ? set_.topology().size() : 1;
    data_path().reduce(own->signature, inputs, tensors_of_node(*own, sums.front().id), 1.0,
                       own->signature.postscale / size);
  };
  constexpr std::size_t kMost = std::size_t{16} << 10;  // longer ones are slower, for their copies
  return {std::min(set_.engine.settings.small_message, kMost), node_sum, spread};
}

bool SetEngine::finish_completed() {
  bool any = false;
  while (const Batches::Started* const unit = batches_.completed()) {
    set_.trace.completed(unit->number);
    const Duration time = now();
    for (const auto& operation : unit->operations) {
      if (changes_sets(operation->signature.kind)) {
        changes_.push_back(operation);
      } else {
        operations_.finish(operation, refusal_of(*operation), time);
      }
    }
    batches_.pop_completed();
    any = true;
  }
  return any;
}

WaitReport SetEngine::report_on(const Operation& operation) const {
  return waits_.report_on(operation, leader_io_
                                         ? std::optional(leader_io_->presence_of(operation.name))
                                         : std::nullopt);
}

std::optional<Error> SetEngine::watch(Duration time) {
  constexpr Duration kPatience = std::chrono::seconds(1);
  operations_.report_stalls(time);
  if (const auto operation = operations_.timed_out(time)) {
    set_.trace.marked(operation->name, "timed out");
    return timeout_error(report_on(*operation));
  }
  if (waits_.is_due_for_processes(time)) {
    const bool any_waits = std::ranges::any_of(operations_.unfinished(), [&](const auto& one) {
      return one->announced() && one->submitted <= time - kPatience;
    });
    if (auto gone = waits_.gone_rank(time, any_waits)) return gone;
    if (auto stopped = waits_.stopped_rank(time)) return stopped;
  }
  if (!waits_.is_due(time)) return std::nullopt;
  const auto stalled = stall(time);
  if (!waits_.look(time, stalled)) return std::nullopt;
  const auto& operation = stalled->operation;
  log().warn("{}", operation ? stall_text(report_on(*operation), seconds_text(stalled->age))
                             : waits_.text_of_call(*stalled));
  return std::nullopt;
}

std::optional<Waits::Stall> SetEngine::stall(Duration time) const {
  if (auto longest = operations_.stalled(time)) {
    const Duration age = time - longest->submitted;
    return Waits::Stall{age, std::move(longest)};
  }
  if (const auto joined = operations_.joined_since()) {
    return waits_.join_stall(time - std::max(*joined, decided_at_));
  }
  return waits_.departure_stall(time);
}

namespace {

/// The lowest of a node's ranks that wait logs for all; if it stops, another one after this time.
constexpr Duration kTurn = std::chrono::seconds(1);
/// Between two looks at processes; the most, unless this one was stopped.
constexpr Duration kLook = std::chrono::seconds(1);
constexpr Duration kLongestLook = std::chrono::seconds(2);
/// From horarun's limit to this one.
constexpr Duration kLauncherFirst = std::chrono::seconds(2);

/// Between two looks of those who watch.
constexpr std::chrono::nanoseconds kRecordInterval = std::chrono::milliseconds(500);

/// " is stopped (SIGSTOP)", " has ended" and the like; empty for other states.
std::string_view state_text(ProcessState state) {
  switch (state) {
    case ProcessState::gone:
      return " has ended";
    case ProcessState::stopped:
      return " is stopped (SIGSTOP)";
    case ProcessState::traced:
      return " is stopped by a debugger";
    case ProcessState::blocked:
      return " is blocked inside the kernel (a disk, or a network file system)";
    default:
      return {};
  }
}

/// Describes a rank whose threads do not wait in hora.
std::string_view own_code_text(ProcessState state) {
  switch (state) {
    case ProcessState::running:
      return " runs its own code";
    case ProcessState::sleeping:
      return " is in its own code, asleep (it waits for a lock, a file, input or a process)";
    default:
      return " is in its own code";
  }
}

std::string duration_text(std::chrono::milliseconds length) {
  if (length.count() % 1000 != 0) return fmt::format("{} ms", length.count());
  return fmt::format("{} s", length.count() / 1000);
}

std::string unknown_text(const WaitReport& report) {
  const std::string text =
      fmt::format("whether {} is not known on this one", ranks_have(report.unknown));
  if (report.reporter == report.root) return text + ": nothing has come from their nodes";
  if (!report.root_is_silent) {
    return fmt::format("{}: see the warnings of rank {} (HORA_STALL_WARNING)", text, report.root);
  }
  return fmt::format("{}: rank {}, which would know, does not answer", text, report.root);
}

std::string unfinished_text(const WaitReport& report) {
  const std::string text = "every rank has submitted it, and it is under way: ";
  if (report.unfinished.empty()) return text + "its result is about to be taken over";
  return fmt::format("{}of this node {} not finished it{}", text, ranks_have(report.unfinished),
                     report.has_other_nodes ? ", and data of other nodes may be missing" : "");
}

/// Adds what other nodes have reported, and what of this node no look of its own has added.
void add_heard(WaitReport& report, const Presence& presence) {
  std::ranges::copy_if(presence.remarks, std::back_inserter(report.remarks),
                       [](const std::string& remark) { return !remark.empty(); });
}

}  // namespace

std::string rank_state_text(const ProcessIdentity& process, ProcessState state,
                            const std::optional<SharedNote::Note>& submitted,
                            const std::optional<SharedNote::Note>& waits_for, Duration now) {
  std::string text = to_string(process);
  if (const std::string_view known = state_text(state); !known.empty()) {
    text += known;
  } else if (waits_for) {
    text +=
        fmt::format(" waits in hora for {}, for {}", tensor_text(waits_for->text, waits_for->set),
                    seconds_text(now - waits_for->time));
  } else {
    text += own_code_text(state);
  }
  if (!submitted) return text + ", and has submitted nothing yet";
  return fmt::format("{}, and has last submitted {}, {} ago", text,
                     tensor_text(submitted->text, submitted->set),
                     seconds_text(now - submitted->time));
}

std::string stall_text(const WaitReport& report, const std::string& waited) {
  const std::string tensor = tensor_text(report.name, report.set);
  std::string text, remarks = remarks_text(report.remarks);
  if (report.decided) {
    text = unfinished_text(report);
  } else if (!report.unknown.empty()) {
    text = unknown_text(report);
  } else if (report.missing.empty()) {
    text = fmt::format("every rank has submitted it, and rank {} has not decided it", report.root);
  }
  if (report.decided || report.missing.empty()) {
    text = fmt::format("{} is not complete {} after rank {} has submitted it: {}", tensor, waited,
                       report.rank, text);
  } else {
    std::string who = named_ranks(report.missing);
    // The one rank is named once, with its process.
    if (report.remarks.size() == 1 && text.empty() && remarks.starts_with(who + " (")) {
      who = remarks.substr(0, remarks.find(')') + 1);
      remarks.replace(0, who.size(), "it");
    }
    text = fmt::format("{} did not come to {} within {} of rank {}{}{}", who, tensor, waited,
                       report.rank, text.empty() ? "" : ", and ", text);
  }
  return fmt::format("{}{}{}{} Is one of them slow, stopped or gone?", text,
                     remarks.empty() ? "" : "; ", remarks,
                     report.decided ? "." : ". Do all ranks call the same collectives?");
}

std::string timeout_text(const WaitReport& report) {
  return fmt::format(
      "{} Where a rank may work alone for longer (a validation, a checkpoint), raise {}",
      stall_text(report, duration_text(report.limit.length)),
      report.limit.is_of_call ? "the timeout of this call (0: HORA_TIMEOUT)"
                              : "HORA_TIMEOUT (0: never), or give the call a timeout");
}

std::string Waits::state_of(int rank) const {
  const ProcessIdentity process = identity(rank);
  const SetParts& world = set_.engine.world;
  const RankStatus& status = world.control_block->status(world.topology.local_rank_of(rank));
  return rank_state_text(process, process_state(process.pid), status.submitted.read(),
                         status.waits_for.read(), now());
}

WaitReport Waits::report_on(const Operation& operation,
                            const std::optional<Presence>& known) const {
  WaitReport report = known_of(operation.name, operation.limit, set_.rank());
  report.decided = operation.decided;
  if (report.decided) {
    for (const int r : set_.parts.control_block->behind(operation.unit)) {
      report.unfinished.push_back(set_.ranks_of_node()[static_cast<std::size_t>(r)]);
    }
    add_remarks(report, report.unfinished);
    return report;
  }
  const Presence presence = known ? *known : presence_of(operation);
  note_absent(report, presence);
  report.root_is_silent = report.rank != report.root && operation.root_is_silent(now());
  std::vector<int> absent = report.missing;
  absent.insert(absent.end(), report.unknown.begin(), report.unknown.end());
  // Its leader may be what keeps the root's answer away, whether it has submitted the name or not.
  if (report.root_is_silent) absent.push_back(set_.ranks_of_node().front());
  add_remarks(report, absent);
  add_heard(report, presence);
  return report;
}

WaitReport Waits::report_on(const Expired& expired) const {
  const Expiry& expiry = expired.expiring.expiry;
  WaitReport report =
      known_of(expired.expiring.name, {expiry.limit, expiry.is_of_call}, expired.expiring.rank);
  note_absent(report, expired.presence);
  add_heard(report, expired.presence);
  return report;
}

/// The part of a report that holds whatever has become of it; `rank`: who has submitted it.
WaitReport Waits::known_of(const std::string& name, const TimeLimit& limit, int rank) const {
  return {.name = name,
          .set = set_.id,
          .limit = limit,
          .rank = rank,
          .root = set_.root(),
          .reporter = set_.rank(),
          .has_other_nodes = !set_.single_node()};
}

/// Adds a remark on each of `ranks` that is on this node.
void Waits::add_remarks(WaitReport& report, const std::vector<int>& ranks) const {
  for (const int rank : set_.ranks_of_node()) {
    if (rank == report.rank || std::ranges::count(ranks, rank) == 0) continue;
    report.remarks.push_back(state_of(rank));
  }
}

void Waits::note_absent(WaitReport& report, const Presence& presence) const {
  for (const int rank : set_.topology().ranks()) {
    if (rank == report.rank || std::ranges::count(presence.ready, rank) > 0) continue;
    const bool is_missing = std::ranges::count(presence.missing, rank) > 0;
    (is_missing ? report.missing : report.unknown).push_back(rank);
  }
}

/// By the ready bits of this node.
Presence Waits::presence_of(const Operation& operation) const {
  Presence presence{operation.name, {}, {}};
  if (!operation.id) return presence;
  const LocalRanks ready = set_.parts.control_block->ready_ranks(*operation.id);
  // Cleared when all have become ready.
  const bool all = !ready[static_cast<std::size_t>(set_.local_rank)];
  for (std::size_t r = 0; r < set_.ranks_of_node().size(); ++r) {
    (all || ready[r] ? presence.ready : presence.missing).push_back(set_.ranks_of_node()[r]);
  }
  return presence;
}

bool Waits::look(Duration time, const std::optional<Stall>& stall) {
  next_look_ = time + std::min<Duration>(kOverdueTick, warning_ / 4);
  StallBoard& board = set_.parts.control_block->stall_board();
  board.set_waiting(set_.local_rank, stall.has_value());
  // Other ranks that wait, too, set their flags until the next look.
  if (!stall || waits_since_ == Duration{}) {
    waits_since_ = stall ? time : Duration{};
    return false;
  }
  const Duration head_start = board.is_lowest(set_.local_rank) ? Duration{} : kTurn;
  return time - waits_since_ >= head_start &&
         board.claim(time, std::max<Duration>(warning_, stall->age), head_start);
}

std::string Waits::text_of_call(const Stall& stall) const {
  const std::string waited = fmt::format("{} has waited {} in {}", to_string(identity(set_.rank())),
                                         seconds_text(stall.age), stall.call);
  if (stall.missing.empty()) {
    return waited +
           ", which all ranks have called, for its last messages to leave: is a rank stopped, or "
           "the network between their hosts blocked?";
  }
  bool is_hearsay = false;
  std::vector<std::string> remarks;
  for (const int rank : stall.missing) {
    if (is_of_node(rank)) {
      remarks.push_back(state_of(rank));
      continue;
    }
    is_hearsay = true;
    const ProcessIdentity process = identity(rank);
    remarks.push_back(to_string(process));
    if (is_of_host(rank)) remarks.back() += state_text(process_state(process.pid));
  }
  return fmt::format(
      "{} for ranks that have not called it{}: {}. Is one of them slow, stopped or gone?", waited,
      is_hearsay ? ", as far as this node knows" : "", remarks_text(remarks));
}

std::optional<Waits::Stall> Waits::join_stall(Duration age) const {
  if (age < warning_) return std::nullopt;
  const LocalRanks joined = set_.parts.control_block->joined_ranks();
  Stall stall{.age = age, .call = "join()"};
  for (std::size_t r = 0; r < set_.ranks_of_node().size(); ++r) {
    if (!joined[r]) stall.missing.push_back(set_.ranks_of_node()[r]);
  }
  return stall.missing.empty() ? std::nullopt : std::optional(std::move(stall));
}

/// Zero: this rank does not wait in shutdown().
Duration Waits::departed_at() const {
  if (set_.id != kWorld) return {};
  return Duration(set_.engine.status().departed.load());
}

/// Known of this node from the control block, of other nodes from decisions. Ascending.
std::vector<int> Waits::not_departed() const {
  std::vector<int> ranks = set_.topology().ranks();
  std::erase_if(ranks, [this](int rank) {
    const int local_rank = set_.topology().local_rank_of(rank);
    const bool has_called =
        is_of_node(rank) && set_.parts.control_block->status(local_rank).departed.load() != 0;
    return has_called || departed_.contains(rank);
  });
  return ranks;
}

std::optional<Waits::Stall> Waits::departure_stall(Duration time) const {
  const Duration waited = time - departed_at();
  if (departed_at().count() == 0 || waited < warning_) return std::nullopt;
  std::vector<int> missing = not_departed();
  const auto is_own = [this](int rank) { return is_of_node(rank); };
  if (!missing.empty() && !std::ranges::any_of(missing, is_own)) {
    int lowest = 0;  // that has called it
    while (std::ranges::binary_search(missing, lowest)) ++lowest;
    if (!is_of_node(lowest)) return std::nullopt;
  }
  return Stall{.age = waited, .call = "shutdown()", .missing = std::move(missing)};
}

std::optional<Error> Waits::stopped_rank(Duration time) {
  const Duration limit = set_.engine.settings.timeout;
  if (limit.count() == 0 || departed_at().count() == 0) return std::nullopt;
  const Duration passed = last_stop_look_.count() == 0 ? Duration() : time - last_stop_look_;
  last_stop_look_ = time;
  for (const ProcessIdentity& process : processes_) {
    if (process.rank == set_.rank() || !is_of_host(process.rank)) continue;
    if (process_state(process.pid) != ProcessState::stopped) {
      stopped_for_.erase(process.rank);
      continue;
    }
    Duration& length = stopped_for_[process.rank];
    length += std::min(passed, kLongestLook);
    if (length < limit + kLauncherFirst) continue;
    return Error(ErrorCode::timeout,
                 fmt::format("{} is stopped (SIGSTOP), and has been for {} while other ranks wait "
                             "for it in shutdown(), longer than HORA_TIMEOUT allows: kill -CONT "
                             "lets a stopped process go on",
                             to_string(process), seconds_text(length)),
                 process.rank);
  }
  return std::nullopt;
}

std::optional<Error> Waits::gone_rank(Duration time, bool any_waits) {
  next_check_ = time + kLook;
  if (!any_waits) return std::nullopt;
  for (const int rank : set_.ranks_of_node()) {
    if (rank == set_.rank() || process_state(identity(rank).pid) != ProcessState::gone) continue;
    return Error(ErrorCode::transport,
                 state_of(rank) +
                     ". It has not called shutdown(): was it killed (by the kernel where memory "
                     "ran out: see dmesg), or has it left by exit()?",
                 rank);
  }
  return std::nullopt;
}

Stragglers::Stragglers(const SetMember& set)
    : set_(set),
      ledger_(set.topology().ranks(), set.parts.control_block->id_capacity()),
      last_of_(static_cast<std::size_t>(set.parts.control_block->id_capacity())),
      rows_(std::min(ledger_.ranks().size(), kRecordedArrivals)) {}

void Stragglers::count(Id id, const LastArrival& last) {
  const auto slot = static_cast<std::size_t>(slot_of(id));
  if (slot < last_of_.size()) last_of_[slot] = last;
  const auto slow = ledger_.add(slot, last);
  RecordArrivals* const watched = set_.id == kWorld ? set_.record.watched_arrivals() : nullptr;
  if (watched && last.at - recorded_at_ >= kRecordInterval) {
    recorded_at_ = last.at;
    const std::size_t shown = ledger_.most_often_last(rows_);
    write_arrivals(*watched, last.at, ledger_.decisions(), ledger_.steps(),
                   std::span(rows_).first(shown));
  }
  if (slow) log().warn("{}", slow_rank_text(*slow, set_.engine.processes));
}

}  // namespace hora::internal
