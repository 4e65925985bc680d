#include <stdexcept>
#include <utility>

#include "tests/support/fake_gpu/fake_device.h"

namespace hora::internal::test {

CallScript::CallScript(std::initializer_list<std::string_view> calls) {
  for (const std::string_view call : calls) {
    entries_.emplace(call, Entry{});
  }
}

const CallScript::Entry& CallScript::entry(std::string_view call) const {
  const auto found = entries_.find(call);
  if (found == entries_.end()) {
    throw std::invalid_argument("the fake GPU has no call named " + std::string(call));
  }
  return found->second;
}

CallScript::Entry& CallScript::entry(std::string_view call) {
  return const_cast<Entry&>(std::as_const(*this).entry(call));
}

int CallScript::begin(std::string_view call) {
  const std::scoped_lock lock(mutex_);
  Entry& called = entry(call);
  ++called.count;
  const auto found = called.errors.find(called.count);
  return found != called.errors.end() ? found->second : called.always;
}

int CallScript::count(std::string_view call) const {
  const std::scoped_lock lock(mutex_);
  return entry(call).count;
}

void CallScript::fail(std::string_view call, int nth, int error) {
  const std::scoped_lock lock(mutex_);
  Entry& scripted = entry(call);
  if (nth == 0) {
    scripted.always = error;
  } else {
    scripted.errors[scripted.count + nth] = error;
  }
}

void CallScript::delay(std::string_view call, std::chrono::microseconds duration) {
  const std::scoped_lock lock(mutex_);
  entry(call).delay = duration;
}

std::chrono::microseconds CallScript::delay_of(std::string_view call) const {
  const std::scoped_lock lock(mutex_);
  return entry(call).delay;
}

}  // namespace hora::internal::test
