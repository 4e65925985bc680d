#include "ops/shm/window.h"

#include <fcntl.h>
#include <hora/error.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/checked.h"

namespace hora::internal {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : kUnlimited;  // "max", or no such file
}

std::uint64_t left_of(const std::string& limit_path, const std::string& usage_path) {
  const std::uint64_t limit = read_number(limit_path);
  const std::uint64_t usage = read_number(usage_path);
  if (limit == kUnlimited || usage == kUnlimited) return kUnlimited;
  return limit > usage ? limit - usage : 0;
}

std::uint64_t limit_of(const std::string& limit_path, const std::string&) {
  return read_number(limit_path);
}

/// Bytes; of what /proc/meminfo does not name: kUnlimited.
std::uint64_t meminfo(std::string_view wanted) {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kibibytes = 0;
  for (std::string rest; file >> key >> kibibytes; std::getline(file, rest)) {
    if (key == wanted) return kibibytes << 10;
  }
  return kUnlimited;
}

/// Of this process's control group and its parents, version 2 and version 1: the least that
/// `of(path of the limit, path of what is used)` gives.
template <class F>
std::uint64_t least_in_control_groups(F&& of) {
  std::uint64_t least = kUnlimited;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    const bool unified = controllers.empty();
    if (!unified && controllers != "memory") continue;
    for (;; path.resize(path.find_last_of('/'))) {
      if (path == "/") path.clear();
      least =
          std::min(least, unified ? of("/sys/fs/cgroup" + path + "/memory.max",
                                       "/sys/fs/cgroup" + path + "/memory.current")
                                  : of("/sys/fs/cgroup/memory" + path + "/memory.limit_in_bytes",
                                       "/sys/fs/cgroup/memory" + path + "/memory.usage_in_bytes"));
      if (path.empty()) break;
    }
  }
  return least;
}

}  // namespace

std::uint64_t available_memory() {
  return std::min(meminfo("MemAvailable:"), least_in_control_groups(left_of));
}

std::uint64_t memory_of_host() {
  const std::uint64_t memory = std::min(meminfo("MemTotal:"), kMaxBytes);
  const std::uint64_t swap = std::min(meminfo("SwapTotal:"), kMaxBytes);
  return std::min({memory + swap, least_in_control_groups(limit_of), kMaxBytes});
}

namespace {

/// Shorter windows would take a good part more memory in huge pages than they are long.
constexpr std::size_t kLeastForHugePages = std::size_t{16} << 20;

constexpr std::uint64_t kMagic = 0x31776e69'61726f68;  // "horainw1"

struct WindowHeader {
  std::uint64_t magic;
  std::uint64_t nonce;
};
static_assert(sizeof(WindowHeader) <= Window::kHeaderBytes);

[[noreturn]] void fail(const std::string& what, int error) {
  throw Error(ErrorCode::transport,
              "shared memory: " + what + (error ? std::string(": ") + std::strerror(error) : ""));
}

std::uint64_t random_nonce() {
  std::uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) fail("getrandom", errno);
  return nonce;
}

/// MFD_NOEXEC_SEAL (Linux 6.3): no mode bits for execution, and none to come. C libraries older
/// than that do not name it.
constexpr unsigned kNoExecution = 0x0008U;

/// Its length never changes: if a peer truncated it, others would be killed by SIGBUS.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

int create_memory() {
  constexpr const char* kName = "hora.window";
  int descriptor = ::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecution);
  if (descriptor < 0 && errno == EINVAL) {
    descriptor = ::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }
  if (descriptor < 0) fail("memfd_create", errno);
  return descriptor;
}

/// Restricts it to this user, and fixes its length. 0 or errno.
int seal(int descriptor) {
  if (::fchmod(descriptor, S_IRUSR | S_IWUSR) != 0) return errno;
  return ::fcntl(descriptor, F_ADD_SEALS, kSeals) == 0 ? 0 : errno;
}

bool is_sealed(int descriptor) {
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & kSeals) == kSeals;
}

std::string megabytes(std::uint64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

}  // namespace

