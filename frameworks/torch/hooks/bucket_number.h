/// What a bucket's name and that of the same bucket in another run have in common.
#pragma once

#include <string>

namespace hora::internal {

/// The text after the last '.' of GradientBucketView::name: before it stands how many optimizers
/// the process has made.
inline std::string bucket_number(const std::string& name) {
  return name.substr(name.rfind('.') + 1);  // npos + 1 is 0
}

}  // namespace hora::internal
