/// file:///DIR: the nodes of a job meet by files in a folder that all share.
///
/// DIR/<job>.lock        node 0 holds a lock on it (flock), so that there is one node 0
/// DIR/<job>.rendezvous  where node 0 listens, as JSON; nothing secret
/// DIR/<job>.token       a token made by node 0, where none is given and DIR is the user's alone
/// (0700)
///
/// All are of mode 0600, and are gone when the nodes have met or node 0 ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tl/expected.hpp>

#include "core/launch/control/token.h"
#include "core/launch/control/unique_fd.h"
#include "core/launch/rendezvous/sockets.h"

namespace hora::launch {

/// Where node 0 is, as another node reads it.
struct Meeting {
  Endpoint at;
  std::string host;

  bool operator==(const Meeting&) const = default;
};

/// The files' names. Thread rule: any thread.
class MeetingFolder {
 public:
  MeetingFolder(std::string folder, const std::string& job);

  const std::string& path() const { return folder_; }
  /// What node 0 has published; the error says why there is nothing yet.
  tl::expected<Meeting, std::string> read() const;
  /// Of the file that node 0 has made; read() comes first, since node 0 writes the token first.
  tl::expected<SecretKey, std::string> read_token() const;
  /// Whether the folder is this user's alone, so that a token may lie in it; else why not.
  tl::expected<void, std::string> check_private() const;

 private:
  friend class MeetingHost;

  std::string folder_;
  std::string lock_, meeting_, token_;
};

/// Node 0's part; removes the files at its end. Move-only. Thread rule: one thread at a time.
class MeetingHost {
 public:
  /// Nothing where another process holds the lock: node 0 is elsewhere. Throws
  /// Error(invalid_argument) where the folder cannot be used.
  static std::optional<MeetingHost> claim(const MeetingFolder& folder);
  MeetingHost(MeetingHost&& other) noexcept = default;
  MeetingHost& operator=(MeetingHost&&) = delete;
  ~MeetingHost();

  /// Makes a token, and its file.
  SecretKey make_token() const;
  void publish(const Meeting& meeting) const;

 private:
  MeetingHost(MeetingFolder folder, UniqueFd lock)
      : folder_(std::move(folder)), lock_(std::move(lock)) {}

  MeetingFolder folder_;
  UniqueFd lock_;
};

}  // namespace hora::launch
