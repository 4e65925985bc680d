#include "examples/vision/data/dataset.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <string_view>

#include "examples/vision/data/record_sets.h"

namespace vision {

namespace fs = std::filesystem;

namespace {

/// The first images of another set.
class FirstImages final : public Dataset {
 public:
  FirstImages(std::unique_ptr<const Dataset> all, std::size_t size)
      : Dataset(all->title(), all->classes()), all_(std::move(all)), size_(size) {}

  std::size_t size() const override { return size_; }
  int label(std::size_t index) const override { return all_->label(index); }
  EncodedImage encoded(std::size_t index, std::vector<std::uint8_t>& memory) const override {
    return all_->encoded(index, memory);
  }
  std::string where(std::size_t index) const override { return all_->where(index); }

 private:
  std::unique_ptr<const Dataset> all_;
  std::size_t size_;
};

constexpr std::uint64_t most_bytes = std::uint64_t{256} << 20U;

/// The images of one part, as open_image_folders() describes them.
struct Listing {
  fs::path folder;
  std::vector<std::string> classes;
  std::vector<std::int32_t> labels;  // of each image
  // The images' paths within their class, one behind the other: a million strings would take twice
  // the memory.
  std::string names;
  std::vector<std::size_t> starts{0};  // of each name, and the end of the last
};

bool is_image_name(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

std::vector<std::string> class_names(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw std::runtime_error(
        fmt::format("Image folder {} {}; expected one with a folder for each class",
                    folder.string(), fs::exists(folder) ? "is not a folder" : "does not exist"));
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

// The images' paths from `folder` on, in order. A link that leads nowhere is a bad image.
std::vector<fs::path> image_names(const fs::path& folder) {
  std::vector<fs::path> names;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    std::error_code ignored;
    if (is_image_name(entry.path()) && !entry.is_directory(ignored)) {
      names.push_back(entry.path().lexically_relative(folder));
    }
  }
  std::sort(names.begin(), names.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(a.parent_path().native(), a.filename().native()) <
           std::pair(b.parent_path().native(), b.filename().native());
  });
  return names;
}

Listing list_images(const fs::path& folder) {
  Listing listing;
  listing.folder = folder;
  listing.classes = class_names(folder);
  for (std::size_t label = 0; label < listing.classes.size(); ++label) {
    const fs::path class_folder = folder / listing.classes[label];
    const std::vector<fs::path> names = image_names(class_folder);
    if (names.empty()) {
      throw std::runtime_error("Class folder " + class_folder.string() +
                               " holds no image; expected .jpg, .jpeg or .png files, or remove it");
    }
    for (const fs::path& name : names) {
      listing.names += name.native();
      listing.starts.push_back(listing.names.size());
      listing.labels.push_back(static_cast<std::int32_t>(label));
    }
  }
  return listing;
}

class ImageFolder final : public Dataset {
 public:
  ImageFolder(std::string title, Listing listing)
      : Dataset(std::move(title), listing.classes), listing_(std::move(listing)) {}

  std::size_t size() const override { return listing_.labels.size(); }
  int label(std::size_t index) const override { return listing_.labels[index]; }
  EncodedImage encoded(std::size_t index, std::vector<std::uint8_t>& memory) const override {
    try {
      read_file(where(index), most_bytes, memory);
    } catch (const std::runtime_error& error) {
      throw BadImage(error.what());
    }
    // ImageNet has a PNG by the name of .JPEG. Section 5.2 of the PNG specification.
    constexpr std::array<std::uint8_t, 8> png{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    const bool is_png =
        memory.size() >= png.size() && std::equal(png.begin(), png.end(), memory.begin());
    return {is_png ? ImageFormat::png : ImageFormat::jpeg, memory, {}};
  }
  std::string where(std::size_t index) const override {
    const std::size_t start = listing_.starts[index];
    return listing_.folder / listing_.classes[static_cast<std::size_t>(label(index))] /
           std::string_view(listing_.names).substr(start, listing_.starts[index + 1] - start);
  }

 private:
  Listing listing_;
};

DataSets refuse_python_version(const fs::path& path) {
  throw std::runtime_error(
      fmt::format("{0} is no data set in a binary version; if it is CIFAR-10's Python version, "
                  "convert it: examples/cifar10/from_python.py {0} OUTPUT",
                  path.string()));
}

struct Sign {
  const char* name;    // where this lies in the folder
  const char* within;  // there the data set is; "" for the folder itself
  DataSets (*open)(const fs::path& folder);
};

// The first that is there decides. With a file of class names alone the data files are missing,
// which then is the error.
constexpr std::array signs{
    Sign{"data_batch_1.bin", "", open_cifar},
    Sign{"train.bin", "", open_cifar},
    Sign{class_names_file, "", open_cifar},
    Sign{"data_batch_1", "", refuse_python_version},
    Sign{"train_X.bin", "", open_stl10},
    Sign{"cifar-10-batches-bin", "cifar-10-batches-bin", open_cifar},
    Sign{"cifar-100-binary", "cifar-100-binary", open_cifar},
    Sign{"cifar-10-batches-py", "cifar-10-batches-py", refuse_python_version},
    Sign{"cifar-10-python.tar.gz", "cifar-10-python.tar.gz", refuse_python_version},
    Sign{"stl10_binary", "stl10_binary", open_stl10},
    Sign{"train", "", open_image_folders},
};

}  // namespace

std::string DataSets::id() const {
  constexpr std::array names{"cifar10", "cifar100", "digits", "stl10", "image-folder"};
  return std::string(names.at(static_cast<std::size_t>(kind))) + (is_subset ? "-subset" : "");
}

void keep_first(DataSets& data, std::size_t limit) {
  for (auto* set : {&data.training, &data.validation}) {
    if (limit != 0 && limit < (*set)->size()) {
      *set = std::make_unique<FirstImages>(std::move(*set), limit);
    }
  }
}

DataSets open_data(const fs::path& path) {
  if (!fs::exists(path)) {
    throw NoData("Data folder " + path.string() + " does not exist");
  }
  if (!fs::is_directory(path)) {
    return refuse_python_version(path);
  }
  std::string looked_for;
  for (const Sign& sign : signs) {
    if (fs::exists(path / sign.name)) {
      return sign.open(sign.within[0] == '\0' ? path : path / sign.within);
    }
    looked_for += std::string(looked_for.empty() ? "" : ", ") + sign.name;
  }
  throw NoData("Data folder " + path.string() + " holds no data set; expected one of " +
               looked_for);
}

DataSets open_image_folders(const fs::path& folder) {
  Listing training = list_images(folder / "train");
  Listing validation = list_images(folder / "val");
  std::vector<std::string> lonely;
  std::set_symmetric_difference(training.classes.begin(), training.classes.end(),
                                validation.classes.begin(), validation.classes.end(),
                                std::back_inserter(lonely));
  if (!lonely.empty()) {
    throw std::runtime_error(fmt::format(
        "Image folder {}: class {} is in {} alone; expected the same classes in train and val ({} "
        "are in one alone)",
        folder.string(), lonely.front(),
        fs::exists(training.folder / lonely.front()) ? "train" : "val", lonely.size()));
  }
  // ILSVRC 2012.
  const bool is_imagenet = training.classes.size() == 1000 && training.labels.size() == 1'281'167 &&
                           validation.labels.size() == 50'000;
  const std::string title = is_imagenet ? "ImageNet" : "the images in " + folder.string();
  return {.kind = DataKind::image_folder,
          .training = std::make_unique<ImageFolder>(title, std::move(training)),
          .validation = std::make_unique<ImageFolder>(title, std::move(validation))};
}

}  // namespace vision
