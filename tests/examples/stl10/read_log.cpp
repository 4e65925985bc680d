// Preloaded into a program: writes down which records of train_X.bin it reads, one number a line,
// into the file that READ_LOG names with the process behind it (READ_LOG.1234).
#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

constexpr off_t kRecord = 3 * 96 * 96;

bool is_training_part(int file) {
  char target[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t length = readlink(link.c_str(), target, sizeof target);
  return length > 0 &&
         std::string_view(target, static_cast<std::size_t>(length)).ends_with("/train_X.bin");
}

void note(off_t record) {
  static const char* const place = std::getenv("READ_LOG");
  if (place == nullptr) return;
  const std::string path = std::string(place) + "." + std::to_string(getpid());
  if (std::FILE* const log = std::fopen(path.c_str(), "a")) {
    std::fprintf(log, "%lld\n", static_cast<long long>(record));
    std::fclose(log);
  }
}

}  // namespace

// std::ifstream reads by this.
extern "C" [[gnu::visibility("default")]] ssize_t read(int file, void* bytes, size_t count) {
  using Read = ssize_t (*)(int, void*, size_t);
  static const auto real = reinterpret_cast<Read>(dlsym(RTLD_NEXT, "read"));
  if (count == kRecord && is_training_part(file)) note(lseek(file, 0, SEEK_CUR) / kRecord);
  return real(file, bytes, count);
}
