#include "examples/vision/data/record_sets.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace vision {

namespace fs = std::filesystem;

namespace {

template <class... Arguments>
[[noreturn]] void refuse(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  throw std::runtime_error(fmt::format(text, std::forward<Arguments>(arguments)...));
}

// Refuses what is no regular file: opening a FIFO would wait.
std::ifstream open_regular(const fs::path& path) {
  if (const auto status = fs::status(path); fs::exists(status) && !fs::is_regular_file(status)) {
    refuse("{} is not a regular file", path.string());
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  return file;
}

void read_bytes(std::ifstream file, const fs::path& path, std::span<std::uint8_t> bytes,
                std::uint64_t offset = 0) {
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) {
    refuse("{}: read {} bytes from byte {} on, expected {}", path.string(), file.gcount(), offset,
           bytes.size());
  }
}

// The lines of a small file; empty ones are left out.
std::vector<std::string> read_names(const fs::path& path) {
  std::vector<std::uint8_t> bytes;
  read_file(path, 4096, bytes);
  std::istringstream text(std::string(bytes.begin(), bytes.end()));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

std::size_t count_records(const fs::path& path, std::size_t record_bytes, std::size_t most) {
  const bool exists = fs::exists(path);
  if (exists) open_regular(path);
  const std::uint64_t found = exists ? fs::file_size(path) : 0;
  const char* const wrong = !exists                       ? "missing"
                            : found == 0                  ? "empty"
                            : found > most * record_bytes ? "too long"
                            : found % record_bytes != 0   ? "truncated"
                                                          : nullptr;
  if (wrong != nullptr) {
    refuse(
        "Data file {} is {}: found {} bytes; expected {} bytes ({} records of {}) or fewer whole "
        "records. Fetch or prepare the data again",
        path.string(), wrong, found, most * record_bytes, most, record_bytes);
  }
  return found / record_bytes;
}

// Appends the file's records to `into`; `buffer` is memory for the file.
void append(const fs::path& path, const RecordFile& file, const RecordLayout& layout,
            std::vector<std::uint8_t>& buffer, PlanarRecords& into) {
  const std::size_t bytes = layout.bytes();
  const std::size_t records = count_records(path, bytes, file.records);
  buffer.resize(records * bytes);
  read_bytes(open_regular(path), path, buffer);
  into.files.push_back({path.string(), records});
  into.labels.reserve(into.labels.size() + records);
  into.pixels.reserve(into.pixels.size() + records * image_bytes(layout.size));
  for (std::size_t record = 0; record < records; ++record) {
    const std::uint8_t* pixels = &buffer[record * bytes + layout.labels];
    const int label = pixels[-1];
    if (label >= layout.classes) {
      refuse("Data file {}: record {} (byte {}) has label {}; labels are 0 to {}", path.string(),
             record, record * bytes + layout.labels - 1, label, layout.classes - 1);
    }
    into.labels.push_back(static_cast<std::uint8_t>(label));
    into.pixels.insert(into.pixels.end(), pixels, pixels + image_bytes(layout.size));
  }
}

const RecordSet& identify(const fs::path& folder) {
  if (fs::exists(folder / cifar100_records().training.front().name)) return cifar100_records();
  const fs::path path = folder / class_names_file;
  if (!fs::exists(path)) return cifar10_records();
  const std::vector<std::string> names = read_names(path);
  for (const RecordSet* set : {&cifar10_records(), &digits_records()}) {
    if (names == set->classes) return *set;
  }
  refuse(
      "{} lists {} class names that are neither CIFAR-10's (airplane to truck) nor the digits' "
      "(0 to 9), one a line; other data is not known here",
      path.string(), names.size());
}

bool is_subset(const PlanarRecords& found, std::span<const RecordFile> files) {
  return !std::equal(found.files.begin(), found.files.end(), files.begin(), files.end(),
                     [](const RecordFile& held, const RecordFile& published) {
                       return held.records == published.records;
                     });
}

/// One part of STL-10, PART_X.bin and PART_y.bin. A label's byte is 1 for the first class; an image
/// is the red, green and blue plane, each column by column.
class Stl10 final : public Dataset {
 public:
  Stl10(std::string title, std::vector<std::string> classes, fs::path path,
        std::vector<std::uint8_t> labels)
      : Dataset(std::move(title), std::move(classes)),
        path_(std::move(path)),
        labels_(std::move(labels)) {}

  std::size_t size() const override { return labels_.size(); }
  int label(std::size_t index) const override { return labels_[index] - 1; }
  EncodedImage encoded(std::size_t index, std::vector<std::uint8_t>& memory) const override {
    // As it is in the file, and behind that as it is returned.
    constexpr std::size_t bytes = image_bytes(stl10_size);
    memory.resize(2 * bytes);
    try {
      read_bytes(open_regular(path_), path_, std::span(memory).first(bytes), index * bytes);
    } catch (const std::runtime_error& error) {
      throw BadImage(where(index), error.what());
    }
    constexpr std::size_t side = stl10_size.width;
    for (std::size_t i = 0; i < bytes; ++i) {
      const std::size_t plane = i / (side * side);
      memory[bytes + i] = memory[(plane * side + i % side) * side + i / side % side];
    }
    return {ImageFormat::planar_rgb, std::span<const std::uint8_t>(memory).subspan(bytes),
            stl10_size};
  }
  std::string where(std::size_t index) const override {
    return fmt::format("{}, record {}", path_.string(), index);
  }

 private:
  fs::path path_;
  std::vector<std::uint8_t> labels_;  // as in the file
};

std::vector<std::uint8_t> read_stl10_labels(const fs::path& path, std::size_t images,
                                            std::size_t most) {
  std::vector<std::uint8_t> labels(count_records(path, 1, most));
  read_bytes(open_regular(path), path, labels);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 1 || labels[i] > 10) {
      refuse("Data file {}: byte {} is label {}; labels are 1 to 10", path.string(), i, labels[i]);
    }
  }
  if (labels.size() != images) {
    refuse("{} holds {} labels for {} images; expected as many. Fetch the data again",
           path.string(), labels.size(), images);
  }
  return labels;
}

}  // namespace

