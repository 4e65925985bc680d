/// The events of a file, for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/vision/logs/event.pb.h"

namespace vision::test {

/// Throws where a record is cut short or data is no event.
inline std::vector<logs::Event> events_of(const std::string& bytes) {
  std::vector<logs::Event> events;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t size = 0;
    for (std::size_t i = 8; i-- > 0;) {
      size = size << 8 | static_cast<unsigned char>(bytes.at(at + i));
    }
    logs::Event event;
    if (at + 16 + size > bytes.size() || !event.ParseFromString(bytes.substr(at + 12, size))) {
      throw std::runtime_error("No record at byte " + std::to_string(at));
    }
    events.push_back(event);
    at += 16 + size;
  }
  return events;
}

}  // namespace vision::test
