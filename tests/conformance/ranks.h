/// The suite's programs differ in where their ranks run, and where their tensors lie. Each
/// links one source of it: mpi_ranks.cpp or fake_gpu_ranks.cpp.
#pragma once

#include <hora/context.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hora::internal::test {

/// Values on a device, with a stream of the application's own. Thread rule: one thread.
class DeviceCopy {
 public:
  virtual ~DeviceCopy() = default;
  virtual std::byte* data() const = 0;
  virtual void* stream() const = 0;
  /// Returns the bytes there, in the stream's order.
  virtual std::vector<std::byte> read() = 0;
};

/// The memory of one rank's device. Thread rule: any thread.
class DeviceOfRank {
 public:
  virtual ~DeviceOfRank() = default;
  /// The values may still be on their way in the order of the copy's stream.
  virtual std::unique_ptr<DeviceCopy> copy_of(const std::byte* values, std::size_t bytes) = 0;
  /// In the order of a stream; both return when it is done.
  virtual void write(std::byte* to, const std::byte* from, std::size_t bytes, void* stream) = 0;
  virtual void read(std::byte* to, const std::byte* from, std::size_t bytes, void* stream) = 0;
};

/// The ranks of a case that this process has.
class Ranks {
 public:
  /// Values of HORA_* variables.
  using Variables = std::vector<std::pair<std::string, std::string>>;
  static std::unique_ptr<Ranks> make(const Variables& settings = {});
  /// The first rank of this process, and how many the job has.
  static std::pair<int, int> place();
  virtual ~Ranks() = default;

  virtual int count() const = 0;
  /// Starts the `index`-th, by a thread of its own: Contexts are alive on all ranks at once.
  virtual Context start(int index, const InitOptions& options) = 0;
  /// Null where tensors lie in host memory.
  virtual DeviceOfRank* device(int index) = 0;
  /// Returns when all ranks of the job have called it; not by way of hora.
  virtual void meet() = 0;
  /// After the last of their Contexts: what they have left behind or done wrong, empty for nothing.
  virtual std::string complaints() = 0;

  /// `body(index)` on a thread for each; that of index 0 is the caller's.
  void on_each(const std::function<void(int)>& body) const {
    std::vector<std::jthread> threads;
    for (int index = 1; index < count(); ++index) {
      threads.emplace_back([&body, index] { body(index); });
    }
    body(0);
  }
};

}  // namespace hora::internal::test
