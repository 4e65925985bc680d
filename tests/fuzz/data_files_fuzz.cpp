// Any bytes as the files of a data set: refused with a reason, or what they hold.
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "examples/vision/data/record_sets.h"
#include "tests/fuzz/require.h"
#include "tests/support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

template <class Read>
void expect_reason(Read&& read) {
  try {
    read();
  } catch (const std::runtime_error& error) {
    HORA_REQUIRE(*error.what() != '\0');
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace vision;
  static const hora::internal::test::TemporaryFolder folder;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    const RecordFile file{"records.bin", 3};
    write(folder.path() / file.name, bytes);
    expect_reason([&] {
      const PlanarRecords records =
          read_records(folder.path(), std::span(&file, 1), cifar10_layout);
      for (const std::uint8_t label : records.labels) {
        HORA_REQUIRE(label < cifar10_layout.classes);
      }
      HORA_REQUIRE(records.pixels.size() == records.labels.size() * image_bytes(cifar_size));
    });
  } else {
    // The file that says what a folder holds.
    write(folder.path() / class_names_file, bytes);
    expect_reason([&] { open_cifar(folder.path()); });
  }
  return 0;
}