Window::Window(std::size_t bytes) {
  // ftruncate never fails for lack of memory, and touching pages beyond a limit kills the process.
  const std::uint64_t available = available_memory();
  if (bytes > available) {
    throw Error(ErrorCode::out_of_memory,
                "shared memory: " + megabytes(bytes) + " wanted, " + megabytes(available) +
                    " left on this machine or in its control group. Use fewer ranks per node, "
                    "smaller tensors, or raise the limit");
  }
  descriptor_ = create_memory();
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    ::close(std::exchange(descriptor_, -1));
    fail("ftruncate to " + megabytes(bytes), error);
  }
  if (const int error = seal(descriptor_)) {
    ::close(std::exchange(descriptor_, -1));
    fail("sealing", error);
  }
  map(descriptor_, bytes);
  ticket_ = {.pid = ::getpid(), .descriptor = descriptor_, .bytes = bytes, .nonce = random_nonce()};
  const WindowHeader header{kMagic, ticket_.nonce};
  std::memcpy(data_, &header, sizeof header);
}

Window::Window(const WindowTicket& ticket) {
  const std::string path =
      "/proc/" + std::to_string(ticket.pid) + "/fd/" + std::to_string(ticket.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) fail("opening a peer's window " + path, errno);
  struct stat status {};
  const bool whole = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
                     static_cast<std::uint64_t>(status.st_size) == ticket.bytes &&
                     ticket.bytes >= kHeaderBytes && is_sealed(descriptor);
  if (!whole) {
    ::close(descriptor);
    fail(path + " is not the peer's window (another PID namespace?)", 0);
  }
  descriptor_ = descriptor;
  map(descriptor, ticket.bytes);
  ::close(std::exchange(descriptor_, -1));
  WindowHeader header{};
  std::memcpy(&header, data_, sizeof header);
  if (header.magic != kMagic || header.nonce != ticket.nonce) {
    ::munmap(std::exchange(data_, nullptr), size_);
    fail(path + " is not the peer's window: its nonce differs (another PID namespace?)", 0);
  }
  ticket_ = ticket;
}

void Window::map(int descriptor, std::size_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) {
    const int error = errno;
    ::close(std::exchange(descriptor_, -1));
    fail("mapping " + megabytes(bytes), error);
  }
  // Where the administrator lets shared memory have them if it asks
  // (/sys/kernel/mm/transparent_hugepage/shmem_enabled: advise); elsewhere nothing changes.
  if (bytes >= kLeastForHugePages) ::madvise(address, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(address);
  size_ = bytes;
}

Window::Window(Window&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      ticket_(std::exchange(other.ticket_, {})) {}

Window& Window::operator=(Window&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(ticket_, other.ticket_);
  return *this;
}

Window::~Window() {
  if (data_) ::munmap(data_, size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

namespace {

struct SharedPages {
  std::byte* data;
  std::size_t bytes;
  int descriptor;
};

/// All of this process; its lock is held over fork(), so that the child finds a whole list.
struct Registry {
  std::mutex mutex;
  std::vector<SharedPages> pages;

  Registry() { ::pthread_atfork(lock, unlock, make_private); }
  static Registry& get() {
    static auto& registry = *new Registry;  // never destroyed: children may be forked at the end
    return registry;
  }

 private:
  static void lock() { get().mutex.lock(); }
  static void unlock() { get().mutex.unlock(); }
  static void make_private() {
    for (const SharedPages& shared : get().pages) {
      const void* const mapped = ::mmap(shared.data, shared.bytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_FIXED, shared.descriptor, 0);
      // Without them a child that uses them is ended; with them it would write into the rank's.
      if (mapped == MAP_FAILED) ::munmap(shared.data, shared.bytes);
    }
    get().pages.clear();
    unlock();
  }
};

}  // namespace

ForkShield::ForkShield(std::byte* data, std::size_t bytes, int descriptor) : data_(data) {
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  registry.pages.push_back({data, bytes, descriptor});
}

ForkShield::~ForkShield() {
  if (data_ == nullptr) return;
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  std::erase_if(registry.pages, [this](const SharedPages& shared) { return shared.data == data_; });
}

}  // namespace hora::internal
