/// Files of records of one length, each with labels before the planes of an image.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "examples/vision/data/planar_images.h"

namespace vision {

struct RecordFile {
  std::string name;
  std::size_t records;  ///< of the published data set; a subset's file holds fewer
};

struct RecordLayout {
  ImageSize size;
  std::size_t labels = 1;  ///< bytes before the pixels, of which the last is the label
  int classes = 10;

  constexpr std::size_t bytes() const { return labels + image_bytes(size); }
};

/// How many records a file of `found` bytes holds. Throws std::runtime_error with path, bytes found
/// and bytes expected where that is nothing, more than `most`, or not whole records.
std::size_t count_records(const std::filesystem::path& path, std::uint64_t found,
                          std::size_t record_bytes, std::size_t most);

/// What the files hold, in order. Throws std::runtime_error: as count_records(), and for a file
/// that is missing or not a regular one; with path and record for a label that is no class.
PlanarRecords read_records(const std::filesystem::path& folder, std::span<const RecordFile> files,
                           const RecordLayout& layout);

/// Whether a file holds fewer records than the published one.
bool is_subset(const PlanarRecords& found, std::span<const RecordFile> files);

}  // namespace vision
