#include "core/base/process.h"

#include <fcntl.h>
#include <glob.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <hwloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <utility>

namespace hora::internal {
namespace {

std::atomic<std::uint64_t> forks{0};  ///< on the way to this process

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

ProcessState state_of(char letter) {
  constexpr std::string_view kLetters = "RSIDTtZXx";
  constexpr ProcessState kStates[] = {
      ProcessState::running, ProcessState::sleeping, ProcessState::sleeping,
      ProcessState::blocked, ProcessState::stopped,  ProcessState::traced,
      ProcessState::gone,    ProcessState::gone,     ProcessState::gone};
  const std::size_t at = kLetters.find(letter);
  return at == kLetters.npos ? ProcessState::unknown : kStates[at];
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::invalid_argument,
              "the file " + in_quotes(path) + " cannot be made: " + why +
                  "; give the path of a file in a folder that exists and can be written to");
}

const char* kind_of(std::filesystem::file_type type) {
  using enum std::filesystem::file_type;
  if (type == directory) return "a folder";
  if (type == symlink) return "a link, which is not followed,";
  if (type == fifo) return "a FIFO";
  if (type == socket) return "a socket";
  return "a device";
}

void remove_regular(const std::string& path) {
  std::error_code failed;
  const auto type = std::filesystem::symlink_status(path, failed).type();
  if (type == std::filesystem::file_type::not_found) return;
  if (!failed && type != std::filesystem::file_type::regular) {
    refuse(path, std::string(kind_of(type)) + " has this name already");
  }
  if (!failed) std::filesystem::remove(path, failed);
  if (failed) refuse(path, failed.message());
}

}  // namespace

std::string host_name() {
  if (const char* const given = std::getenv(kHostVariable)) return given;
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "unknown";
  return name.data();
}

std::string pid_namespace() {
  std::array<char, 64> link{};
  const ssize_t bytes = ::readlink("/proc/self/ns/pid", link.data(), link.size());
  return bytes > 0 ? std::string(link.data(), static_cast<std::size_t>(bytes)) : "unknown";
}

ProcessIdentity identity_of_process(int rank) {
  return {.rank = rank, .host = host_name(), .pid = ::getpid()};
}

bool descriptors_are_gone() noexcept {
  static const int witness = [] {
    // Away from the numbers that a program that closes one of its own twice may hit.
    constexpr int kLeast = 100;
    const int made = ::eventfd(0, EFD_CLOEXEC);
    const int moved = ::fcntl(made, F_DUPFD_CLOEXEC, kLeast);
    ::close(made);
    return moved;
  }();
  return witness >= 0 && ::fcntl(witness, F_GETFD) < 0;
}

std::string to_string(const ProcessIdentity& process) {
  std::string place;
  if (!process.host.empty()) place = "host " + process.host;
  if (process.pid > 0) place += (place.empty() ? "pid " : ", pid ") + std::to_string(process.pid);
  return "rank " + std::to_string(process.rank) + (place.empty() ? "" : " (" + place + ")");
}

ProcessOwner::ProcessOwner() {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  forks_ = forks.load(std::memory_order_relaxed);
}

bool ProcessOwner::is_this_process() const noexcept {
  return forks_ == forks.load(std::memory_order_relaxed);
}

std::optional<ProcessStat> parse_process_stat(std::string_view text) {
  // The name, in parentheses, may hold any character, parentheses among them.
  const auto open = text.find(" (");
  const auto close = text.rfind(") ");
  if (open == text.npos || close == text.npos || close < open + 2) return std::nullopt;
  const auto pid = number(text.substr(0, open));
  const std::string_view rest = text.substr(close + 2);
  if (!pid || rest.size() < 3 || rest[1] != ' ') return std::nullopt;
  const auto parent = number(rest.substr(2, rest.find(' ', 2) - 2));
  if (!parent) return std::nullopt;
  return ProcessStat{*pid, *parent, state_of(rest[0]),
                     std::string(text.substr(open + 2, close - open - 2))};
}

std::optional<ProcessStat> process_stat(std::int64_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::array<char, 512> text{};
  const ssize_t bytes = ::read(file, text.data(), text.size());
  ::close(file);
  if (bytes < 0) return std::nullopt;
  return parse_process_stat({text.data(), static_cast<std::size_t>(bytes)});
}

ProcessState process_state(std::int64_t pid) {
  if (pid <= 0) return ProcessState::unknown;
  if (const auto stat = process_stat(pid)) return stat->state;
  const bool exists = ::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH;
  return exists ? ProcessState::unknown : ProcessState::gone;
}

MachineTopology machine_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {nullptr, hwloc_topology_destroy};
  MachineTopology owner(topology, hwloc_topology_destroy);
  // Memory nodes, packages and what else tells which processors belong together.
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(topology) != 0) owner.reset();
  return owner;
}

std::vector<std::string> active_rdma_ports(const std::filesystem::path& devices) {
  glob_t found{};
  const std::unique_ptr<glob_t, void (*)(glob_t*)> owner(&found, ::globfree);
  ::glob((devices / "*/ports/*/state").c_str(), 0, nullptr, &found);
  std::vector<std::string> active;
  for (const char* const path : std::span(found.gl_pathv, found.gl_pathc)) {
    std::ifstream file(path);
    std::string state;
    std::getline(file, state);
    const std::filesystem::path port = std::filesystem::path(path).parent_path();
    const std::filesystem::path device = port.parent_path().parent_path();
    // The kernel writes "4: ACTIVE" (enum ib_port_state).
    if (!state.starts_with("4:")) continue;
    active.push_back(device.filename().string() + " port " + port.filename().string());
  }
  return active;
}

NewFile::NewFile(const std::string& path) {
  if (path.find('\0') != std::string::npos) refuse(path, "its name holds a zero byte");
  remove_regular(path);
  // O_EXCL: what has taken the name meanwhile is not opened, whatever it is.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  descriptor_ = ::open(path.c_str(), kFlags, S_IRUSR | S_IWUSR);
  if (descriptor_ < 0) refuse(path, std::generic_category().message(errno));
}

NewFile::~NewFile() {
  ::close(descriptor_);
}

}  // namespace hora::internal
