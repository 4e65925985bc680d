#include "core/launch/agent/preparation.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "core/launch/command/command.h"
#include "core/launch/command/cores.h"
#include "core/launch/control/child_process.h"
#include "core/launch/control/event_loop.h"
#include "core/launch/control/unique_fd.h"

namespace hora::launch {
namespace {

std::string wrong_with_folder(const std::string& folder) {
  struct stat status {};
  std::string why;
  if (::stat(folder.c_str(), &status) != 0) {
    why = std::strerror(errno);
  } else if (!S_ISDIR(status.st_mode)) {
    why = "it is no folder";
  } else {
    return {};
  }
  return "the folder " + folder + ": " + why +
         "; ranks start in the folder in which horarun was started, or that --wdir names";
}

std::string wrong_with_program(const Prepare& request) {
  const std::string path = program_from(request.folder, request.program);
  const auto file = inspect_program(path, request.path);
  if (file) return {};
  std::error_code ignored;
  const bool is_missing = path.find('/') != path.npos && !std::filesystem::exists(path, ignored);
  return file.error() +
         (is_missing ? "; copy it there, or name a folder that all hosts share" : "");
}

/// Twice the 8 MiB that Open MPI's daemon writes there for itself and its ranks.
constexpr std::uint64_t kTemporaryBytes = std::uint64_t{16} << 20;

std::string temporary_folder() {
  const char* folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder == '/' ? folder : "/tmp";
}

std::string wrong_with_environment() {
  struct statvfs space {};
  const bool is_known = ::statvfs(temporary_folder().c_str(), &space) == 0 && space.f_blocks > 0;
  const std::uint64_t left = std::uint64_t{space.f_bavail} * space.f_frsize;
  if (is_known && left < kTemporaryBytes) {
    return "the folder " + temporary_folder() + " has " + std::to_string(left >> 20) +
           " MiB left, MPI needs " + std::to_string(kTemporaryBytes >> 20) +
           "; remove what lies there, or set TMPDIR to another";
  }
  const char* path = std::getenv("PATH");
  if (path != nullptr && *path != '\0') return {};
  return "PATH is not set, without which mpirun does not start; export "
         "PATH=/usr/local/bin:/usr/bin:/bin";
}

std::uint64_t free_shared_memory() {
  struct statvfs memory {};
  return ::statvfs("/dev/shm", &memory) == 0 ? std::uint64_t{memory.f_bavail} * memory.f_frsize : 0;
}

std::string cores_in_words(const Prepare& request) {
  if (request.ranks == 0) return {};
  const auto binding = parse_binding(request.binding).value_or(Binding::automatic);
  return describe_cores(granted_cores(), static_cast<int>(request.ranks), binding,
                        static_cast<int>(request.world_size), request.threads);
}

}  // namespace

Prepared prepare(const Prepare& request) {
  Prepared result;
  if (std::string wrong = wrong_with_folder(request.folder); !wrong.empty()) {
    result.problems.push_back(std::move(wrong));
  } else if (wrong = wrong_with_program(request); !wrong.empty()) {
    result.problems.push_back(std::move(wrong));
  }
  if (std::string wrong = wrong_with_environment(); !wrong.empty()) {
    result.problems.push_back(std::move(wrong));
  }
  result.cores = cores_in_words(request);
  result.memory = available_memory(read_small_file);
  result.shared_memory = free_shared_memory();
  result.clock_ns = wall_clock_ns();
  return result;
}

Hello this_host() {
  Hello hello;
  hello.version = HORA_VERSION;
  utsname machine{};
  if (::uname(&machine) == 0) hello.architecture = machine.machine;
  return hello;
}

namespace {

constexpr char kPrefix[] = "horarun-";
constexpr char kTmpdirVariable[] = "HORARUN_TMPDIR";  ///< the TMPDIR that ranks are to have

std::string make_folder(const std::string& parent, const std::string& advice = {}) {
  std::string path = parent + "/" + kPrefix + "XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    throw std::runtime_error("no folder can be made in " + parent + ": " + std::strerror(errno) +
                             advice);
  }
  return path;
}

}  // namespace

SessionFolders::SessionFolders() {
  paths_.push_back(make_folder(temporary_folder(), "; set TMPDIR to one that can be written"));
  try {
    paths_.push_back(make_folder("/dev/shm"));
  } catch (...) {
    remove_session_folders(paths_);
    throw;
  }
}

SessionFolders::~SessionFolders() {
  remove_session_folders(paths_);
}

std::vector<std::string> SessionFolders::environment() const {
  const char* own = std::getenv("TMPDIR");
  return {std::string(kFoldersVariable) + "=" + paths_[0] + ":" + paths_[1],
          std::string(kTmpdirVariable) + "=" + (own == nullptr ? "" : own), "TMPDIR=" + paths_[0]};
}

std::vector<std::string> rank_environment_of_session() {
  const auto folders = session_folders_of_environment();
  if (folders.size() != 2) return {};
  std::vector<std::string> result;
  for (const char* name :
       {"OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"}) {
    if (std::getenv(name) == nullptr) result.push_back(std::string(name) + "=" + folders[1]);
  }
  const char* own = std::getenv(kTmpdirVariable);
  if (own != nullptr) result.push_back("TMPDIR=" + std::string(*own == '\0' ? "/tmp" : own));
  return result;
}

void start_keeper(const SessionFolders& folders) {
  ChildOptions options;
  options.arguments = {"/proc/self/exe", "--keeper", std::to_string(::getpid())};
  options.arguments.insert(options.arguments.end(), folders.paths().begin(), folders.paths().end());
  // Streams of its own: the agent's are its connection with the launcher.
  const UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  options.output = options.error = nowhere.get();
  options.own_session = true;
  const auto started = start_child(options);
  if (!started) throw std::runtime_error(started.error());
}

int run_keeper(std::span<const std::string> arguments) {
  if (arguments.empty()) return 2;
  ::signal(SIGTERM, SIG_IGN);
  const pid_t agent = std::atoi(arguments[0].c_str());
  const UniqueFd process = open_process(agent);
  pollfd entry{process.get(), POLLIN, 0};
  while (process && ::getppid() == agent && ::poll(&entry, 1, -1) < 0 && errno == EINTR) {
  }
  // Processes that are ending may still add files.
  const std::vector<std::string> folders(arguments.begin() + 1, arguments.end());
  const auto end = Clock::now() + std::chrono::seconds(1);
  while (Clock::now() < end) {
    remove_session_folders(folders);
    ::usleep(50000);
  }
  return 0;
}

void remove_session_folders(const std::vector<std::string>& paths) noexcept {
  for (const std::string& path : paths) {
    const std::filesystem::path folder(path);
    if (!folder.is_absolute() || !folder.filename().native().starts_with(kPrefix)) continue;
    std::error_code error;
    // A process that is ending may still add a file.
    for (int attempt = 0; attempt < 3; ++attempt) {
      std::filesystem::remove_all(folder, error);
      if (!error) break;
    }
  }
}

std::vector<std::string> session_folders_of_environment() {
  const char* text = std::getenv(kFoldersVariable);
  std::string rest = text == nullptr ? "" : text;
  std::vector<std::string> result;
  while (!rest.empty()) {
    const auto end = rest.find(':');
    result.push_back(rest.substr(0, end));
    rest = end == rest.npos ? "" : rest.substr(end + 1);
  }
  return result;
}

}  // namespace hora::launch
