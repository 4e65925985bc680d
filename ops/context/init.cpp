#include <hora/context.h>
#include <hora/error.h>
#include <hora/process_set.h>

#include <atomic>
#include <memory>

#include "core/engine/runtime.h"
#include "ops/context/mpi_transport.h"

namespace hora {
namespace {

/// One runtime a process: MPI's world, the engine thread and the malloc settings are the process's.
std::atomic<bool> running{false};

/// Allows another init() once this transport is destroyed.
class OnlyTransport final : public Transport {
 public:
  OnlyTransport(int* argc, char*** argv, const InitOptions& options)
      : transport_(claim(argc, argv, options)) {}
  ~OnlyTransport() override { running.store(false); }

  EngineParts parts() override { return transport_->parts(); }
  void disconnect() override {
    transport_->disconnect();
    running.store(false);
  }
  [[noreturn]] void abort() noexcept override { transport_->abort(); }
  void abort_at_exit(std::chrono::milliseconds grace) noexcept override {
    transport_->abort_at_exit(grace);
  }

 private:
  static std::unique_ptr<MpiTransport> claim(int* argc, char*** argv, const InitOptions& options) {
    if (running.exchange(true)) {
      throw Error(
          ErrorCode::invalid_use,
          "hora::init: hora is running in this process already: keep its Context, or shut it "
          "down first");
    }
    try {
      return std::make_unique<MpiTransport>(argc, argv, options);
    } catch (...) {
      running.store(false);
      throw;
    }
  }

  std::unique_ptr<MpiTransport> transport_;
};

Context start(int* argc, char*** argv, const InitOptions& options) {
  Context context(
      Runtime::make(std::make_unique<OnlyTransport>(argc, argv, options), options.engine_thread));
  try {
    for (const auto& ranks : options.process_sets) add_process_set(context, ranks);
  } catch (...) {
    // The same on every rank. The destructor would end the job, for an exception is in flight.
    context.shutdown();
    throw;
  }
  return context;
}

}  // namespace

Context init(const InitOptions& options) {
  return start(nullptr, nullptr, options);
}
Context init(int& argc, char**& argv, const InitOptions& options) {
  return start(&argc, &argv, options);
}

}  // namespace hora
