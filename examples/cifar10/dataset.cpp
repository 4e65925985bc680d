#include "examples/cifar10/dataset.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

namespace cifar10 {

namespace fs = std::filesystem;

namespace {

std::string expected_size(std::size_t records) {
  return std::to_string(records * record_bytes) + " bytes (" + std::to_string(records) +
         " records of " + std::to_string(record_bytes) + ")";
}

void check_size(const fs::path& path, std::size_t records) {
  const std::string expected = "; expected " + expected_size(records);
  if (!fs::exists(path)) {
    throw std::runtime_error("Data file " + path.string() + " is missing: found 0 bytes" +
                             expected);
  }
  if (!fs::is_regular_file(path)) {
    throw std::runtime_error("Data file " + path.string() + " is not a regular file" + expected);
  }
  const std::uintmax_t found = fs::file_size(path);
  if (found != records * record_bytes) {
    const char* what = found == 0                       ? " is empty: found "
                       : found < records * record_bytes ? " is truncated: found "
                                                        : " is too long: found ";
    throw std::runtime_error("Data file " + path.string() + what + std::to_string(found) +
                             " bytes" + expected + ". Fetch or prepare the data again");
  }
}

void read(const fs::path& path, std::span<std::uint8_t> bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("Cannot open data file " + path.string() + ": " +
                             std::strerror(errno));
  }
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (static_cast<std::size_t>(file.gcount()) != bytes.size()) {
    throw std::runtime_error("Data file " + path.string() + ": read " +
                             std::to_string(file.gcount()) + " bytes, expected " +
                             std::to_string(bytes.size()));
  }
}

void check_labels(const fs::path& path, std::span<const std::uint8_t> bytes) {
  for (std::size_t offset = 0; offset < bytes.size(); offset += record_bytes) {
    if (bytes[offset] >= classes) {
      throw std::runtime_error("Data file " + path.string() + ": record " +
                               std::to_string(offset / record_bytes) + " (byte " +
                               std::to_string(offset) + ") has label " +
                               std::to_string(bytes[offset]) + "; labels are 0 to 9");
    }
  }
}

}  // namespace

Dataset::Dataset(const fs::path& folder, std::span<const DataFile> files, std::size_t limit) {
  std::size_t total = 0;
  for (const DataFile& file : files) {
    check_size(folder / file.name, file.records);
    total += file.records;
  }
  const std::size_t wanted = limit == 0 ? total : std::min(limit, total);
  records_.resize(wanted * record_bytes);
  std::size_t done = 0;
  for (const DataFile& file : files) {
    const std::size_t part = std::min(file.records, wanted - done);
    if (part == 0) {
      break;
    }
    const std::span<std::uint8_t> bytes =
        std::span(records_).subspan(done * record_bytes, part * record_bytes);
    read(folder / file.name, bytes);
    check_labels(folder / file.name, bytes);
    done += part;
  }
}

Data load_data(const fs::path& folder, std::size_t limit) {
  const fs::path files = data_folder(folder);
  const DataSource& source = identify(files);
  return {source, Dataset(files, source.training, limit), Dataset(files, source.validation, limit)};
}

}  // namespace cifar10
