#include "examples/vision/data/decoder.h"

#include <png.h>
#include <spdlog/fmt/fmt.h>

#include <array>
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs FILE
#include <cstring>

// After cstdio.
#include <jerror.h>
#include <jpeglib.h>

namespace vision {
namespace {

/// The way out of a C library that reports an error by a function which must not return. No
/// exception passes through the library's own frames.
class ErrorExit {
 public:
  /// Calls `call`, and throws std::runtime_error where leave() was called in it. `call` and all
  /// functions between it and leave() hold trivial objects only, for those are not destroyed.
  template <class Call>
  void run(const Call& call) {
    if (setjmp(jump_) != 0) throw std::runtime_error(text_.data());
    call();
  }

  /// Ends the running run(). Longer text is cut.
  [[noreturn]] void leave(const char* text) {
    std::snprintf(text_.data(), text_.size(), "%s", text);
    std::longjmp(jump_, 1);
  }

 private:
  std::jmp_buf jump_;
  std::array<char, 256> text_{};
};

/// Baseline and progressive, in grey, YCbCr, RGB, CMYK and YCCK. The last two are taken for
/// inverted, as Adobe's programs write them and as Pillow reads them: red is C * K / 255 of the
/// stored values. After an error open() starts afresh.
class Jpeg {
 public:
  Jpeg() {
    jpeg_.err = jpeg_std_error(&errors_);
    errors_.error_exit = leave;
    errors_.emit_message = on_message;
    jpeg_.client_data = &exit_;
    exit_.run([this] { jpeg_create_decompress(&jpeg_); });
    progress_.progress_monitor = on_progress;
    jpeg_.progress = &progress_;
  }
  Jpeg(const Jpeg&) = delete;
  Jpeg& operator=(const Jpeg&) = delete;
  ~Jpeg() { jpeg_destroy_decompress(&jpeg_); }

  ImageSize open(std::span<const std::uint8_t> bytes) {
    jpeg_abort_decompress(&jpeg_);
    exit_.run([&] {
      jpeg_mem_src(&jpeg_, bytes.data(), bytes.size());
      jpeg_read_header(&jpeg_, TRUE);
    });
    return {static_cast<int>(jpeg_.image_width), static_cast<int>(jpeg_.image_height)};
  }

  void decode(int denominator, Image& into) {
    const bool four = jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK;
    jpeg_.out_color_space = four ? JCS_CMYK : JCS_RGB;
    jpeg_.scale_num = 1;
    jpeg_.scale_denom = static_cast<unsigned>(denominator);
    exit_.run([&] { jpeg_start_decompress(&jpeg_); });
    into.size = {static_cast<int>(jpeg_.output_width), static_cast<int>(jpeg_.output_height)};
    into.pixels.resize(image_bytes(into.size));
    cmyk_.resize(std::size_t{4} * jpeg_.output_width);
    exit_.run([&] {
      std::uint8_t* out = into.pixels.data();
      while (jpeg_.output_scanline < jpeg_.output_height) {
        JSAMPROW row = four ? cmyk_.data() : out;
        jpeg_read_scanlines(&jpeg_, &row, 1);
        if (four) to_rgb(row, jpeg_.output_width, out);
        out += image_channels * jpeg_.output_width;
      }
      jpeg_finish_decompress(&jpeg_);
    });
  }

 private:
  static ErrorExit& exit_of(j_common_ptr jpeg) {
    return *static_cast<ErrorExit*>(jpeg->client_data);
  }

  [[noreturn]] static void leave(j_common_ptr jpeg) {
    std::array<char, JMSG_LENGTH_MAX> text{};
    jpeg->err->format_message(jpeg, text.data());
    exit_of(jpeg).leave(text.data());
  }

  // Negative levels are warnings, the others traces.
  static void on_message(j_common_ptr jpeg, int level) {
    if (level >= 0) return;
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

  // A progressive file may hold any number of scans, each of which costs time over the whole image.
  static void on_progress(j_common_ptr jpeg) {
    if (jpeg->is_decompressor != 0 &&
        reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number > 200) {
      exit_of(jpeg).leave("more scans than any program writes (200)");
    }
  }

  static void to_rgb(const std::uint8_t* cmyk, unsigned pixels, std::uint8_t* rgb) {
    for (unsigned i = 0; i < pixels; ++i, cmyk += 4, rgb += 3) {
      for (int channel = 0; channel < 3; ++channel) {
        const int product = cmyk[channel] * cmyk[3] + 128;
        rgb[channel] = static_cast<std::uint8_t>((product + (product >> 8)) >> 8);  // / 255
      }
    }
  }

  jpeg_decompress_struct jpeg_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  ErrorExit exit_;
  std::vector<std::uint8_t> cmyk_;  // a row
};

/// Grey, colour and palette, 1 to 16 bits a sample, interlaced or not; a gamma is not applied.
/// After an error open() starts afresh.
class Png {
 public:
  Png() = default;
  Png(const Png&) = delete;
  Png& operator=(const Png&) = delete;
  ~Png() { close(); }

