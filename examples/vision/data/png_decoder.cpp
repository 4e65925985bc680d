#include "examples/vision/data/png_decoder.h"

#include <png.h>

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "examples/vision/data/c_library.h"

namespace vision {

struct PngDecoder::State {
  png_structp png = nullptr;
  png_infop info = nullptr;
  ErrorExit exit;
  std::span<const std::uint8_t> rest;
  std::vector<png_bytep> rows;

  void close() { png_destroy_read_struct(&png, &info, nullptr); }
  [[noreturn]] void fail() {
    close();
    throw std::runtime_error(exit.text());
  }
};

namespace {

[[noreturn]] void on_error(png_structp png, png_const_charp text) {
  static_cast<ErrorExit*>(png_get_error_ptr(png))->leave(text);
}

// Of what has nothing to do with pixels, such as a colour profile: damage to those is an error.
void on_warning(png_structp /*png*/, png_const_charp /*text*/) {}

void read(png_structp png, png_bytep into, std::size_t count) {
  auto& rest = *static_cast<std::span<const std::uint8_t>*>(png_get_io_ptr(png));
  if (count > rest.size()) {
    png_error(png, "the file ends too early");
  }
  std::memcpy(into, rest.data(), count);
  rest = rest.subspan(count);
}

}  // namespace

PngDecoder::PngDecoder() : state_(std::make_unique<State>()) {}

PngDecoder::~PngDecoder() {
  state_->close();
}

ImageSize PngDecoder::open(std::span<const std::uint8_t> bytes) {
  State& state = *state_;
  state.close();
  state.rest = bytes;
  if (!state.exit.completes([&] {
        state.png =
            png_create_read_struct(PNG_LIBPNG_VER_STRING, &state.exit, on_error, on_warning);
        if (state.png == nullptr) {
          state.exit.leave("libpng cannot be used");
        }
        state.info = png_create_info_struct(state.png);
        if (state.info == nullptr) {
          png_error(state.png, "out of memory");
        }
        png_set_read_fn(state.png, &state.rest, read);
        png_read_info(state.png, state.info);
      })) {
    state.fail();
  }
  return {static_cast<int>(png_get_image_width(state.png, state.info)),
          static_cast<int>(png_get_image_height(state.png, state.info))};
}

void PngDecoder::decode(Image& into) {
  State& state = *state_;
  if (!state.exit.completes([&] {
        png_set_strip_16(state.png);
        png_set_expand(state.png);  // palette, and fewer than 8 bits
        png_set_strip_alpha(state.png);
        png_set_gray_to_rgb(state.png);
        png_set_interlace_handling(state.png);
        png_read_update_info(state.png, state.info);
      })) {
    state.fail();
  }
  into.size = {static_cast<int>(png_get_image_width(state.png, state.info)),
               static_cast<int>(png_get_image_height(state.png, state.info))};
  const std::size_t row_bytes = image_bytes({into.size.width, 1});
  if (png_get_rowbytes(state.png, state.info) != row_bytes) {
    state.close();
    throw std::runtime_error("its kind of pixels is not known here");
  }
  into.pixels.resize(image_bytes(into.size));
  state.rows.resize(static_cast<std::size_t>(into.size.height));
  for (std::size_t row = 0; row < state.rows.size(); ++row) {
    state.rows[row] = into.pixels.data() + row * row_bytes;
  }
  if (!state.exit.completes([&] {
        png_read_image(state.png, state.rows.data());
        png_read_end(state.png, nullptr);
      })) {
    state.fail();
  }
  state.close();
}

}  // namespace vision
