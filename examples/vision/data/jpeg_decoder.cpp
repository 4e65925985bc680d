#include "examples/vision/data/jpeg_decoder.h"

#include <algorithm>
#include <array>
#include <cstdio>  // jpeglib.h needs FILE
#include <stdexcept>
#include <vector>

// After cstdio.
#include <jerror.h>
#include <jpeglib.h>

#include "examples/vision/data/c_library.h"

namespace vision {

struct JpegDecoder::Part {
  unsigned begin;
  unsigned length;
};

struct JpegDecoder::State {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  ErrorExit exit;
  std::vector<std::uint8_t> row;  // of CMYK, or one that is not wanted

  [[noreturn]] void fail() {
    jpeg_abort_decompress(&jpeg);
    throw std::runtime_error(exit.text());
  }
};

namespace {

// A progressive file may hold any number of scans, each of which costs time over the whole image.
constexpr int most_scans = 200;
constexpr int most_components = 4;
// Chroma is interpolated between neighbours, also those of the next block: at the edges of what is
// decoded the pixels are not those of the whole image.
constexpr int margin = 16;

ErrorExit& exit_of(j_common_ptr jpeg) {
  return *static_cast<ErrorExit*>(jpeg->client_data);
}

[[noreturn]] void leave(j_common_ptr jpeg) {
  std::array<char, JMSG_LENGTH_MAX> text{};
  jpeg->err->format_message(jpeg, text.data());
  exit_of(jpeg).leave(text.data());
}

// Negative levels are warnings, the others traces.
void on_message(j_common_ptr jpeg, int level) {
  if (level >= 0) {
    return;
  }
  switch (jpeg->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_ICC:
    case JWRN_JFIF_MAJOR:
    case JWRN_NOT_SEQUENTIAL:
      return;  // all pixels are there
    default:
      leave(jpeg);
  }
}

void on_progress(j_common_ptr jpeg) {
  if (jpeg->is_decompressor != 0 &&
      reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number > most_scans) {
    exit_of(jpeg).leave("more scans than any program writes (200)");
  }
}

// value * by / 255, rounded.
std::uint8_t scaled(int value, int by) {
  const int product = value * by + 128;
  return static_cast<std::uint8_t>((product + (product >> 8)) >> 8);
}

void to_rgb(const std::uint8_t* cmyk, int pixels, std::uint8_t* rgb) {
  for (int i = 0; i < pixels; ++i, cmyk += 4, rgb += 3) {
    for (int channel = 0; channel < 3; ++channel) {
      rgb[channel] = scaled(cmyk[channel], cmyk[3]);
    }
  }
}

}  // namespace

JpegDecoder::Part JpegDecoder::with_margin(int begin, int length, int whole) {
  const int from = std::max(0, begin - margin);
  const int to = std::min(whole, begin + length + margin);
  return {static_cast<unsigned>(from), static_cast<unsigned>(to - from)};
}

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {
  state_->jpeg.err = jpeg_std_error(&state_->errors);
  state_->errors.error_exit = leave;
  state_->errors.emit_message = on_message;
  state_->jpeg.client_data = &state_->exit;
  if (!state_->exit.completes([this] { jpeg_create_decompress(&state_->jpeg); })) {
    const std::string reason = state_->exit.text();
    jpeg_destroy_decompress(&state_->jpeg);
    throw std::runtime_error("libjpeg cannot be used: " + reason);
  }
  state_->progress.progress_monitor = on_progress;
  state_->jpeg.progress = &state_->progress;
}

JpegDecoder::~JpegDecoder() {
  jpeg_destroy_decompress(&state_->jpeg);
}

ImageSize JpegDecoder::open(std::span<const std::uint8_t> bytes) {
  jpeg_decompress_struct& jpeg = state_->jpeg;
  jpeg_abort_decompress(&jpeg);
  if (!state_->exit.completes([&] {
        jpeg_mem_src(&jpeg, bytes.data(), bytes.size());
        jpeg_read_header(&jpeg, TRUE);
      })) {
    state_->fail();
  }
  return {static_cast<int>(jpeg.image_width), static_cast<int>(jpeg.image_height)};
}

void JpegDecoder::decode(int denominator, const Box& wanted, Image& into) {
  jpeg_decompress_struct& jpeg = state_->jpeg;
  const bool four = jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK;
  jpeg.out_color_space = four ? JCS_CMYK : JCS_RGB;
  jpeg.scale_num = 1;
  jpeg.scale_denom = static_cast<unsigned>(denominator);
  if (!state_->exit.completes([&] { jpeg_start_decompress(&jpeg); })) {
    state_->fail();
  }
  into.size = {static_cast<int>(jpeg.output_width), static_cast<int>(jpeg.output_height)};
  into.pixels.resize(image_bytes(into.size));
  state_->row.resize(std::size_t{most_components} * jpeg.output_width);
  const Part columns = with_margin(wanted.left, wanted.width, into.size.width);
  const Part rows = with_margin(wanted.top, wanted.height, into.size.height);
  if (!state_->exit.completes([&] { read(four, columns, rows, into); })) {
    state_->fail();
  }
}

void JpegDecoder::read(bool four, Part columns, Part rows, Image& into) {
  jpeg_decompress_struct& jpeg = state_->jpeg;
  const std::size_t row_bytes = image_bytes({into.size.width, 1});
  if (columns.length < jpeg.output_width) {
    // Begins where a block begins, and so may be wider.
    jpeg_crop_scanline(&jpeg, &columns.begin, &columns.length);
  }
  skip_to(rows.begin);
  JSAMPROW spare = state_->row.data();
  while (jpeg.output_scanline < rows.begin + rows.length) {
    std::uint8_t* out = into.pixels.data() + jpeg.output_scanline * row_bytes +
                        image_channels * std::size_t{columns.begin};
    JSAMPROW row = four ? spare : out;
    jpeg_read_scanlines(&jpeg, &row, 1);
    if (four) {
      to_rgb(row, static_cast<int>(columns.length), out);
    }
  }
  // The last row is read, for what is skipped up to an image's end is not looked at.
  skip_to(jpeg.output_height - 1);
  while (jpeg.output_scanline < jpeg.output_height) {
    jpeg_read_scanlines(&jpeg, &spare, 1);
  }
  jpeg_finish_decompress(&jpeg);
}

void JpegDecoder::skip_to(unsigned row) {
  if (state_->jpeg.output_scanline < row) {
    jpeg_skip_scanlines(&state_->jpeg, row - state_->jpeg.output_scanline);
  }
}

}  // namespace vision
