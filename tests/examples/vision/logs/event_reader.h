/// The events of a file, for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/vision/logs/event.pb.h"
#include "examples/vision/logs/record.h"

namespace vision::test {

/// std::runtime_error where a record is cut short, a checksum is wrong, or data is no event.
inline std::vector<logs::Event> events_of(const std::string& bytes) {
  std::vector<logs::Event> events;
  const auto number = [&](std::size_t offset, std::size_t size) {
    std::uint64_t value = 0;
    for (std::size_t i = size; i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(bytes.at(offset + i));
    }
    return value;
  };
  for (std::size_t at = 0; at < bytes.size();) {
    const std::uint64_t size = number(at, 8);
    const std::string data = bytes.substr(at + 12, size);
    logs::Event event;
    if (number(at + 8, 4) != masked_crc32c(bytes.substr(at, 8)) ||
        number(at + 12 + size, 4) != masked_crc32c(data) || !event.ParseFromString(data)) {
      throw std::runtime_error("No record at byte " + std::to_string(at));
    }
    events.push_back(event);
    at += 16 + size;
  }
  return events;
}

}  // namespace vision::test
