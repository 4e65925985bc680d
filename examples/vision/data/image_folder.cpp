#include "examples/vision/data/image_folder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "examples/vision/data/input_file.h"

namespace vision {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{256} << 20U;

bool is_image_name(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

// Section 5.2 of the PNG specification. JPEG is what libjpeg makes of all others.
bool is_png(std::span<const std::uint8_t> bytes) {
  constexpr std::array<std::uint8_t, 8> signature{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  return bytes.size() >= signature.size() &&
         std::equal(signature.begin(), signature.end(), bytes.begin());
}

std::vector<std::string> class_names(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw std::runtime_error("Image folder " + folder.string() +
                             (fs::exists(folder) ? " is not a folder" : " does not exist") +
                             "; expected one with a folder for each class");
  }
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    std::error_code ignored;
    if (entry.is_directory(ignored)) {
      names.push_back(entry.path().filename().string());
    } else if (entry.is_symlink() && !entry.exists(ignored)) {
      throw std::runtime_error("Class folder " + entry.path().string() +
                               " is a link to nowhere; expected a folder, or remove it");
    }
  }
  if (names.empty()) {
    throw std::runtime_error("Image folder " + folder.string() +
                             " holds no folder; expected one for each class");
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The images' paths from `folder` on, in order. Counts in `listing` what is left out.
std::vector<fs::path> image_names(const fs::path& folder, ImageListing& listing) {
  std::vector<fs::path> names;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (!is_image_name(entry.path())) continue;
    if (entry.is_regular_file(ignored)) {
      names.push_back(entry.path().lexically_relative(folder));
    } else if (++listing.left_out == 1) {
      listing.first_left_out = entry.path().string();
    }
  }
  std::sort(names.begin(), names.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(a.parent_path().native(), a.filename().native()) <
           std::pair(b.parent_path().native(), b.filename().native());
  });
  return names;
}

// Empty where nothing is.
std::string left_out_text(const ImageListing& listing) {
  if (listing.left_out == 0) return {};
  return "left out: " + std::to_string(listing.left_out) +
         " with an image's name that are no file, the first " + listing.first_left_out;
}

void expect_equal_classes(const fs::path& folder, const std::vector<std::string>& training,
                          const std::vector<std::string>& validation) {
  std::vector<std::string> lonely;
  std::set_symmetric_difference(training.begin(), training.end(), validation.begin(),
                                validation.end(), std::back_inserter(lonely));
  if (!lonely.empty()) {
    const bool in_training = std::binary_search(training.begin(), training.end(), lonely.front());
    throw std::runtime_error("Image folder " + folder.string() + ": class " + lonely.front() +
                             " is in " +
                             (in_training ? "train, but not in val" : "val, but not in train") +
                             "; expected the same classes in both (" +
                             std::to_string(lonely.size()) + " are in one alone)");
  }
}

}  // namespace

ImageListing list_images(const fs::path& folder) {
  ImageListing listing;
  listing.folder = folder.string();
  listing.classes = class_names(folder);
  for (std::size_t label = 0; label < listing.classes.size(); ++label) {
    const fs::path class_folder = folder / listing.classes[label];
    const std::vector<fs::path> names = image_names(class_folder, listing);
    if (names.empty()) {
      const std::string none = left_out_text(listing);
      throw std::runtime_error("Class folder " + class_folder.string() +
                               " holds no image; expected .jpg, .jpeg or .png files, or remove it" +
                               (none.empty() ? "" : "; " + none));
    }
    for (const fs::path& name : names) {
      listing.names += name.native();
      listing.starts.push_back(listing.names.size());
      listing.labels.push_back(static_cast<std::int32_t>(label));
    }
  }
  return listing;
}

std::vector<std::size_t> count_images(const ImageListing& listing) {
  std::vector<std::size_t> counts(listing.classes.size(), 0);
  for (const std::int32_t label : listing.labels) {
    ++counts[static_cast<std::size_t>(label)];
  }
  return counts;
}

ImageFolder::ImageFolder(std::string title, ImageListing listing)
    : Dataset(std::move(title), listing.classes), listing_(std::move(listing)) {}

EncodedImage ImageFolder::encoded(std::size_t index, std::vector<std::uint8_t>& memory) const {
  try {
    read_file(where(index), most_bytes, memory);
  } catch (const std::runtime_error& error) {
    throw BadImage(error.what());
  }
  return {is_png(memory) ? ImageFormat::png : ImageFormat::jpeg, memory, {}};
}

std::string ImageFolder::where(std::size_t index) const {
  const std::size_t start = listing_.starts[index];
  fs::path path(listing_.folder);
  path /= listing_.classes[static_cast<std::size_t>(listing_.labels[index])];
  path /= std::string_view(listing_.names).substr(start, listing_.starts[index + 1] - start);
  return path.string();
}

DataSets open_image_folders(const fs::path& folder) {
  ImageListing training = list_images(folder / "train");
  ImageListing validation = list_images(folder / "val");
  expect_equal_classes(folder, training.classes, validation.classes);
  const bool is_imagenet = training.classes.size() == 1000 && training.labels.size() == 1'281'167 &&
                           validation.labels.size() == 50'000;
  const std::string title = is_imagenet ? "ImageNet" : "the images in " + folder.string();
  DataSets data{.kind = DataKind::image_folder, .training = {}, .validation = {}};
  for (const ImageListing* listing : {&training, &validation}) {
    if (listing->left_out > 0) data.notes.push_back(left_out_text(*listing));
  }
  data.training = std::make_unique<ImageFolder>(title, std::move(training));
  data.validation = std::make_unique<ImageFolder>(title, std::move(validation));
  return data;
}

}  // namespace vision
