// Decodes all images of a data set. Usage: decode_all PATH. Prints what it is and, of each part,
// images, classes, smallest and largest side.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <vector>

#include "examples/vision/data/dataset.h"
#include "examples/vision/data/decoder.h"

namespace {

void decode_all(const char* part, const vision::Dataset& images) {
  vision::Decoder decoder;
  vision::Image pixels;
  std::vector<std::uint8_t> memory;
  int smallest = 1 << 30;
  int largest = 0;
  for (std::size_t index = 0; index < images.size(); ++index) {
    const auto size = decoder.open(images.encoded(index, memory), images.where(index));
    decoder.decode(1, pixels);
    smallest = std::min({smallest, size.width, size.height});
    largest = std::max({largest, size.width, size.height});
  }
  std::printf("%s: %zu images of %zu classes, sides of %d to %d\n", part, images.size(),
              images.classes().size(), smallest, largest);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "Usage: decode_all PATH\n");
    return 2;
  }
  try {
    const vision::DataSets data = vision::open_data(arguments[1]);
    std::printf("%s\n", data.id().c_str());
    decode_all("training", *data.training);
    decode_all("validation", *data.validation);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
