// Where there is no libFuzzer: `fuzz_replay TARGET FOLDER...` runs a target on every file of the
// folders, and on all of their beginnings.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

#include "tests/support/read_file.h"

// FUZZ_TARGETS: FUZZ_TARGET(name) of each target, whose entry point CMake has renamed.
#define FUZZ_TARGET(name) extern "C" int fuzz_##name(const std::uint8_t* data, std::size_t size);
FUZZ_TARGETS
#undef FUZZ_TARGET

int main(int argc, char** argv) {
  int (*target)(const std::uint8_t*, std::size_t) = nullptr;
#define FUZZ_TARGET(name) \
  if (argc > 1 && std::strcmp(argv[1], #name) == 0) target = fuzz_##name;
  FUZZ_TARGETS
#undef FUZZ_TARGET
  if (target == nullptr) {
    std::fputs("usage: fuzz_replay TARGET FOLDER...\n", stderr);
    return 2;
  }
  int files = 0;
  for (int i = 2; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      const std::string bytes = hora::internal::test::read_file(entry.path());
      const std::size_t step = bytes.size() / 200 + 1;
      for (std::size_t length = bytes.size(); length > 0; length -= std::min(step, length)) {
        // A block of exactly this length, so that AddressSanitizer sees a read beyond it.
        const std::string beginning(bytes, 0, length);
        target(reinterpret_cast<const std::uint8_t*>(beginning.data()), length);
      }
      ++files;
    }
  }
  target(nullptr, 0);
  std::printf("%d files\n", files);
  return files > 0 ? 0 : 1;
}
