/// Engine: construction, submitting and departing. engine_wait.cpp: waiting for results;
/// engine_drive.cpp: making progress; engine_rest.cpp: the thread.
#include "core/engine/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/log.h"

namespace hora {

Now now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

Engine::Engine(EngineParts parts)
    : parts_(std::move(parts)),
      board_(*parts_.board),
      single_node_(parts_.topology.nodes() == 1),
      table_(parts_.settings.id_capacity) {
  for (int rank = 0; rank < parts_.topology.size(); ++rank) {
    node_of_rank_.push_back(parts_.topology.node_of(rank));
    local_rank_of_rank_.push_back(parts_.topology.local_rank_of(rank));
  }
  if (board_.local_rank() == 0) {
    desk_.emplace(parts_.topology, node_of_rank_[static_cast<std::size_t>(parts_.rank)],
                  parts_.settings.id_capacity, board_, parts_.tree);
  }
}

Engine::~Engine() {
  stop();
}

/// In a job of one node my slice of a large tensor, which is a unit of its own there.
Range Engine::direct_slice(const Submission& submission) const {
  const bool is_sum = submission.signature.kind == OperationKind::allreduce;
  if (!single_node_ || !is_sum || submission.bytes < kAloneBytes) return {};
  const Range slice =
      slice_range({0, align_up(submission.bytes)}, board_.local_rank(), board_.local_size());
  if (slice.bytes == 0) return {};
  return {slice.begin, std::min(slice.bytes, submission.bytes - slice.begin)};
}

void Engine::stage(Submission& submission, std::byte* data, Caller caller) {
  submission.bytes = submission.signature.bytes();
  if (submission.signature.device != DeviceKind::cpu) {
    submission.block = data;
    submission.work = parts_.device->begin(submission.stream);
    return;
  }
  if (submission.bytes == 0) return;
  if (const auto location = parts_.memory->find(data, submission.bytes)) {
    submission.block = data;
    submission.location = *location;
    return;
  }
  const NodeMemory::Block block = parts_.memory->allocate(submission.bytes);
  submission.block = block.data;
  submission.location = block.location;
  submission.user_data = data;
  // Not for handles: an exception may drop one, and free the memory, while peers go on.
  if (caller == Caller::waits) submission.direct = direct_slice(submission);
  copy_around(submission.direct, submission.block, data, submission.bytes);
}

std::shared_ptr<Submission> Engine::submit(std::string name, Signature signature, std::byte* data,
                                           void* stream) {
  return submit(std::move(name), std::move(signature), data, stream, Caller::goes_on);
}

std::shared_ptr<Submission> Engine::submit(std::string name, Signature signature, std::byte* data,
                                           void* stream, Caller caller) {
  auto submission = std::make_shared<Submission>();
  submission->stream = stream;
  submission->signature = std::move(signature);
  {
    const std::lock_guard table(table_lock_);
    if (closed_) throw detached(*closed_);
    submission->name =
        !name.empty()
            ? std::move(name)
            : table_.unnamed("hora.unnamed." + std::string(name_of(submission->signature.kind)));
    if (!table_.enter(submission)) {
      throw Error(ErrorCode::duplicate_name,
                  "tensor \"" + submission->name + "\" is in flight already on rank " +
                      std::to_string(parts_.rank) +
                      ": wait for its handle first, or give this one a name of its own",
                  parts_.rank, submission->name);
    }
  }
  try {
    stage(*submission, data, caller);
    const std::lock_guard table(table_lock_);
    if (closed_) throw detached(*closed_);
    submission->submitted = now();
    submission->overdue_at = submission->submitted + parts_.settings.stall_warning;
    undecided_.fetch_add(1);
    announce(submission);
  } catch (...) {
    release(*submission);
    throw;
  }
  return submission;
}

void Engine::announce(const std::shared_ptr<Submission>& submission) {
  const NameTable::Entry& entry = table_.at(submission->name);
  if (!entry.id || entry.signature != submission->signature) return report(*submission);
  const Id id = *entry.id;
  submission->id = id;
  table_.set_waiting(id, submission);
  parts_.trace.marked(submission->name, "ready");
  switch (board_.arrive(id, submission->location)) {
    case NodeBoard::Arrival::complete:
      parts_.trace.marked(submission->name, "last of the node");
      if (single_node_) {
        board_.signal_others();
        board_.signal(board_.local_rank());
      } else {
        board_.signal(0);
      }
      return;
    case NodeBoard::Arrival::waiting:
      if (board_.watched(id)) board_.signal(0);
      return;
    case NodeBoard::Arrival::stale:
      // The log will say so, and find nothing of mine to report again.
      table_.set_waiting(id, nullptr);
      submission->id.reset();
      return report(*submission);
  }
}

void Engine::report(Submission& submission) {
  parts_.trace.marked(submission.name, "reported");
  send_mail({.kind = MailKind::report,
             .name = submission.name,
             .signature = submission.signature,
             .location = submission.location});
}

void Engine::send_mail(const Mail& mail) {
  auto bytes = encode(mail);
  if (!outbox_.empty() || !board_.push_mail(bytes)) outbox_.push_back(std::move(bytes));
  board_.signal(0);
}

void Engine::release(Submission& submission) {
  if (submission.user_data && !poisoned_.load()) parts_.memory->release(submission.block);
  submission.block = nullptr;
  const std::lock_guard table(table_lock_);
  table_.leave(submission);
}

std::byte* Engine::allocate_on_device(std::size_t bytes) {
  const std::lock_guard lock(drive_lock_);
  return parts_.device->allocate(bytes);
}

void Engine::release_on_device(std::byte* data) noexcept {
  const std::lock_guard lock(drive_lock_);
  parts_.device->release(data);
}

bool Engine::step() {
  const std::lock_guard lock(drive_lock_);
  const bool progress = drive(/*network=*/true);
  complain_about_overdue();
  return progress;
}

void Engine::start_thread() {
  thread_ = std::thread([this] { run_thread(); });
}

void Engine::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  board_.wake_engine();
  thread_.join();
}

