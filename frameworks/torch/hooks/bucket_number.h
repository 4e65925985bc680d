/// Index of a bucket, stable across runs.
#pragma once

#include <string>

namespace hora::internal {

/// The text after the last '.' of GradientBucketView::name: before it stands how many optimizers
/// the process has made.
inline std::string bucket_number(const std::string& name) {
  return name.substr(name.rfind('.') + 1);  // npos + 1 is 0
}

}  // namespace hora::internal
