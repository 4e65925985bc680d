#include "examples/vision/data/record_files.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "examples/vision/data/input_file.h"

namespace vision {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse(const fs::path& path, const std::string& what, std::size_t record_bytes,
                         std::size_t records) {
  throw std::runtime_error("Data file " + path.string() + what + "; expected " +
                           std::to_string(records * record_bytes) + " bytes (" +
                           std::to_string(records) + " records of " + std::to_string(record_bytes) +
                           ") or fewer whole records. Fetch or prepare the data again");
}

// Appends the file's records to `into`; `buffer` is memory for the file.
void append(const fs::path& path, const RecordFile& file, const RecordLayout& layout,
            std::vector<std::uint8_t>& buffer, PlanarRecords& into) {
  const std::size_t bytes = layout.bytes();
  if (!fs::exists(path)) {
    refuse(path, " is missing: found 0 bytes", bytes, file.records);
  }
  const InputFile input(path);
  const std::size_t records = count_records(path, input.size(), bytes, file.records);
  buffer.resize(records * bytes);
  input.read(buffer);
  into.files.push_back({path.string(), records});
  into.labels.reserve(into.labels.size() + records);
  into.pixels.reserve(into.pixels.size() + records * image_bytes(layout.size));
  for (std::size_t record = 0; record < records; ++record) {
    const std::uint8_t* pixels = &buffer[record * bytes + layout.labels];
    const int label = pixels[-1];
    if (label >= layout.classes) {
      throw std::runtime_error("Data file " + path.string() + ": record " + std::to_string(record) +
                               " (byte " + std::to_string((record * bytes) + layout.labels - 1) +
                               ") has label " + std::to_string(label) + "; labels are 0 to " +
                               std::to_string(layout.classes - 1));
    }
    into.labels.push_back(static_cast<std::uint8_t>(label));
    into.pixels.insert(into.pixels.end(), pixels, pixels + image_bytes(layout.size));
  }
}

}  // namespace

std::size_t count_records(const fs::path& path, std::uint64_t found, std::size_t record_bytes,
                          std::size_t most) {
  const std::string bytes = ": found " + std::to_string(found) + " bytes";
  if (found == 0) {
    refuse(path, " is empty" + bytes, record_bytes, most);
  }
  if (found > most * record_bytes) {
    refuse(path, " is too long" + bytes, record_bytes, most);
  }
  if (found % record_bytes != 0) {
    refuse(path, " is truncated" + bytes, record_bytes, most);
  }
  return found / record_bytes;
}

PlanarRecords read_records(const fs::path& folder, std::span<const RecordFile> files,
                           const RecordLayout& layout) {
  PlanarRecords records;
  std::vector<std::uint8_t> buffer;
  for (const RecordFile& file : files) {
    append(folder / file.name, file, layout, buffer, records);
  }
  return records;
}

bool is_subset(const PlanarRecords& found, std::span<const RecordFile> files) {
  return !std::equal(found.files.begin(), found.files.end(), files.begin(), files.end(),
                     [](const PlanarRecords::File& held, const RecordFile& published) {
                       return held.records == published.records;
                     });
}

}  // namespace vision
