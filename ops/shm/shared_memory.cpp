#include "ops/shm/shared_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>

namespace hora::internal {

std::optional<BlockAllocator::SegmentBlock> BlockAllocator::allocate(std::size_t bytes) {
  const std::uint64_t wanted = align_up(std::max<std::size_t>(bytes, 1));
  auto fit = free_.end();
  for (auto block = free_.begin(); block != free_.end(); ++block) {
    const bool fits = block->second >= wanted;
    if (fits && (fit == free_.end() || block->second < fit->second)) fit = block;
  }
  if (fit == free_.end()) return std::nullopt;
  const auto [place, length] = *fit;
  free_.erase(fit);
  if (length > wanted) free_.emplace(Place{place.first, place.second + wanted}, length - wanted);
  used_.emplace(place, wanted);
  return SegmentBlock{place.first, place.second};
}

void BlockAllocator::release(SegmentBlock block) {
  const auto used = used_.find({block.segment, block.offset});
  if (used == used_.end()) return;
  Place place = used->first;
  std::uint64_t length = used->second;
  used_.erase(used);
  const auto after = free_.lower_bound(place);
  if (after != free_.end() && after->first == Place{place.first, place.second + length}) {
    length += after->second;
    free_.erase(after);
  }
  const auto next = free_.lower_bound(place);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first.first == place.first &&
        before->first.second + before->second == place.second) {
      place = before->first;
      length += before->second;
      free_.erase(before);
    }
  }
  free_.emplace(place, length);
}

namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : kUnlimited;  // "max", or no such file
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

/// The least limit of memory of this process's control group and its parents, version 2 and version
/// 1; `left`: what has been used is taken from each.
std::uint64_t least_in_control_groups(bool left) {
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
      const std::string group =
          fmt::format("/sys/fs/cgroup{}{}/memory.", unified ? "" : "/memory", path);
      const std::uint64_t limit = read_number(group + (unified ? "max" : "limit_in_bytes"));
      const std::uint64_t used =
          left ? read_number(group + (unified ? "current" : "usage_in_bytes")) : 0;
      if (limit != kUnlimited && used != kUnlimited) {
        least = std::min(least, limit > used ? limit - used : 0);
      }
      if (path.empty()) break;
    }
  }
  return least;
}

/// Shorter windows would take a good part more memory in huge pages than they are long.
constexpr std::size_t kLeastForHugePages = std::size_t{16} << 20;

constexpr std::uint64_t kMagic = 0x31776e69'61726f68;  // "horainw1"

struct WindowHeader {
  std::uint64_t magic;
  std::uint64_t nonce;
};
static_assert(sizeof(WindowHeader) <= Window::kHeaderBytes);

[[noreturn]] void fail(const std::string& what, int error) {
  throw Error(ErrorCode::transport, fmt::format("shared memory: {}{}{}", what, error ? ": " : "",
                                                error ? std::strerror(error) : ""));
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
  return fmt::format("{} MiB", bytes >> 20);
}

struct SharedPages {
  std::byte* data;
  std::size_t bytes;
  int descriptor;
};

/// The windows of this process's own; its lock is held over fork(), so that the child finds a whole
/// list.
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

std::uint64_t available_memory() {
  return std::min(meminfo("MemAvailable:"), least_in_control_groups(true));
}

std::uint64_t memory_of_host() {
  const std::uint64_t memory = std::min(meminfo("MemTotal:"), kMaxBytes);
  const std::uint64_t swap = std::min(meminfo("SwapTotal:"), kMaxBytes);
  return std::min({memory + swap, least_in_control_groups(false), kMaxBytes});
}

// Where a constructor fails, the destructor gives back what it has.
Window::Window(std::size_t bytes) : Window() {
  // ftruncate never fails for lack of memory, and touching pages beyond a limit kills the process.
  const std::uint64_t available = available_memory();
  if (bytes > available) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("shared memory: {} wanted, {} left on this machine or in its control "
                            "group. Use fewer ranks per node, smaller tensors, or raise the limit",
                            megabytes(bytes), megabytes(available)));
  }
  descriptor_ = create_memory();
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) {
    fail("ftruncate to " + megabytes(bytes), errno);
  }
  if (const int error = seal(descriptor_)) fail("sealing", error);
  map(bytes);
  ticket_ = {.pid = ::getpid(), .descriptor = descriptor_, .bytes = bytes, .nonce = random_nonce()};
  const WindowHeader header{kMagic, ticket_.nonce};
  std::memcpy(data_, &header, sizeof header);
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  registry.pages.push_back({data_, size_, descriptor_});
}

Window::Window(const WindowTicket& ticket) : Window() {
  const std::string path = fmt::format("/proc/{}/fd/{}", ticket.pid, ticket.descriptor);
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor_ < 0) fail("opening a peer's window " + path, errno);
  struct stat status {};
  const bool whole = ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode) &&
                     static_cast<std::uint64_t>(status.st_size) == ticket.bytes &&
                     ticket.bytes >= kDataOffset && is_sealed(descriptor_);
  if (!whole) fail(path + " is not the peer's window (another PID namespace?)", 0);
  map(ticket.bytes);
  ::close(std::exchange(descriptor_, -1));
  WindowHeader header{};
  std::memcpy(&header, data_, sizeof header);
  if (header.magic != kMagic || header.nonce != ticket.nonce) {
    fail(path + " is not the peer's window: its nonce differs (another PID namespace?)", 0);
  }
  ticket_ = ticket;
}

