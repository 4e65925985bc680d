#include "examples/vision/logs/record.h"

#include "examples/vision/logs/crc32c.h"

namespace vision {
namespace {

template <class Number>
std::string little_endian(Number number) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    bytes += static_cast<char>((number >> (8 * i)) & 0xff);
  }
  return bytes;
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

std::string to_record(std::string_view data) {
  const std::string length = little_endian(std::uint64_t{data.size()});
  std::string record = length + little_endian(masked_crc32c(length));
  record += data;
  record += little_endian(masked_crc32c(data));
  return record;
}

}  // namespace vision
