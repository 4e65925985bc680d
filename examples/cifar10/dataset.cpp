#include "examples/cifar10/dataset.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "examples/cifar10/input_file.h"

namespace cifar10 {

namespace fs = std::filesystem;

namespace {

std::string expected_size(std::size_t records) {
  return "; expected " + std::to_string(records * record_bytes) + " bytes (" +
         std::to_string(records) + " records of " + std::to_string(record_bytes) +
         ") or fewer whole records";
}

[[noreturn]] void refuse(const fs::path& path, const std::string& what, std::size_t records) {
  throw std::runtime_error("Data file " + path.string() + what + expected_size(records) +
                           ". Fetch or prepare the data again");
}

// How many records a file holds that holds at most `records`.
std::size_t records_in(const fs::path& path, std::size_t records) {
  if (!fs::exists(path)) {
    refuse(path, " is missing: found 0 bytes", records);
  }
  const std::uint64_t found = InputFile(path).size();
  const std::string bytes = ": found " + std::to_string(found) + " bytes";
  if (found == 0) {
    refuse(path, " is empty" + bytes, records);
  }
  if (found > records * record_bytes) {
    refuse(path, " is too long" + bytes, records);
  }
  if (found % record_bytes != 0) {
    refuse(path, " is truncated" + bytes, records);
  }
  return found / record_bytes;
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
  std::vector<std::size_t> held;
  std::size_t total = 0;
  for (const DataFile& file : files) {
    held.push_back(records_in(folder / file.name, file.records));
    total += held.back();
    is_subset_ |= held.back() < file.records;
  }
  const std::size_t wanted = limit == 0 ? total : std::min(limit, total);
  records_.resize(wanted * record_bytes);
  std::size_t done = 0;
  for (std::size_t i = 0; done < wanted; ++i) {
    const std::size_t part = std::min(held[i], wanted - done);
    const std::span<std::uint8_t> bytes =
        std::span(records_).subspan(done * record_bytes, part * record_bytes);
    const fs::path path = folder / files[i].name;
    InputFile(path).read(bytes);
    check_labels(path, bytes);
    done += part;
  }
}

std::string Data::id() const {
  return source.id + (training.is_subset() || validation.is_subset() ? "-subset" : "");
}

std::string Data::title() const {
  return (training.is_subset() || validation.is_subset() ? "a subset of " : "") + source.title;
}

Data load_data(const fs::path& folder, std::size_t limit) {
  const fs::path files = data_folder(folder);
  const DataSource& source = identify(files);
  return {source, Dataset(files, source.training, limit), Dataset(files, source.validation, limit)};
}

}  // namespace cifar10
