/// The end of what a rank has printed.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hora::launch {

class LastWords {
 public:
  explicit LastWords(std::size_t most_bytes = 1000) : most_(most_bytes) {}
  void append(std::string_view bytes);
  /// The last lines, without those that are empty at the end, and without those that Open MPI's
  /// handler of signals prints ("[host:4711] ..."), where there are others.
  std::string lines(std::size_t count) const;

 private:
  std::size_t most_;
  std::string text_;
};

}  // namespace hora::launch