  ImageSize open(std::span<const std::uint8_t> bytes) {
    close();
    rest_ = bytes;
    exit_.run([&] {
      png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &exit_, on_error, on_warning);
      info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
      if (info_ == nullptr) exit_.leave("libpng cannot be used");
      png_set_read_fn(png_, &rest_, read);
      png_read_info(png_, info_);
    });
    return size();
  }

  void decode(Image& into) {
    exit_.run([&] {
      png_set_strip_16(png_);
      png_set_expand(png_);  // palette, and fewer than 8 bits
      png_set_strip_alpha(png_);
      png_set_gray_to_rgb(png_);
      png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
    });
    into.size = size();
    const std::size_t row_bytes = image_bytes({into.size.width, 1});
    if (png_get_rowbytes(png_, info_) != row_bytes) {
      throw std::runtime_error("its kind of pixels is not known here");
    }
    into.pixels.resize(image_bytes(into.size));
    rows_.resize(static_cast<std::size_t>(into.size.height));
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      rows_[row] = into.pixels.data() + row * row_bytes;
    }
    exit_.run([&] {
      png_read_image(png_, rows_.data());
      png_read_end(png_, nullptr);
    });
    close();
  }

 private:
  [[noreturn]] static void on_error(png_structp png, png_const_charp text) {
    static_cast<ErrorExit*>(png_get_error_ptr(png))->leave(text);
  }

  // Warnings concern other things than pixels, such as a colour profile: damaged pixels are errors.
  static void on_warning(png_structp /*png*/, png_const_charp /*text*/) {}

  static void read(png_structp png, png_bytep into, std::size_t count) {
    auto& rest = *static_cast<std::span<const std::uint8_t>*>(png_get_io_ptr(png));
    if (count > rest.size()) png_error(png, "the file ends too early");
    std::memcpy(into, rest.data(), count);
    rest = rest.subspan(count);
  }

  ImageSize size() const {
    return {static_cast<int>(png_get_image_width(png_, info_)),
            static_cast<int>(png_get_image_height(png_, info_))};
  }
  void close() { png_destroy_read_struct(&png_, &info_, nullptr); }

  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  ErrorExit exit_;
  std::span<const std::uint8_t> rest_;
  std::vector<png_bytep> rows_;
};

ImageSize open_planar(const EncodedImage& image) {
  const ImageSize size = image.size;
  if (size.width < 1 || size.height < 1 || image.bytes.size() != image_bytes(size)) {
    throw std::runtime_error(fmt::format("found {} bytes, expected 3 for each of {} x {} pixels",
                                         image.bytes.size(), size.width, size.height));
  }
  return size;
}

void interleave(const EncodedImage& image, Image& into) {
  into.size = image.size;
  into.pixels.resize(image_bytes(image.size));
  const std::size_t plane = into.pixels.size() / image_channels;
  for (std::size_t channel = 0; channel < image_channels; ++channel) {
    const std::uint8_t* from = image.bytes.data() + channel * plane;
    std::uint8_t* to = into.pixels.data() + channel;
    for (std::size_t i = 0; i < plane; ++i) to[i * image_channels] = from[i];
  }
}

}  // namespace

struct Decoder::Libraries {
  Jpeg jpeg;
  Png png;
};

Decoder::Decoder(std::uint64_t most_pixels)
    : libraries_(std::make_unique<Libraries>()), most_pixels_(most_pixels) {}

Decoder::~Decoder() = default;

// Errors get the image's name.
template <class Call>
void Decoder::named(const Call& call) const {
  try {
    call();
  } catch (const std::runtime_error& error) {
    throw BadImage(where_, error.what());
  }
}

ImageSize Decoder::open(const EncodedImage& image, std::string where) {
  image_ = image;
  where_ = std::move(where);
  named([&] {
    size_ = image.format == ImageFormat::jpeg  ? libraries_->jpeg.open(image.bytes)
            : image.format == ImageFormat::png ? libraries_->png.open(image.bytes)
                                               : open_planar(image);
    if (image_bytes(size_) / image_channels > most_pixels_) {
      throw std::runtime_error(
          fmt::format("{} x {} pixels are too many; expected at most {} in all", size_.width,
                      size_.height, most_pixels_));
    }
  });
  return size_;
}

int Decoder::supported(int denominator) const {
  return image_.format == ImageFormat::jpeg ? denominator : 1;
}

void Decoder::decode(int denominator, Image& into) {
  named([&] {
    switch (image_.format) {
      case ImageFormat::jpeg:
        return libraries_->jpeg.decode(denominator, into);
      case ImageFormat::png:
        return libraries_->png.decode(into);
      case ImageFormat::planar_rgb:
        return interleave(image_, into);
    }
  });
}

}  // namespace vision
