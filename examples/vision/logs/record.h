/// TFRecord, the frame of each event in a TensorBoard file:
///
///     offset   bytes
///     0        8       n, little-endian
///     8        4       masked CRC-32C of these 8 bytes, little-endian
///     12       n       data
///     12 + n   4       masked CRC-32C of the data, little-endian
///
/// Source: TensorFlow's guide "TFRecord and tf.train.Example", section "TFRecords format details".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vision {

/// ((crc >> 15) | (crc << 17)) + 0xa282ead8, modulo 2^32, of crc = crc32c(bytes): a CRC over bytes
/// that hold their own CRC would say little. Pure; any thread.
std::uint32_t masked_crc32c(std::string_view bytes);

/// The record that holds `data`. Pure; any thread.
std::string to_record(std::string_view data);

}  // namespace vision