void Engine::depart() {
  std::vector<std::shared_ptr<Submission>> open;
  {
    const std::lock_guard table(table_lock_);
    open = table_.unfinished();
    std::erase_if(open, [](const auto& submission) { return submission->orphaned; });
  }
  const auto wait_until = [&](auto&& reached, const char* what) {
    Now warn_at = now() + parts_.settings.stall_warning;
    while (!reached() && !poisoned_.load()) {
      if (!has_thread() && step()) continue;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (parts_.settings.stall_warning.count() == 0 || now() < warn_at) continue;
      log().warn("rank {} is in shutdown and waits for {}", parts_.rank, what);
      warn_at += parts_.settings.stall_warning;
    }
  };
  wait_until(
      [&] { return std::all_of(open.begin(), open.end(), [](auto& s) { return s->finished(); }); },
      "its own unfinished collectives");
  {
    const std::lock_guard table(table_lock_);
    if (!closed_) {
      closed_ = Error(ErrorCode::shut_down,
                      "hora was shut down on this rank (" + std::to_string(parts_.rank) +
                          "): no collective can follow shutdown()",
                      parts_.rank);
    }
    send_mail({.kind = MailKind::departed, .name = {}, .signature = {}, .location = {}});
  }
  // From here on a leader polls for the others as if a tensor of its own were waiting.
  undecided_.fetch_add(1);
  board_.wake_engine();
  wait_until([&] { return all_departed_.load(); }, "ranks that have not called it yet");
  wait_until(
      [&] {
        const std::lock_guard lock(drive_lock_);
        return !desk_ || !desk_->unfinished();
      },
      "its last messages to leave");
}

Statistics Engine::statistics() const {
  const std::lock_guard table(table_lock_);
  return statistics_;
}

}  // namespace hora
