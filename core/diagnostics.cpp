#include "core/diagnostics.h"

#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>

#include "core/log.h"
#include "core/process.h"

namespace hora {
namespace {

constexpr int kNobody = -1;

// The handler belongs to the process, so what it needs does, too.
std::atomic<int> speaker{kNobody};
std::atomic<pid_t> speaking_process{0};
std::atomic<std::terminate_handler> before{nullptr};

std::string type_of_current() {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  if (!type) return "unknown type";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : type->name();
}

std::string reason() {
  const std::exception_ptr current = std::current_exception();
  if (!current) return "std::terminate() was called without an exception";
  try {
    std::rethrow_exception(current);
  } catch (const std::exception& error) {
    return "uncaught exception of type " + type_of_current() + ": " + error.what();
  } catch (...) {
    return "uncaught exception of type " + type_of_current();
  }
}

[[noreturn]] void speak_and_terminate() {
  try {
    const int rank = speaker.exchange(kNobody);
    // A forked child ends only itself.
    if (rank != kNobody && speaking_process.load() == ::getpid()) {
      log().critical("{} ends the job: {}", to_string(identity_of_process(rank)), reason());
      log().flush();
    }
  } catch (...) {
    // Logging has failed, which must not keep the process from ending.
  }
  if (const std::terminate_handler next = before.load()) next();
  std::abort();
}

}  // namespace

LastWords::LastWords(int rank) {
  speaker.store(rank);
  speaking_process.store(::getpid());
  const std::terminate_handler current = std::get_terminate();
  if (current == speak_and_terminate) return;
  before.store(current);
  std::set_terminate(speak_and_terminate);
}

LastWords::~LastWords() {
  speaker.store(kNobody);
  // A handler that was installed over this one may call it still.
  if (std::get_terminate() == speak_and_terminate) std::set_terminate(before.load());
}

void log_warning(const std::string& text) {
  log().warn("{}", text);
}

}  // namespace hora
