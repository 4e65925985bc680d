/// A folder of classes with JPEG and PNG files, as ImageNet is usually laid out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "examples/vision/data/data_sets.h"

namespace vision {

/// FOLDER/CLASS/.../IMAGE: each folder in it is a class, in the order of the names' bytes, with all
/// files that end in .jpg, .jpeg or .png, in upper or lower case, by folder and name; other files
/// are left out. Classes and images come in the order of torchvision's ImageFolder. Links to files
/// are followed, and those to folders where the folder is a class.
struct ImageListing {
  std::string folder;
  std::vector<std::string> classes;
  std::vector<std::int32_t> labels;  ///< of each image
  /// The images' paths within their class, one behind the other: a million strings would take twice
  /// the memory.
  std::string names;
  std::vector<std::size_t> starts{0};  ///< of each name, and the end of the last
  /// Paths that end as an image's, but are no file: links that lead nowhere or to something else,
  /// folders, FIFOs.
  std::size_t left_out = 0;
  std::string first_left_out;
};

/// Throws std::runtime_error for a folder that is missing or without classes, a class that is a
/// link to nowhere, and for a class without images, with its path.
ImageListing list_images(const std::filesystem::path& folder);

/// Images of each class, in the order of labels.
std::vector<std::size_t> count_images(const ImageListing& listing);

/// What a file is, JPEG or PNG, its first bytes say: ImageNet has a PNG by the name of .JPEG.
class ImageFolder final : public Dataset {
 public:
  /// `title` is for people.
  ImageFolder(std::string title, ImageListing listing);

  std::size_t size() const override { return listing_.labels.size(); }
  int label(std::size_t index) const override { return listing_.labels[index]; }
  /// The whole file, of at most 256 MiB.
  EncodedImage encoded(std::size_t index, std::vector<std::uint8_t>& memory) const override;
  /// The path.
  std::string where(std::size_t index) const override;

 private:
  ImageListing listing_;
};

/// FOLDER/train and FOLDER/val, which must have the same classes. With ILSVRC 2012's 1,281,167 and
/// 50,000 images in 1,000 classes it is called ImageNet. Throws std::runtime_error as list_images()
/// does, and names the first class that one of the two lacks.
DataSets open_image_folders(const std::filesystem::path& folder);

}  // namespace vision
