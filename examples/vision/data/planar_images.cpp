#include "examples/vision/data/planar_images.h"

#include <stdexcept>
#include <utility>

namespace vision {

PlanarImages::PlanarImages(std::string title, std::vector<std::string> classes, ImageSize size,
                           PlanarRecords records)
    : Dataset(std::move(title), std::move(classes)), size_(size), records_(std::move(records)) {
  std::size_t in_files = 0;
  for (const PlanarRecords::File& file : records_.files) {
    in_files += file.records;
  }
  if (in_files != this->size() || records_.pixels.size() != this->size() * image_bytes(size)) {
    throw std::logic_error("PlanarImages: " + std::to_string(in_files) + " records, " +
                           std::to_string(this->size()) + " labels and " +
                           std::to_string(records_.pixels.size()) + " bytes of pixels");
  }
}

EncodedImage PlanarImages::encoded(std::size_t index, std::vector<std::uint8_t>& /*memory*/) const {
  const std::size_t bytes = image_bytes(size_);
  return {ImageFormat::planar_rgb, std::span(records_.pixels).subspan(index * bytes, bytes), size_};
}

std::string PlanarImages::where(std::size_t index) const {
  auto file = records_.files.begin();
  while (index >= file->records) {
    index -= file->records;
    ++file;
  }
  return file->name + ", record " + std::to_string(index);
}

}  // namespace vision
