#include "core/launch/agent/preparation.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/launch/command/cores.h"
#include "core/launch/command/program.h"
#include "core/launch/command/resource_limits.h"
#include "core/launch/control/event_loop.h"

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

}  // namespace hora::launch
