// Any bytes as a JPEG or a PNG: refused with where they lie, or as many pixels as the header says.
#include <cstdlib>
#include <span>
#include <string>

#include "examples/vision/data/decoder.h"
#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace vision;
  static Decoder decoder(100'000);  // one for all, as a worker has it
  static Image image;
  const ImageFormat format = size > 0 && data[0] == 0x89 ? ImageFormat::png : ImageFormat::jpeg;
  const int denominator = size > 0 ? 1 << (data[size - 1] % 4) : 1;
  try {
    const ImageSize whole = decoder.open({format, std::span(data, size), {}}, "here");
    decoder.decode(denominator, image);
    HORA_REQUIRE(image.size == scaled_size(whole, decoder.supported(denominator)));
    HORA_REQUIRE(image.pixels.size() == image_bytes(image.size));
  } catch (const BadImage& error) {
    HORA_REQUIRE(std::string(error.what()).starts_with("here: "));
  }
  return 0;
}
