/// Errors that are the same on every rank.
#pragma once

#include <stdexcept>

namespace vision {

/// Thrown by every rank with the same text, which rank 0 alone prints.
class CommonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace vision
