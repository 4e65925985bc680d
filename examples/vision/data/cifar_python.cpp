#include "examples/vision/data/cifar_python.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "examples/vision/data/archive.h"
#include "examples/vision/data/cifar.h"
#include "examples/vision/data/input_file.h"
#include "examples/vision/data/pickle.h"

namespace vision {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{64} << 20U;  // a published file has 31 MB
constexpr const char* meta_name = "batches.meta";

// The published files of a part: as the binary version's, without the ending.
std::vector<RecordFile> without_ending(std::vector<RecordFile> files) {
  for (RecordFile& file : files) {
    file.name = fs::path(file.name).stem().string();
  }
  return files;
}

/// The files by name, from wherever they lie.
class Parts {
 public:
  Parts(const fs::path& place, const std::set<std::string>& names)
      : place_(place), is_folder_(fs::is_directory(place)) {
    if (is_folder_) {
      for (const std::string& name : names) {
        read_file(place / name, most_bytes, bytes_[name]);
      }
      return;
    }
    const std::string folder = std::string(cifar10_python_folder) + "/";
    std::set<std::string> wanted;
    for (const std::string& name : names) {
      wanted.insert(folder + name);
    }
    for (auto& [name, bytes] : read_archive(place, wanted, most_bytes)) {
      bytes_[name.substr(folder.size())] = std::move(bytes);
    }
    for (const std::string& name : names) {
      if (!bytes_.contains(name)) {
        throw std::runtime_error(where(name) + " is missing in the archive; expected CIFAR-10's " +
                                 "Python version");
      }
    }
  }

  /// For errors.
  std::string where(const std::string& name) const {
    return is_folder_ ? (place_ / name).string()
                      : place_.string() + ", " + cifar10_python_folder + "/" + name;
  }
  Pickle pickle(const std::string& name) const { return {bytes_.at(name), where(name)}; }

 private:
  fs::path place_;
  bool is_folder_;
  std::map<std::string, std::vector<std::uint8_t>> bytes_;
};

void append_pixels(const ByteMatrix& data, std::vector<std::uint8_t>& pixels) {
  if (!data.by_columns) {
    pixels.insert(pixels.end(), data.bytes.begin(), data.bytes.end());
    return;
  }
  for (std::size_t row = 0; row < data.rows; ++row) {
    for (std::size_t column = 0; column < data.columns; ++column) {
      pixels.push_back(data.bytes[column * data.rows + row]);
    }
  }
}

void append(const Parts& parts, const RecordFile& file, PlanarRecords& into) {
  const std::string where = parts.where(file.name);
  const Pickle pickle = parts.pickle(file.name);
  const ByteMatrix data = pickle.matrix("data");
  const std::vector<std::int64_t> labels = pickle.integers("labels");
  if (data.columns != image_bytes(cifar_size) || data.rows != labels.size() || data.rows == 0 ||
      data.rows > file.records) {
    throw std::runtime_error(where + " holds " + std::to_string(data.rows) + " x " +
                             std::to_string(data.columns) + " bytes and " +
                             std::to_string(labels.size()) + " labels; expected " +
                             std::to_string(file.records) + " x 3072 and as many labels, or fewer");
  }
  for (std::size_t record = 0; record < labels.size(); ++record) {
    if (labels[record] < 0 || labels[record] >= cifar10_layout.classes) {
      throw std::runtime_error(where + ": record " + std::to_string(record) + " has label " +
                               std::to_string(labels[record]) + "; labels are 0 to 9");
    }
    into.labels.push_back(static_cast<std::uint8_t>(labels[record]));
  }
  append_pixels(data, into.pixels);
  into.files.push_back({where, data.rows});
}

PlanarRecords read(const Parts& parts, const std::vector<RecordFile>& files) {
  PlanarRecords records;
  for (const RecordFile& file : files) {
    append(parts, file, records);
  }
  return records;
}

}  // namespace

DataSets open_cifar10_python(const fs::path& archive_or_folder) {
  RecordSet set = cifar10_records();
  set.training = without_ending(std::move(set.training));
  set.validation = without_ending(std::move(set.validation));
  std::set<std::string> names{meta_name};
  for (const auto* part : {&set.training, &set.validation}) {
    for (const RecordFile& file : *part) {
      names.insert(file.name);
    }
  }
  const Parts parts(archive_or_folder, names);
  std::vector<std::string> classes = parts.pickle(meta_name).strings("label_names");
  if (classes != set.classes) {
    throw std::runtime_error(parts.where(meta_name) + " lists " + std::to_string(classes.size()) +
                             " class names that are not CIFAR-10's (airplane to truck)");
  }
  PlanarRecords training = read(parts, set.training);
  PlanarRecords validation = read(parts, set.validation);
  return make_data_sets(set, std::move(classes), std::move(training), std::move(validation));
}

}  // namespace vision
