#include "core/launch/agent/preparation.h"

#include <sched.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "core/launch/control/event_loop.h"
#include "core/process.h"

namespace hora::launch {
namespace {

/// Why the file cannot be executed; empty where it can.
std::string problem_with_program(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::strerror(errno);
  if (S_ISDIR(status.st_mode)) return "it is a folder";
  if (::access(path.c_str(), X_OK) != 0) return "it may not be executed (chmod +x)";
  return {};
}

std::optional<std::string> find_in_path(const std::string& program, std::string path) {
  while (!path.empty()) {
    const auto end = path.find(':');
    const std::string candidate = path.substr(0, end) + "/" + program;
    if (problem_with_program(candidate).empty()) return candidate;
    path = end == path.npos ? "" : path.substr(end + 1);
  }
  return std::nullopt;
}

std::string problem_with_program(const Prepare& request) {
  const std::string copy = "; copy it there, or name a folder that all hosts share";
  if (request.program.find('/') == std::string::npos) {
    if (find_in_path(request.program, request.path)) return {};
    return "the program " + request.program + " is in none of PATH's folders (" + request.path +
           "); write ./" + request.program + " for one in the present folder";
  }
  const std::string path =
      request.program.starts_with('/') ? request.program : request.folder + "/" + request.program;
  const std::string problem = problem_with_program(path);
  return problem.empty() ? problem : "the program " + path + ": " + problem + copy;
}

std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  std::uint64_t kib = 0;
  while (file >> name >> kib) {
    std::getline(file, unit);
    if (name == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

unsigned granted_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<unsigned>(CPU_COUNT(&set));
}

}  // namespace

Prepared prepare(const Prepare& request) {
  Prepared result;
  result.cores = granted_cores();
  result.memory = available_memory();
  struct stat status {};
  if (::stat(request.folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    result.problems.push_back("the folder " + request.folder + ": " + std::strerror(errno) +
                              "; ranks start in the folder in which horarun was started");
  } else if (std::string problem = problem_with_program(request); !problem.empty()) {
    result.problems.push_back(std::move(problem));
  }
  struct statvfs memory {};
  if (request.shared_memory > 0 && ::statvfs("/dev/shm", &memory) == 0) {
    const std::uint64_t free = std::uint64_t{memory.f_bavail} * memory.f_frsize;
    if (free < request.shared_memory) {
      result.problems.push_back(
          "/dev/shm has " + std::to_string(free >> 20) + " MiB left, the job needs " +
          std::to_string(request.shared_memory >> 20) +
          " MiB; remove what lies there, or make it larger (containers: --shm-size)");
    }
  }
  return result;
}

Hello this_host() {
  Hello hello;
  hello.version = HORA_VERSION;
  utsname machine{};
  if (::uname(&machine) == 0) hello.architecture = machine.machine;
  hello.host = internal::host_name();
  hello.pid = ::getpid();
  hello.clock_ns = wall_clock_ns();
  hello.root = ::geteuid() == 0;
  return hello;
}

}  // namespace hora::launch
