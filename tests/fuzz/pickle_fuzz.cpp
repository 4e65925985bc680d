// Any bytes as a pickle: refused with a reason, or a dictionary whose parts lie within the bytes.
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>

#include "examples/vision/data/pickle.h"
#include "tests/fuzz/require.h"

namespace {

template <class Read>
void expect_reason(Read&& read) {
  try {
    read();
  } catch (const std::runtime_error& error) {
    HORA_REQUIRE(std::string(error.what()).starts_with("here: "));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  expect_reason([&] {
    const vision::Pickle pickle(std::span(data, size), "here");
    expect_reason([&] { pickle.integers("labels"); });
    expect_reason([&] { pickle.strings("label_names"); });
    expect_reason([&] {
      const vision::ByteMatrix matrix = pickle.matrix("data");
      HORA_REQUIRE(matrix.rows * matrix.columns == matrix.bytes.size());
      for (const std::uint8_t& byte : matrix.bytes) {
        HORA_REQUIRE(&byte >= data && &byte < data + size);
      }
    });
  });
  return 0;
}
