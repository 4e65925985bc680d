/// CIFAR-10's Python version: pickles, in an archive or unpacked.
#pragma once

#include <filesystem>

#include "examples/vision/data/data_sets.h"

namespace vision {

inline constexpr const char* cifar10_python_folder = "cifar-10-batches-py";
inline constexpr const char* cifar10_python_archive = "cifar-10-python.tar.gz";

/// From the archive as it is published, or from the folder that it unpacks to: data_batch_1 to 5,
/// test_batch and batches.meta, read by class Pickle, so that no code in them is ever run. Throws
/// std::runtime_error naming archive or file: as InputFile, read_archive() and Pickle do, for a
/// part that is missing, for arrays that do not have a label for each row of 3,072 bytes, for more
/// rows than the published file's, and for a label that is no class.
DataSets open_cifar10_python(const std::filesystem::path& archive_or_folder);

}  // namespace vision
