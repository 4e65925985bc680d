#include "core/base/log.h"

#include <cxxabi.h>
#include <hora/printable.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <typeinfo>
#include <utility>

#include "core/base/diagnostics.h"
#include "core/base/process.h"

namespace hora::internal {
namespace {

/// The message as one line, whatever names and values it holds.
class PrintableMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& line) override {
    const std::string text = printable({message.payload.data(), message.payload.size()});
    line.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return spdlog::details::make_unique<PrintableMessage>();
  }
};

std::unique_ptr<spdlog::formatter> formatter() {
  constexpr char kMessage = '*';
  auto made = std::make_unique<spdlog::pattern_formatter>();
  made->add_flag<PrintableMessage>(kMessage).set_pattern("[%H:%M:%S.%e] hora %^%l%$: %*");
  return made;
}

constexpr int kNoRank = -1;

// The handler belongs to the process, and so does its state.
std::atomic<int> reporting_rank{kNoRank};
std::atomic<pid_t> reporting_process{0};
std::atomic<const TerminateReport::Report*> reporting{nullptr};
std::atomic<std::terminate_handler> handler_before{nullptr};

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

/// The C++ library's prints the exception's type and text.
bool is_own_of_library(std::terminate_handler handler) {
#if defined(__GLIBCXX__)
  return handler == __gnu_cxx::__verbose_terminate_handler;
#else
  return false;
#endif
}

[[noreturn]] void report_and_terminate() {
  bool is_reported = false;
  try {
    const int rank = reporting_rank.exchange(kNoRank);
    // A forked child ends only itself.
    if (rank != kNoRank && reporting_process.load() == ::getpid()) {
      const TerminateReport::Report* const report = reporting.exchange(nullptr);
      report&&* report ? (*report)(reason()) : log_end(rank, reason());
      is_reported = true;
    }
  } catch (...) {
    // Logging has failed, which must not keep the process from ending.
  }
  const std::terminate_handler next = handler_before.load();
  if (next && !(is_reported && is_own_of_library(next))) next();
  std::abort();
}

}  // namespace

spdlog::logger& log() {
  // Not in spdlog's registry, which is the application's. Never destroyed: exit handlers still log.
  static auto& logger = *[] {
    auto made = std::make_unique<spdlog::logger>(
        "hora", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_formatter(formatter());
    made->set_level(spdlog::level::warn);
    return made.release();
  }();
  return logger;
}

void set_log_level(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err,
                                                   spdlog::level::off};
  log().set_level(kLevels[static_cast<std::size_t>(level)]);
}

TerminateReport::TerminateReport(int rank, Report report) : report_(std::move(report)) {
  reporting.store(&report_);
  reporting_rank.store(rank);
  reporting_process.store(::getpid());
  const std::terminate_handler current = std::get_terminate();
  if (current == report_and_terminate) return;
  handler_before.store(current);
  std::set_terminate(report_and_terminate);
}

TerminateReport::~TerminateReport() {
  reporting_rank.store(kNoRank);
  reporting.store(nullptr);
  // A handler that was installed over this one may still call it.
  if (std::get_terminate() == report_and_terminate) std::set_terminate(handler_before.load());
}

void log_end(int rank, const std::string& why, bool is_known) noexcept {
  try {
    log().log(is_known ? spdlog::level::info : spdlog::level::critical, "{} ends the job: {}",
              to_string(identity_of_process(rank)), why);
    log().flush();
  } catch (...) {
    // Logging has failed, which must not keep the job from ending.
  }
}

void log_warning(const std::string& text) {
  log().warn("{}", text);
}

void log_info(const std::string& text) {
  log().info("{}", text);
}

}  // namespace hora::internal
