#include <hora/context.h>
#include <hora/error.h>

#include <atomic>
#include <memory>

#include "core/engine/runtime.h"
#include "ops/context/mpi_transport.h"

namespace hora {
namespace {

/// One runtime a process: MPI's world, the engine thread and the malloc settings are the process's.
std::atomic<bool> running{false};

/// Lets another init() follow once this transport is gone from use.
class OnlyTransport final : public Transport {
 public:
  OnlyTransport(int* argc, char*** argv) : transport_(claim(argc, argv)) {}
  ~OnlyTransport() override { running.store(false); }

  EngineParts parts() override { return transport_->parts(); }
  void disconnect() override {
    transport_->disconnect();
    running.store(false);
  }
  [[noreturn]] void abort() noexcept override { transport_->abort(); }

 private:
  static std::unique_ptr<MpiTransport> claim(int* argc, char*** argv) {
    if (running.exchange(true)) {
      throw Error(
          ErrorCode::invalid_use,
          "hora::init: hora is running in this process already: keep its Context, or shut it "
          "down first");
    }
    try {
      return std::make_unique<MpiTransport>(argc, argv);
    } catch (...) {
      running.store(false);
      throw;
    }
  }

  std::unique_ptr<MpiTransport> transport_;
};

Context start(int* argc, char*** argv, const InitOptions& options) {
  return Context(std::make_shared<Runtime>(std::make_unique<OnlyTransport>(argc, argv),
                                           options.engine_thread));
}

}  // namespace

Context init(const InitOptions& options) {
  return start(nullptr, nullptr, options);
}
Context init(int& argc, char**& argv, const InitOptions& options) {
  return start(&argc, &argv, options);
}

}  // namespace hora
