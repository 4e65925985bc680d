/// One piece of memory that several processes map.
#pragma once

#include <hora/export.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace hora::internal {

/// What a peer needs to open a window. The nonce tells another process's file from the owner's: in
/// another PID namespace the same pid and descriptor can mean something else.
struct WindowTicket {
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;
  std::uint64_t bytes = 0;  ///< whole length, header included
  std::uint64_t nonce = 0;
};

/// A memfd and its mapping. Nothing of it has a name in a file system, so nothing is left behind.
/// Move-only; the destructor unmaps and closes.
class Window {
 public:
  /// Bytes at the beginning that belong to the window itself.
  static constexpr std::size_t kHeaderBytes = 4096;

  Window() noexcept = default;
  /// A new window, all zero. Throws Error(out_of_memory) where `bytes` is more than this machine or
  /// its control group has left, Error(transport) where the kernel refuses.
  explicit Window(std::size_t bytes);
  /// A peer's window. Throws Error(transport) where it cannot be opened or is not the peer's.
  explicit Window(const WindowTicket& ticket);
  Window(Window&& other) noexcept;
  Window& operator=(Window&& other) noexcept;
  ~Window();

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  const WindowTicket& ticket() const noexcept { return ticket_; }

 private:
  void map(int descriptor, std::size_t bytes);

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int descriptor_ = -1;
  WindowTicket ticket_;
};

/// Bytes that are still available: the smaller of MemAvailable and what the control group has left.
std::uint64_t available_memory();
/// All bytes of memory, used or not, swap included: at most 2^48.
HORA_EXPORT std::uint64_t memory_of_host();

}  // namespace hora::internal
