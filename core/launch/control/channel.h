/// Messages in both directions over descriptors, without blocking.
/// Thread rule: one thread, that of the loop.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/launch/control/event_loop.h"
#include "core/launch/control/frames.h"
#include "core/launch/control/seal.h"
#include "core/launch/control/unique_fd.h"

namespace hora::launch {

class Channel {
 public:
  using OnMessage = std::function<void(Message&&)>;
  /// The other side is gone, or has sent what is no message (`reason` says what). Called once,
  /// after all messages before it; nothing is sent or received after it.
  using OnEnd = std::function<void(const std::string& reason)>;

  /// `in` and `out` may be the same descriptor. The loop outlives the channel. With `seals` every
  /// message in both directions is authenticated.
  Channel(EventLoop& loop, UniqueFd in, UniqueFd out, OnMessage on_message, OnEnd on_end,
          std::optional<SealPair> seals = std::nullopt);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Queued where the other side is slow.
  void send(const Message& message);
  /// Bytes that are queued: the sender stops reading its own sources above a limit.
  std::size_t queued() const noexcept { return outgoing_.size() - sent_; }
  bool open() const noexcept { return open_; }
  /// Sends what is queued, for this long at most. For the end of a process.
  void flush(std::chrono::milliseconds limit);
  /// From now on messages stay where they are, or come again: for a receiver that is behind.
  void pause(bool paused);

 private:
  void read();
  void write();
  void end(const std::string& reason);

  EventLoop& loop_;
  UniqueFd in_, out_;
  OnMessage on_message_;
  OnEnd on_end_;
  std::optional<Seal> outgoing_seal_;
  FrameReader incoming_;
  std::vector<std::byte> outgoing_;
  std::size_t sent_ = 0;  ///< of outgoing_
  bool open_ = true;
};

}  // namespace hora::launch
