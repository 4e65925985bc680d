// Where there is no libFuzzer: runs the target on every file of the folders given, and on all of
// their beginnings.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "tests/support/read_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      const std::string bytes = hora::internal::test::read_file(entry.path());
      const std::size_t step = bytes.size() / 200 + 1;
      for (std::size_t length = bytes.size(); length > 0; length -= std::min(step, length)) {
        // A block of exactly this length, so that AddressSanitizer sees a read beyond it.
        const std::string beginning(bytes, 0, length);
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(beginning.data()), length);
      }
      ++files;
    }
  }
  LLVMFuzzerTestOneInput(nullptr, 0);
  std::printf("%d files\n", files);
  return files > 0 ? 0 : 1;
}