void read_file(const fs::path& path, std::uint64_t most, std::vector<std::uint8_t>& into) {
  std::ifstream file = open_regular(path);
  const std::uint64_t found = fs::file_size(path);
  if (found > most) {
    refuse("{} is too long: found {} bytes, expected at most {}", path.string(), found, most);
  }
  into.resize(found);
  read_bytes(std::move(file), path, into);
}

PlanarRecords read_records(const fs::path& folder, std::span<const RecordFile> files,
                           const RecordLayout& layout) {
  PlanarRecords records;
  std::vector<std::uint8_t> buffer;
  for (const RecordFile& file : files) append(folder / file.name, file, layout, buffer, records);
  return records;
}

PlanarImages::PlanarImages(std::string title, std::vector<std::string> classes, ImageSize size,
                           PlanarRecords records)
    : Dataset(std::move(title), std::move(classes)), size_(size), records_(std::move(records)) {}

EncodedImage PlanarImages::encoded(std::size_t index, std::vector<std::uint8_t>& /*memory*/) const {
  const std::size_t bytes = image_bytes(size_);
  return {ImageFormat::planar_rgb, std::span(records_.pixels).subspan(index * bytes, bytes), size_};
}

std::string PlanarImages::where(std::size_t index) const {
  auto file = records_.files.begin();
  for (; index >= file->records; ++file) index -= file->records;
  return fmt::format("{}, record {}", file->name, index);
}

const RecordSet& cifar10_records() {
  static const RecordSet set{
      .kind = DataKind::cifar10,
      .title = "CIFAR-10",
      .layout = cifar10_layout,
      .training = {{"data_batch_1.bin", 10000},
                   {"data_batch_2.bin", 10000},
                   {"data_batch_3.bin", 10000},
                   {"data_batch_4.bin", 10000},
                   {"data_batch_5.bin", 10000}},
      .validation = {{"test_batch.bin", 10000}},
      .classes = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
                  "truck"},
  };
  return set;
}

const RecordSet& cifar100_records() {
  static const RecordSet set{
      .kind = DataKind::cifar100,
      .title = "CIFAR-100",
      .layout = cifar100_layout,
      .training = {{"train.bin", 50000}},
      .validation = {{"test.bin", 10000}},
      .classes = std::vector<std::string>(100),
  };
  return set;
}

const RecordSet& digits_records() {
  static const RecordSet set{
      .kind = DataKind::digits,
      .title = "handwritten digits of scikit-learn (not CIFAR-10)",
      .layout = cifar10_layout,
      .training = {{"data_batch_1.bin", 1437}},
      .validation = {{"test_batch.bin", 360}},
      .classes = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
  };
  return set;
}

DataSets open_cifar(const fs::path& folder) {
  const RecordSet& set = identify(folder);
  PlanarRecords training = read_records(folder, set.training, set.layout);
  PlanarRecords validation = read_records(folder, set.validation, set.layout);
  const bool subset = is_subset(training, set.training) || is_subset(validation, set.validation);
  const auto make = [&](PlanarRecords records) {
    return std::make_unique<PlanarImages>((subset ? "a subset of " : "") + set.title, set.classes,
                                          set.layout.size, std::move(records));
  };
  return {.kind = set.kind,
          .is_subset = subset,
          .training = make(std::move(training)),
          .validation = make(std::move(validation))};
}

DataSets open_stl10(const fs::path& folder) {
  constexpr std::size_t training_images = 5000;
  constexpr std::size_t validation_images = 8000;
  const std::vector<std::string> classes{"airplane", "bird",  "car",    "cat",  "deer",
                                         "dog",      "horse", "monkey", "ship", "truck"};
  const auto count = [&](const char* file, std::size_t most) {
    return count_records(folder / file, image_bytes(stl10_size), most);
  };
  const std::size_t training = count("train_X.bin", training_images);
  const std::size_t validation = count("test_X.bin", validation_images);
  const bool subset = training < training_images || validation < validation_images;
  const auto make = [&](const std::string& part, std::size_t images, std::size_t most) {
    return std::make_unique<Stl10>(subset ? "a subset of STL-10" : "STL-10", classes,
                                   folder / (part + "_X.bin"),
                                   read_stl10_labels(folder / (part + "_y.bin"), images, most));
  };
  return {.kind = DataKind::stl10,
          .is_subset = subset,
          .training = make("train", training, training_images),
          .validation = make("test", validation, validation_images)};
}

}  // namespace vision
