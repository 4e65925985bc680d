#include <hora/error.h>
#include <hora/handle.h>

#include <exception>
#include <utility>

#include "core/engine/runtime.h"
#include "core/engine/submission.h"

namespace hora {

Handle::Handle(std::shared_ptr<Runtime> runtime, std::shared_ptr<Submission> submission) noexcept
    : runtime_(std::move(runtime)), submission_(std::move(submission)) {}

Handle::Handle(Handle&& other) noexcept
    : runtime_(std::move(other.runtime_)), submission_(std::move(other.submission_)) {}

Handle& Handle::operator=(Handle&& other) noexcept {
  Handle dropped(std::move(*this));
  runtime_ = std::move(other.runtime_);
  submission_ = std::move(other.submission_);
  return *this;
}

Handle::~Handle() {
  if (!valid() || runtime_->is_forked()) return;
  if (std::uncaught_exceptions() > 0) {
    runtime_->remaining_engine().orphan(submission_);
    return;
  }
  try {
    runtime_->remaining_engine().drop(*submission_);
  } catch (const std::exception&) {
    // A destructor does not throw, not even for want of a log.
  }
}

bool Handle::ready() const {
  return !valid() || submission_->finished();
}

std::shared_ptr<Submission> Handle::finish(std::optional<void*> stream) {
  if (!valid()) {
    throw Error(ErrorCode::invalid_use,
                "there is nothing to wait for: this handle was waited for already, or moved from");
  }
  auto submission = std::exchange(submission_, nullptr);
  const auto runtime = std::exchange(runtime_, nullptr);
  if (stream) submission->memory.set_stream(*stream);
  runtime->remaining_engine().wait(*submission);
  return submission;
}

void Handle::wait() {
  finish(std::nullopt);
}
void Handle::wait(void* stream) {
  finish(stream);
}
void Handle::synchronize() {
  const auto submission = finish(std::nullopt);
  if (submission->memory.work()) submission->memory.work()->synchronize();
}

}  // namespace hora
