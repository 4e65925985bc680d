#include "examples/vision/data/stl10.h"

#include <stdexcept>
#include <utility>

#include "examples/vision/data/record_files.h"

namespace vision {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t stl10_classes = 10;

// From planes by columns, at `from`, to planes by rows.
void transpose(const std::uint8_t* from, std::uint8_t* to) {
  constexpr std::size_t side = stl10_size.width;
  static_assert(stl10_size.width == stl10_size.height);
  for (std::size_t channel = 0; channel < image_channels; ++channel) {
    for (std::size_t row = 0; row < side; ++row) {
      for (std::size_t column = 0; column < side; ++column) {
        *to++ = from[(channel * side + column) * side + row];
      }
    }
  }
}

std::vector<std::uint8_t> read_labels(const fs::path& path, std::size_t most) {
  const InputFile file(path);
  std::vector<std::uint8_t> labels(count_records(path, file.size(), 1, most));
  file.read(labels);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 1 || labels[i] > stl10_classes) {
      throw std::runtime_error("Data file " + path.string() + ": byte " + std::to_string(i) +
                               " is label " + std::to_string(labels[i]) + "; labels are 1 to 10");
    }
  }
  return labels;
}

std::size_t images_in(const fs::path& path, std::size_t most) {
  return count_records(path, InputFile(path).size(), image_bytes(stl10_size), most);
}

}  // namespace

Stl10::Stl10(std::string title, std::vector<std::string> classes, const fs::path& folder,
             const Part& part)
    : Dataset(std::move(title), std::move(classes)),
      path_(folder / (part.name + "_X.bin")),
      images_(path_),
      labels_(read_labels(folder / (part.name + "_y.bin"), part.images)) {
  const std::size_t images =
      count_records(path_, images_.size(), image_bytes(stl10_size), part.images);
  if (images != labels_.size()) {
    throw std::runtime_error(path_.string() + " holds " + std::to_string(images) + " images, but " +
                             part.name + "_y.bin " + std::to_string(labels_.size()) +
                             " labels; expected as many. Fetch the data again");
  }
}

EncodedImage Stl10::encoded(std::size_t index, std::vector<std::uint8_t>& memory) const {
  // As it is in the file, and behind that as it is returned.
  constexpr std::size_t bytes = image_bytes(stl10_size);
  memory.resize(2 * bytes);
  try {
    images_.read(std::span(memory).first(bytes), std::uint64_t{index} * bytes);
  } catch (const std::runtime_error& error) {
    throw BadImage(where(index), error.what());
  }
  transpose(memory.data(), memory.data() + bytes);
  return {ImageFormat::planar_rgb, std::span<const std::uint8_t>(memory).subspan(bytes),
          stl10_size};
}

std::string Stl10::where(std::size_t index) const {
  return path_.string() + ", record " + std::to_string(index);
}

DataSets open_stl10(const fs::path& folder) {
  const fs::path names = folder / "class_names.txt";
  std::vector<std::string> classes = read_lines(names, 4096);
  if (classes.size() != stl10_classes) {
    throw std::runtime_error(names.string() + " lists " + std::to_string(classes.size()) +
                             " class names; expected 10, one a line");
  }
  const Stl10::Part training{"train", stl10_training_images};
  const Stl10::Part validation{"test", stl10_validation_images};
  const bool subset = images_in(folder / "train_X.bin", training.images) < training.images ||
                      images_in(folder / "test_X.bin", validation.images) < validation.images;
  const std::string title = subset_title("STL-10", subset);
  DataSets data{.kind = DataKind::stl10, .is_subset = subset, .training = {}, .validation = {}};
  data.training = std::make_unique<Stl10>(title, classes, folder, training);
  data.validation = std::make_unique<Stl10>(title, std::move(classes), folder, validation);
  return data;
}

}  // namespace vision
