#include "examples/vision/logs/record.h"

#include <gtest/gtest.h>

#include "examples/vision/logs/crc32c.h"
#include "tests/examples/vision/logs/event_reader.h"

namespace vision {
namespace {

// RFC 3720, appendix B.4, where the values stand byte by byte, the lowest first.
TEST(Crc32c, OfTheKnownVectors) {
  std::string ascending;
  std::string descending;
  for (char byte = 0; byte < 32; ++byte) {
    ascending += byte;
    descending += static_cast<char>(31 - byte);
  }
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(ascending), 0x46dd794eU);
  EXPECT_EQ(crc32c(descending), 0x113fdb5cU);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(""), 0U);
}

// Bytes that TensorBoard's writer wrote.
TEST(Record, IsLengthAndDataWithTheirChecksums) {
  const std::string data(
      "\x09\x00\x00\x00\x40\xfc\x54\xd9\x41\x1a\x0d"
      "brain.Event:2",
      24);
  EXPECT_EQ(to_record(data),
            std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12) + data + "\xec\xed\x8f\x9d");
}

TEST(Record, OfNothing) {
  const std::string record = to_record("");
  EXPECT_EQ(record.size(), 16U);
  EXPECT_EQ(test::events_of(record).size(), 1U);
}

}  // namespace
}  // namespace vision
