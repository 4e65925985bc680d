#include "core/launch/rendezvous/meeting_folder.h"

#include <fcntl.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "core/base/file.h"

namespace hora::launch {
namespace {

constexpr std::size_t kLongestFile = 4096;

std::string message_of(int error) {
  return std::generic_category().message(error);
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::invalid_argument,
              "the nodes cannot meet in the folder of " + in_quotes(path) + ": " + why +
                  "; --rendezvous file:///DIR names a folder of this user that all nodes share");
}

void write_text(const std::string& path, std::string_view text) {
  const internal::NewFile file(path);
  while (!text.empty()) {
    const ssize_t written = ::write(file.descriptor(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(path, message_of(errno));
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// A regular file's content, or why there is none.
tl::expected<std::string, std::string> read_text(const std::string& path) {
  const UniqueFd file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!file && errno == ENOENT) return tl::unexpected(std::string("it has not written there yet"));
  if (!file) return tl::unexpected(path + ": " + message_of(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return tl::unexpected(path + " is no regular file");
  }
  std::array<char, kLongestFile> bytes;
  const ssize_t count = ::read(file.get(), bytes.data(), bytes.size());
  if (count < 0) return tl::unexpected(path + ": " + message_of(errno));
  return std::string(bytes.data(), static_cast<std::size_t>(count));
}

/// Opened, this user's, and not removed by the one who held it before. Nothing: to be tried again.
std::optional<UniqueFd> open_lock(const std::string& path) {
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                       S_IRUSR | S_IWUSR));
  struct stat opened {};
  if (!lock || ::fstat(lock.get(), &opened) != 0) refuse(path, message_of(errno));
  if (!S_ISREG(opened.st_mode) || opened.st_uid != ::geteuid()) {
    refuse(path, "something of this name exists that is no file of this user");
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return UniqueFd();
    refuse(path, "its file system has no locks (" + message_of(errno) + ")");
  }
  struct stat named {};
  const bool still_named = ::lstat(path.c_str(), &named) == 0 && named.st_ino == opened.st_ino &&
                           named.st_dev == opened.st_dev;
  if (!still_named) return {};
  return lock;
}

}  // namespace

MeetingFolder::MeetingFolder(std::string folder, const std::string& job)
    : folder_(std::move(folder)),
      lock_(folder_ + "/" + job + ".lock"),
      meeting_(folder_ + "/" + job + ".rendezvous"),
      token_(folder_ + "/" + job + ".token") {}

tl::expected<Meeting, std::string> MeetingFolder::read() const {
  // Opening a folder of NFS makes it ask the server whether a file has come that was missing
  // before.
  const UniqueFd refreshed(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!refreshed) {
    return tl::unexpected("the folder " + in_quotes(folder_) + ": " + message_of(errno));
  }
  const auto text = read_text(meeting_);
  if (!text) return tl::unexpected(text.error());
  using Json = nlohmann::json;
  const Json json = Json::parse(*text, nullptr, false);
  const auto member = [&](const char* name) {
    return json.is_object() && json.contains(name) ? json.at(name) : Json();
  };
  const Json address = member("address"), port = member("port"), host = member("host");
  Meeting meeting;
  const auto parsed =
      address.is_string() ? parse_address(address.get<std::string>()) : std::nullopt;
  const bool has_port =
      port.is_number_unsigned() && port.get<std::uint64_t>() - 1 < std::uint64_t{65535};
  if (!parsed || !has_port || !host.is_string()) {
    return tl::unexpected(meeting_ + " is no file of a horarun");
  }
  meeting.at = {*parsed, port.get<std::uint16_t>()};
  meeting.host = printable(host.get<std::string>(), 255);
  return meeting;
}

tl::expected<SecretKey, std::string> MeetingFolder::read_token() const {
  return token_from_file(token_);
}

tl::expected<void, std::string> MeetingFolder::check_private() const {
  struct stat status {};
  if (::stat(folder_.c_str(), &status) != 0) {
    return tl::unexpected("the folder " + in_quotes(folder_) + ": " + message_of(errno));
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() ||
      (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return tl::unexpected("no token is given, and none is made in the folder " +
                          in_quotes(folder_) +
                          ", which others may enter; chmod 700 it, or give all nodes a token: in "
                          "a file of mode 0600, or in the environment variable " +
                          std::string(kTokenVariable));
  }
  return {};
}

std::optional<MeetingHost> MeetingHost::claim(const MeetingFolder& folder) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    auto lock = open_lock(folder.lock_);
    if (!lock) continue;
    if (!*lock) return {};
    // Left by a node 0 that was killed.
    ::unlink(folder.meeting_.c_str());
    ::unlink(folder.token_.c_str());
    return MeetingHost(folder, std::move(*lock));
  }
  refuse(folder.lock_, "the lock disappears again and again");
}

MeetingHost::~MeetingHost() {
  if (!lock_) return;
  ::unlink(folder_.meeting_.c_str());
  ::unlink(folder_.token_.c_str());
  ::unlink(folder_.lock_.c_str());
}

SecretKey MeetingHost::make_token() const {
  const std::string text = new_token_text();
  write_text(folder_.token_, text);
  auto token = token_from_text(text);
  if (!token) refuse(folder_.token_, token.error());
  return std::move(*token);
}

void MeetingHost::publish(const Meeting& meeting) const {
  const nlohmann::json json{{"address", to_string(meeting.at.address)},
                            {"port", meeting.at.port},
                            {"host", meeting.host}};
  // A reader sees all of it or nothing.
  const std::string whole = folder_.meeting_ + ".new";
  write_text(whole, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  if (std::rename(whole.c_str(), folder_.meeting_.c_str()) != 0) {
    const int error = errno;
    ::unlink(whole.c_str());
    refuse(folder_.meeting_, message_of(error));
  }
}

}  // namespace hora::launch
