/// Labelled images, still encoded, and the two data sets of a training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace vision {

/// In pixels; both are at least 1 in any image that was opened.
struct ImageSize {
  int width = 0;
  int height = 0;

  bool operator==(const ImageSize&) const = default;
};

/// In pixels of the image it belongs to; it may reach beyond that.
struct Box {
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;

  bool operator==(const Box&) const = default;
};

constexpr Box whole(ImageSize size) {
  return {0, 0, size.width, size.height};
}

inline constexpr std::size_t image_channels = 3;  ///< red, green, blue

/// The number of bytes of a decoded image of this size.
constexpr std::size_t image_bytes(ImageSize size) {
  return image_channels * static_cast<std::size_t>(size.width) *
         static_cast<std::size_t>(size.height);
}

/// A decoded image: rows from the top, pixels from the left, 3 bytes each.
struct Image {
  ImageSize size;
  std::vector<std::uint8_t> pixels;  ///< image_bytes(size)
};

enum class ImageFormat {
  jpeg,
  png,
  planar_rgb,  ///< the red, then the green, then the blue plane, each by rows, a byte a pixel
};

struct EncodedImage {
  ImageFormat format = ImageFormat::planar_rgb;
  std::span<const std::uint8_t> bytes;
  ImageSize size;  ///< of planar_rgb; other formats' stands in their header
};

/// One image cannot be read or decoded. The text begins with its path, or file and record.
class BadImage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  BadImage(const std::string& where, const std::string& what)
      : std::runtime_error(where + ": " + what) {}
};

/// How a loader treats images that cannot be decoded.
enum class BadImages {
  raise,  ///< next() throws the BadImage
  /// The sample becomes the next good image of the list, from its start after its end, so that
  /// batches and steps stay as many as on the other ranks. Batch::replaced() has those samples.
  skip,
};

/// Thread rule: any thread, all functions.
class Dataset {
 public:
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  virtual ~Dataset() = default;

  /// For people, such as "CIFAR-10" or "a subset of CIFAR-10".
  const std::string& title() const { return title_; }
  /// The classes' names, empty where the files do not tell, in the order of their labels.
  const std::vector<std::string>& classes() const { return classes_; }

  virtual std::size_t size() const = 0;
  /// 0 to classes().size() - 1; `index` is below size(), here and below.
  virtual int label(std::size_t index) const = 0;
  /// The image as it is stored, in the data set's own memory or read into `memory`: valid until
  /// `memory` changes. Throws BadImage where a file has vanished or cannot be read.
  virtual EncodedImage encoded(std::size_t index, std::vector<std::uint8_t>& memory) const = 0;
  /// Where the image lies: a path, or file and record.
  virtual std::string where(std::size_t index) const = 0;

 protected:
  Dataset(std::string title, std::vector<std::string> classes)
      : title_(std::move(title)), classes_(std::move(classes)) {}

 private:
  std::string title_;
  std::vector<std::string> classes_;
};

enum class DataKind { cifar10, cifar100, digits, stl10, image_folder };

struct DataSets {
  DataKind kind = DataKind::image_folder;
  bool is_subset = false;  ///< one of the two has fewer images than the published one
  std::unique_ptr<const Dataset> training = {};
  std::unique_ptr<const Dataset> validation = {};

  /// For programs to read: "cifar10", "cifar100", "digits", "stl10" or "image-folder", of a subset
  /// with "-subset" behind it.
  std::string id() const;
};

/// The first `limit` images of each; 0: all.
void keep_first(DataSets& data, std::size_t limit);

/// There is no data set, not even a damaged one.
class NoData : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Opens what `path` holds, itself or in the folder that the published archive unpacks to:
///
/// | it holds | data set |
/// |---|---|
/// | data_batch_1.bin, cifar-10-batches-bin/ | CIFAR-10, binary version, or the digits |
/// | train.bin, cifar-100-binary/ | CIFAR-100, binary version |
/// | train_X.bin, stl10_binary/ | STL-10 |
/// | train/ and val/ | folders of classes: ImageNet |
///
/// Throws NoData where it holds none of these, std::runtime_error where one is damaged.
DataSets open_data(const std::filesystem::path& path);

/// FOLDER/train and FOLDER/val, each CLASS/.../IMAGE: every folder is a class, with all files that
/// end in .jpg, .jpeg or .png in upper or lower case. Classes and images come in the order of
/// torchvision's ImageFolder. Links to files are followed, and those to folders that are classes.
DataSets open_image_folders(const std::filesystem::path& folder);

}  // namespace vision