void Window::map(std::size_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (address == MAP_FAILED) fail("mapping " + megabytes(bytes), errno);
  // Where the administrator lets shared memory have them if it asks
  // (/sys/kernel/mm/transparent_hugepage/shmem_enabled: advise); elsewhere nothing changes.
  if (bytes >= kLeastForHugePages) ::madvise(address, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(address);
  size_ = bytes;
}

Window& Window::operator=(Window&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(ticket_, other.ticket_);
  return *this;
}

Window::~Window() {
  if (descriptor_ >= 0) {
    Registry& registry = Registry::get();
    const std::lock_guard lock(registry.mutex);
    std::erase_if(registry.pages, [&](const SharedPages& pages) { return pages.data == data_; });
  }
  if (data_) ::munmap(data_, size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

/// In this rank's first window, after its header. Entries below `count` are complete.
struct SharedMemory::Directory {
  std::atomic<std::uint32_t> count;
  std::array<WindowTicket, kMaxWindows> tickets;
};

struct SharedMemory::Peer {
  std::array<Window, kMaxWindows> windows;
  std::array<std::atomic<bool>, kMaxWindows> mapped{};  ///< then the window stays as it is
};

SharedMemory::SharedMemory(std::size_t first_bytes) {
  static_assert(sizeof(Directory) <= Window::kDataOffset - Window::kHeaderBytes);
  add_window(first_bytes);
}

SharedMemory::~SharedMemory() = default;

WindowTicket SharedMemory::ticket() const {
  const SharedGuard lock(mutex_);
  return windows_.front().ticket();
}

SharedMemory::Directory& SharedMemory::directory() const {
  return *reinterpret_cast<Directory*>(windows_.front().data() + Window::kHeaderBytes);
}

void SharedMemory::add_window(std::size_t bytes) {
  if (windows_.size() == kMaxWindows) {
    throw Error(
        ErrorCode::out_of_memory,
        fmt::format("shared memory: all {} windows of this rank are in use", windows_.size()));
  }
  const std::size_t length = align_up(bytes, 4096) + Window::kDataOffset;
  windows_.emplace_back(length);
  allocator_.add_segment(Window::kDataOffset, length - Window::kDataOffset);
  const auto index = static_cast<std::uint32_t>(windows_.size() - 1);
  directory().tickets[index] = windows_.back().ticket();
  directory().count.store(index + 1, std::memory_order_release);
}

void SharedMemory::connect(int local_rank, std::vector<Window> first_windows) {
  local_rank_ = local_rank;
  for (Window& window : first_windows) {
    auto peer = std::make_unique<Peer>();
    peer->mapped[0].store(window.data() != nullptr, std::memory_order_release);
    peer->windows[0] = std::move(window);
    peers_.push_back(std::move(peer));
  }
}

NodeMemory::MemoryBlock SharedMemory::allocate(std::size_t bytes) {
  const LockGuard lock(mutex_);
  auto block = allocator_.allocate(bytes);
  if (!block) {
    // At least half of what exists already, so that the number of windows stays small.
    std::size_t total = 0;
    for (const Window& window : windows_) total += window.size();
    add_window(std::max(align_up(bytes), total / 2));
    block = allocator_.allocate(bytes);
  }
  return {windows_[block->segment].data() + block->offset, {block->segment, 0, block->offset}};
}

void SharedMemory::release(std::byte* data) noexcept {
  const auto location = find(data, 1);
  if (!location) return;
  const LockGuard lock(mutex_);
  allocator_.release({location->window, location->offset});
}

std::optional<Location> SharedMemory::find(const std::byte* data, std::size_t bytes) const {
  const SharedGuard lock(mutex_);
  for (std::size_t w = 0; w < windows_.size(); ++w) {
    const std::byte* begin = windows_[w].data();
    if (data >= begin && data + bytes <= begin + windows_[w].size()) {
      return Location{static_cast<std::uint32_t>(w), 0, static_cast<std::uint64_t>(data - begin)};
    }
  }
  return std::nullopt;
}

std::byte* SharedMemory::address(int local_rank, Location location, std::size_t bytes) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::transport,
                fmt::format("shared memory: local rank {} names {}", local_rank, what));
  };
  if (location.window >= kMaxWindows) refuse("window " + std::to_string(location.window));
  const auto inside = [&](const Window& window) {
    if (location.offset < Window::kHeaderBytes ||
        !(Checked(location.offset) + bytes).at_most(window.size())) {
      refuse(fmt::format("{} bytes from {} on in window {}, which has {}", bytes, location.offset,
                         location.window, window.size()));
    }
    return window.data() + location.offset;
  };
  if (local_rank == local_rank_) {
    const SharedGuard lock(mutex_);
    return inside(windows_.at(location.window));
  }
  return inside(
      window_of(*peers_.at(static_cast<std::size_t>(local_rank)), local_rank, location.window));
}

const Window& SharedMemory::window_of(Peer& peer, int local_rank, std::uint32_t index) {
  Window& window = peer.windows[index];
  auto& mapped = peer.mapped[index];
  if (mapped.load(std::memory_order_acquire)) return window;
  const LockGuard lock(peers_mutex_);
  if (mapped.load(std::memory_order_acquire)) return window;
  const auto* names =
      reinterpret_cast<const Directory*>(peer.windows[0].data() + Window::kHeaderBytes);
  if (names->count.load(std::memory_order_acquire) <= index) {
    throw Error(ErrorCode::transport,
                fmt::format("shared memory: local rank {} has no window {}", local_rank, index));
  }
  window = Window(names->tickets[index]);
  mapped.store(true, std::memory_order_release);
  return window;
}

}  // namespace hora::internal
